"""How well two rankings of the classes agree: Spearman, top-n overlap, mean absolute error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def ranks(values: npt.ArrayLike) -> Floats:
    """Ranks from 1; equal values share the mean of theirs.

    Example:
        >>> ranks([10, 30, 10]).tolist()
        [1.5, 3.0, 1.5]
    """
    array = np.asarray(values, np.float64)
    _, group, counts = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[group]


def spearman(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Spearman's rank correlation; NaN where one of the two is constant or shorter than two.

    Example:
        >>> spearman([1, 2, 3], [1, 4, 9])
        1.0
    """
    a, b = (ranks(values) for values in (first, second))
    if a.shape != b.shape:
        raise ValueError(f"first has {len(a)} values, second has {len(b)}")
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    a, b = a - a.mean(), b - b.mean()
    return float(round((a @ b) / np.sqrt((a @ a) * (b @ b)), 12))


def spearman_curve(
    true: npt.ArrayLike,
    estimated: npt.ArrayLike,
    *,
    top: Sequence[int] | None = None,
    order: Literal["true", "estimated"] = "true",
) -> dict[int, float]:
    """Spearman over the n most frequent classes, for several n.

    Args:
        true: Known frequencies.
        estimated: The estimates.
        top: The values of n; default is 5 to all.
        order: Whether "most frequent" goes by the known or by the estimated frequencies.
    """
    a, b = np.asarray(true, np.float64), np.asarray(estimated, np.float64)
    most = np.argsort(-(a if order == "true" else b), kind="stable")
    wanted = range(min(5, len(a)), len(a) + 1) if top is None else top
    return {n: spearman(a[most[:n]], b[most[:n]]) for n in wanted}


def top_overlap(true: npt.ArrayLike, estimated: npt.ArrayLike, n: int = 10) -> int:
    """How many of the n most frequent classes are also the n estimated to be.

    Example:
        >>> top_overlap([3, 2, 1, 0], [9, 0, 8, 1], n=2)
        1
    """
    a, b = np.asarray(true, np.float64), np.asarray(estimated, np.float64)
    first = np.argsort(-a, kind="stable")[:n]
    second = np.argsort(-b, kind="stable")[:n]
    return len(np.intersect1d(first, second))
