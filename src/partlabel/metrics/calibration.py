"""Whether probabilities mean what they say, on annotated pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from partlabel.errors import DataError
from partlabel.metrics.pairs import AnnotatedPairs, Pairs

Floats = npt.NDArray[np.float64]
ScoresAre = Literal["probabilities", "logits"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """Expected calibration error, and the bins it is made of."""

    ece: float
    confidence: Floats
    """Mean probability per bin, NaN where it is empty."""
    accuracy: Floats
    """Share of positives per bin."""
    count: npt.NDArray[np.int64]


def calibration_error(
    metric: AnnotatedPairs,
    *,
    bins: int = 15,
    scores_are: ScoresAre = "probabilities",
    distributed: bool = True,
) -> Calibration:
    """Expected calibration error over all annotated pairs, in bins of equal width.

    Annotated pairs are seldom a fair sample of all pairs, so this says how calibrated the scores
    are where people looked.
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    pairs = metric.collect(distributed=distributed)
    values = probabilities(pairs, scores_are)
    # By comparing with the borders: values * bins rounds some of them into the bin below.
    which = np.searchsorted(np.arange(1, bins) / bins, values, side="right")
    count = np.bincount(which, minlength=bins)
    with np.errstate(invalid="ignore"):
        confidence = np.bincount(which, weights=values, minlength=bins) / count
        accuracy = np.bincount(which, weights=pairs.positive.numpy(), minlength=bins) / count
    gaps = np.abs(accuracy - confidence) * count
    ece = float(np.nansum(gaps) / len(values)) if len(values) else float("nan")
    return Calibration(ece=ece, confidence=confidence, accuracy=accuracy, count=count)


def probabilities(pairs: Pairs, scores_are: ScoresAre) -> Floats:
    """The scores as probabilities in float64; refuses what cannot be one."""
    if scores_are not in ("probabilities", "logits"):
        raise ValueError(f"scores_are must be 'probabilities' or 'logits', got {scores_are!r}")
    values: Floats = pairs.scores.double().numpy()
    if scores_are == "logits":
        return 0.5 * (1 + np.tanh(0.5 * values))
    if len(values) and (values.min() < 0 or values.max() > 1):
        found = f"{values.min():.4g} to {values.max():.4g}"
        raise DataError(f"scores from {found} are not probabilities; say that they are logits")
    return values
