"""Average precision over annotated pairs, exact, with what was scored and what was left out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from partlabel.metrics.pairs import AnnotatedPairs, Pairs
from partlabel.metrics.ranking import Ranking, rank

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Policy = Literal["drop", "zero"]

_REFERENCE_EPSILON = 1e-8  # what the paper's code adds to the number of positives


class GroupResult(NamedTuple):
    """Mean average precision of some classes."""

    map: float
    n_valid: int
    classes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """Average precision per class and on average, as fractions of 1."""

    per_class: Floats
    """NaN where it is not defined."""
    map_c: float
    """Mean over the scored classes."""
    map_o: float
    """Mean weighted by the positives of each class."""
    n_valid: int
    """Classes in the mean."""
    no_label: int
    """Classes without any annotated pair."""
    no_positive: int
    """Classes with verified absences only."""
    no_negative: int
    """Classes with verified presences only."""
    positives: Ints
    negatives: Ints

    def groups(
        self, groups: Mapping[str, Sequence[int] | npt.NDArray[Any]]
    ) -> dict[str, GroupResult]:
        """Mean average precision over the scored classes of each group."""
        made = {}
        for name, members in groups.items():
            values = self.per_class[np.asarray(members, np.int64)]
            valid = values[~np.isnan(values)]
            mean = float(valid.mean()) if len(valid) else float("nan")
            made[name] = GroupResult(mean, len(valid), len(values))
        return made


class AveragePrecision(AnnotatedPairs):
    """Average precision from scores at annotated pairs; see :class:`AnnotatedPairs` for updates.

    Args:
        num_classes: C.
        ties: ``"grouped"``: equal scores are one step, as in scikit-learn, so the order of images
            does not matter. ``"reference"``: the later image first, as in the paper's code.
        policy: ``"drop"`` leaves out classes without a positive or without a negative, as the paper
            does; ``"zero"`` counts a class without positives as 0 and keeps all the others.
        top_k: See :class:`AnnotatedPairs`.

    Example:
        >>> metric = AveragePrecision(num_classes=2)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.7]]), torch.tensor([[1, 0], [-1, 1]]))
        >>> result = metric.compute()
        >>> result.per_class.tolist(), result.n_valid, result.no_negative
        ([1.0, nan], 1, 1)
    """

    def __init__(
        self,
        num_classes: int,
        *,
        ties: Literal["grouped", "reference"] = "grouped",
        policy: Policy = "drop",
        top_k: int | None = None,
    ) -> None:
        if ties not in ("grouped", "reference"):
            raise ValueError(f"ties must be 'grouped' or 'reference', got {ties!r}")
        if policy not in ("drop", "zero"):
            raise ValueError(f"policy must be 'drop' or 'zero', got {policy!r}")
        super().__init__(num_classes, top_k=top_k)
        self.ties: Literal["grouped", "reference"] = ties
        self.policy: Policy = policy

    def compute(self, *, distributed: bool = True) -> Result:
        """The result over all pairs, from all processes where there are several.

        Every process must call it then; ``distributed=False`` looks at this one's pairs only.
        """
        return result_of(
            self.collect(distributed=distributed),
            self.num_classes,
            ties=self.ties,
            policy=self.policy,
        )


def result_of(
    pairs: Pairs,
    num_classes: int,
    *,
    ties: Literal["grouped", "reference"] = "grouped",
    policy: Policy = "drop",
) -> Result:
    """Average precision of pairs that are already collected."""
    if ties == "reference" and pairs.images is None and len(pairs.scores):
        raise ValueError('ties="reference" needs the images of all pairs')
    grouped = ties == "grouped" or not len(pairs.scores)
    ranking = rank(pairs, num_classes, group_ties=grouped)
    if grouped:
        total, extra = _by_group(ranking), 0.0
    else:
        total, extra = _by_rank(ranking, pairs), _REFERENCE_EPSILON
    positives, negatives = ranking.positives.numpy(), ranking.negatives.numpy()
    values = np.divide(
        total, positives + extra, out=np.full(num_classes, np.nan), where=positives > 0
    )
    no_positive, no_negative = positives == 0, negatives == 0
    if policy == "zero":
        values[no_positive] = 0.0
    else:
        values[no_positive | no_negative] = np.nan
    scored = ~np.isnan(values)
    map_c, map_o = means(values, positives)
    result = Result(
        per_class=values,
        map_c=map_c,
        map_o=map_o,
        n_valid=int(scored.sum()),
        no_label=int((no_positive & no_negative).sum()),
        no_positive=int((no_positive & ~no_negative).sum()),
        no_negative=int((no_negative & ~no_positive).sum()),
        positives=positives,
        negatives=negatives,
    )
    if not result.n_valid or not positives.any():
        warnings.warn(nothing_to_score(result), stacklevel=3)
    return result


def means(per_class: Floats, positives: npt.NDArray[Any]) -> tuple[float, float]:
    """The plain and the positive-weighted mean over the classes that are not NaN."""
    scored = ~np.isnan(per_class)
    values, weights = per_class[scored], positives[scored]
    map_c = float(values.mean()) if len(values) else float("nan")
    total = weights.sum()
    return map_c, float((values * weights).sum() / total) if total else float("nan")


def nothing_to_score(result: Result) -> str:
    """Why there is no number."""
    return (
        f"no class has both a positive and a negative label: {result.no_label} have no label, "
        f"{result.no_positive} no positive, {result.no_negative} no negative"
    )


def cut_in_groups(counts: npt.ArrayLike, parts: int = 5) -> dict[str, Ints]:
    """Classes cut into equal groups by how often they were annotated; G1 has the fewest.

    Example:
        >>> {name: ids.tolist() for name, ids in cut_in_groups([9, 1, 5, 1], parts=2).items()}
        {'G1': [1, 3], 'G2': [2, 0]}
    """
    if parts < 1:
        raise ValueError(f"parts must be at least 1, got {parts}")
    order = np.argsort(np.asarray(counts), kind="stable")
    return {f"G{i}": group for i, group in enumerate(np.array_split(order, parts), 1)}


def _by_group(ranking: Ranking) -> Floats:
    """Sum per class of positives in a group of equal scores times the precision after it."""
    found, classes = ranking.found, ranking.classes
    before = torch.zeros_like(found)
    before[1:] = torch.where(classes[1:] == classes[:-1], found[:-1], 0)
    steps = (found - before) * (found.double() / ranking.rank)
    return _sums(classes, steps, len(ranking.positives))


def _by_rank(ranking: Ranking, pairs: Pairs) -> Floats:
    positive = pairs.positive[ranking.order]
    steps = torch.where(positive, ranking.found.double() / ranking.rank, 0.0)
    return _sums(ranking.classes, steps, len(ranking.positives))


def _sums(classes: torch.Tensor, steps: torch.Tensor, count: int) -> Floats:
    if not len(classes):
        return np.zeros(count)
    summed: Floats = torch.bincount(classes, weights=steps, minlength=count).numpy()
    return summed
