"""How sure a mean average precision is: images drawn again and again, with replacement."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from partlabel.metrics.average_precision import AveragePrecision, Floats, Ints, Policy, means
from partlabel.metrics.ranking import Ranking, rank

_PAIRS_AT_ONCE = 1 << 14  # with the draws of a few samples this stays in the cache
_SAMPLES_AT_ONCE = 16


class Interval(NamedTuple):
    """From here to there."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Bootstrap:
    """Percentile intervals over resampled images, as fractions of 1."""

    map_c: Interval
    map_o: Interval
    low: Floats
    """Per class; NaN where its average precision is never defined."""
    high: Floats
    samples_map_c: Floats
    """The mean of each sample. Two metrics over the same images and seed draw the same samples, so
    their difference, sample by sample, is a paired one."""
    samples_map_o: Floats


def bootstrap(
    metric: AveragePrecision,
    *,
    samples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    distributed: bool = True,
) -> Bootstrap:
    """Confidence intervals of the average precisions, over the images that were evaluated.

    Args:
        metric: Filled with ``images``; equal scores are grouped whatever its ``ties`` say.
        samples: How often to draw as many images as there are, with replacement.
        seed: Same seed, same intervals.
        level: Share of the samples inside.
        distributed: Gather from all processes where there are several.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    pairs = metric.collect(distributed=distributed)
    if pairs.images is None:
        if len(pairs.scores):
            raise ValueError("confidence intervals need the images of all pairs; update(images=)")
        raise ValueError("there is nothing to draw from")
    numbers, images = torch.unique(pairs.images, return_inverse=True)
    ranking = rank(pairs, metric.num_classes)
    drawn = _draws(len(numbers), samples, seed)
    image_of = images[ranking.order].numpy()
    positive = pairs.positive[ranking.order].numpy()
    values = np.full((samples, metric.num_classes), np.nan)
    weights = np.zeros((samples, metric.num_classes), np.int64)

    def work(part: _Stretch) -> None:
        for start in range(0, samples, _SAMPLES_AT_ONCE):
            stop = start + _SAMPLES_AT_ONCE
            found = part.values(drawn[start:stop], metric.policy)
            values[start:stop, part.classes], weights[start:stop, part.classes] = found

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(work, _stretches(ranking, image_of, positive)))
    if metric.policy == "zero":
        values[np.isnan(values)] = 0.0
    both = np.array([means(v, w) for v, w in zip(values, weights, strict=True)])
    tails = ((1 - level) / 2, (1 + level) / 2)
    low, high = _quantiles(values, tails)
    intervals = _quantiles(both, tails)
    return Bootstrap(
        map_c=Interval(float(intervals[0][0]), float(intervals[1][0])),
        map_o=Interval(float(intervals[0][1]), float(intervals[1][1])),
        low=low,
        high=high,
        samples_map_c=both[:, 0],
        samples_map_o=both[:, 1],
    )


def _draws(images: int, samples: int, seed: int) -> npt.NDArray[Any]:
    """How often each image is drawn, (samples, images)."""
    generator = np.random.default_rng(seed)
    drawn = np.empty((samples, images), np.uint8)  # an image drawn 256 times: never in practice
    for row in drawn:
        row[:] = np.bincount(generator.integers(images, size=images), minlength=images)
    return drawn


def _quantiles(values: Floats, at: tuple[float, float]) -> Floats:
    """Quantiles over the samples, per column, of what is not NaN."""
    made = np.full((2, values.shape[1]), np.nan)
    defined = ~np.isnan(values).all(axis=0)
    made[:, defined] = np.nanquantile(values[:, defined], at, axis=0)
    return made


class _Stretch(NamedTuple):
    """The ranked pairs of some classes in a row."""

    classes: Ints
    """Those with a pair; the others have nothing to add."""
    image: npt.NDArray[np.intp]
    """Of each pair."""
    image_of_positive: npt.NDArray[np.intp]
    ends: Ints
    """Where groups of equal scores with a positive in them end, among the pairs."""
    found: Ints
    """How many positives are up to each such end."""
    group_class: Ints
    """Which of the classes each group belongs to."""
    first_group: Ints
    """Where a class begins among the groups."""
    first: Ints
    """Where each class begins among the pairs."""
    first_positive: Ints
    """Where each class begins among the positives."""

    def values(self, drawn: npt.NDArray[Any], policy: Policy) -> tuple[Floats, Ints]:
        """Average precision and positives of each class, for some samples."""
        # With a zero in front, so that [i] is the sum of all before i.
        pairs = _running(drawn, self.image)
        positives = _running(drawn, self.image_of_positive)
        before = pairs.take(self.first, axis=1)
        found_before = positives.take(self.first_positive, axis=1)
        total, total_positive = np.diff(before, axis=1), np.diff(found_before, axis=1)
        found = positives.take(self.found, axis=1)
        ranks = pairs.take(self.ends, axis=1)
        step = np.empty_like(found)
        np.subtract(found[:, 1:], found[:, :-1], out=step[:, 1:])
        new = self.first_group
        if len(self.classes) > 1:  # count within the class
            found -= found_before.take(self.group_class, axis=1)
            ranks -= before.take(self.group_class, axis=1)
        step[:, new] = found[:, new]
        np.maximum(ranks, 1, out=ranks)
        gains = found / ranks
        gains *= step
        summed = np.zeros(total.shape)
        if len(new):
            summed[:, self.group_class[new]] = np.add.reduceat(gains, new, axis=1)
        defined = total_positive > 0
        if policy == "drop":
            defined &= total_positive < total
        return np.where(defined, summed / np.maximum(total_positive, 1), np.nan), total_positive


def _running(drawn: npt.NDArray[Any], images: npt.NDArray[np.intp]) -> npt.NDArray[np.int32]:
    sums = np.zeros((len(drawn), len(images) + 1), np.int32)
    np.cumsum(drawn.take(images, axis=1), axis=1, out=sums[:, 1:], dtype=np.int32)
    return sums


def _stretches(
    ranking: Ranking, image_of: npt.NDArray[np.intp], positive: npt.NDArray[np.bool_]
) -> Iterator[_Stretch]:
    """Whole classes together, so that each stretch has enough to do and fits the cache."""
    counts = (ranking.positives + ranking.negatives).numpy()
    present = np.flatnonzero(counts)
    first = np.concatenate([[0], np.cumsum(counts[present])])
    ends, found_up_to = ranking.ends.numpy() + 1, np.concatenate([[0], np.cumsum(positive)])
    start = 0
    while start < len(present):
        stop = int(np.searchsorted(first, first[start] + _PAIRS_AT_ONCE, side="right")) - 1
        stop = max(stop, start + 1)
        low, high = first[start], first[stop]
        group = ends[np.searchsorted(ends, low, "right") : np.searchsorted(ends, high, "right")]
        group = group[np.diff(found_up_to[group], prepend=found_up_to[low]) > 0]
        here = first[start : stop + 1]
        group_class = np.searchsorted(here, group, side="left") - 1
        yield _Stretch(
            classes=present[start:stop],
            image=image_of[low:high],
            image_of_positive=image_of[low:high][positive[low:high]],
            ends=group - low,
            found=found_up_to[group] - found_up_to[low],
            group_class=group_class,
            first_group=np.flatnonzero(np.diff(group_class, prepend=-1)),
            first=here - low,
            first_positive=found_up_to[here] - found_up_to[low],
        )
        start = stop
