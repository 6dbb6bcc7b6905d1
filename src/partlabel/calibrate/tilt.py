"""How many unknown labels of a class are present, by scores that know no label by heart.

Three samples of scores are there for each class: of labels known to be present, of labels known to
be absent, and of unknown ones, which are a mixture of both. Nothing is assumed of how the scores of
absent labels lie; those of present ones have exp(a + b t) times their density at score t. Where
scores are in the same units, the slope b is about the same for all classes, so that fifty labels of
a class are enough: slopes are drawn from a normal distribution, log odds of shares from Student's,
and both are found from all classes (empirical Bayes).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from partlabel.calibrate.fit import log_odds, sigmoid
from partlabel.histogram import Floats, LogitHistogram

_ODDS = np.linspace(-11, 5, 65)
"""Log odds of a share, from 0.00002 to 0.993."""
_SLOPE, _SPREAD, _NARROWEST = 1.5, 0.5, 0.1
"""Mean and deviation of the slopes to begin with, and the smallest deviation."""
_ROUNDS, _STEPS, _POOLS = 6, 25, 50
_FREEDOM = 3
_ENOUGH = 256
"""Classes that tell how slopes are distributed."""
_COARSE = 4
"""Bins taken together."""
_FLAT = 1e-9
"""Least determinant of a curvature."""
_FAR = 40.0
"""Log ratios of densities beyond which nothing changes."""


class Samples(NamedTuple):
    """Scores at labels of each state, of all classes."""

    present: LogitHistogram
    absent: LogitHistogram
    unknown: LogitHistogram


def share_present(samples: Samples, which: npt.NDArray[np.bool_]) -> Floats:
    """The share of the unknown labels of some classes that are present.

    Args:
        samples: The score of a present label must not know that it is one.
        which: (C,) the classes; each has present and unknown labels.
    """
    classes = _classes(samples, which)
    few = min(len(classes), _ENOUGH)
    some = [classes[i] for i in np.linspace(0, len(classes) - 1, few, dtype=np.int64)]
    slope, spread = _SLOPE, _SPREAD
    for _ in range(_ROUNDS):
        profiles = [_profile(each, slope, spread) for each in some]
        value, slopes, unsure = (np.array(part) for part in zip(*profiles, strict=True))
        weight = _pooled(value)
        mean = (weight * slopes).sum(1)
        variance = (weight * (unsure + (slopes - mean[:, None]) ** 2)).sum(1)
        slope = float(mean.mean())
        spread = max(float(np.sqrt((variance + (mean - slope) ** 2).mean())), _NARROWEST)
    value = np.array([_profile(each, slope, spread)[0] for each in classes])
    return sigmoid(_pooled(value) @ _ODDS)


def _pooled(likelihood: Floats) -> Floats:
    """(C, grid) how probable each share is for each class, given how those of all are distributed.

    By Student's t with three degrees of freedom, since a few classes are in half of the images.
    """
    middle, width = 0.0, 3.0
    for _ in range(_POOLS):
        far = ((_ODDS - middle) / width) ** 2 / _FREEDOM
        log_posterior = likelihood - (_FREEDOM + 1) / 2 * np.log1p(far)
        weight: Floats = np.exp(log_posterior - log_posterior.max(1, keepdims=True))
        weight /= weight.sum(1, keepdims=True)
        near = weight * (1 + 1 / _FREEDOM) / (1 + far)
        middle = float((near @ _ODDS).sum() / near.sum())
        width = float(np.sqrt((near @ (_ODDS - middle) ** 2).mean()))
        width = max(width, float(_ODDS[1] - _ODDS[0]))
    return weight


class _Class(NamedTuple):
    """The samples of one class: scores, and how many labels of each state have them."""

    scores: Floats
    present: Floats
    absent: Floats
    unknown: Floats


def _classes(samples: Samples, which: npt.NDArray[np.bool_]) -> list[_Class]:
    counts = [_coarse(each.counts)[which] for each in samples]
    sums = [_coarse(each.sums)[which] for each in samples]
    every = sum(counts[1:], counts[0])
    scores, there = sum(sums[1:], sums[0]) / np.maximum(every, 1), every > 0
    return [
        _Class(scores[i, here], *(each[i, here] for each in counts)) for i, here in enumerate(there)
    ]


def _coarse(columns: Tensor) -> Floats:
    """Some bins taken together."""
    return np.asarray(columns.cpu().double().view(len(columns), -1, _COARSE).sum(2).numpy())


def _profile(of: _Class, slope: float, spread: float) -> tuple[Floats, Floats, Floats]:
    """For each share of the grid the largest log likelihood, the slope there, and its variance.

    The likelihood is Qin's for biased samples. The density of absent labels is whatever makes all
    scores most likely together: at a score that every of k + m + n labels have it is every / (k r +
    m + n (s r + 1 - s)), for k present, m absent and n unknown ones, of which a share s is present,
    and the ratio r = exp(a + b t).
    """
    share, t = sigmoid(_ODDS), of.scores
    k, m, n = of.present.sum(), of.absent.sum(), of.unknown.sum()
    every = of.present + of.absent + of.unknown
    tilted, plain = np.log(k + n * share), np.log(m + n * (1 - share))

    def at(a: Floats, b: Floats) -> tuple[Floats, Floats]:
        line = np.clip(a[:, None] + b[:, None] * t, -_FAR, _FAR)
        mixed = np.log(share[:, None] * np.exp(line) + 1 - share[:, None])
        value = line @ of.present + mixed @ of.unknown
        value -= np.logaddexp(tilted[:, None] + line, plain[:, None]) @ every
        return line, value - 0.5 * ((b - slope) / spread) ** 2

    a, b = np.full(len(share), -0.5 * slope**2), np.full(len(share), slope)
    line, value = at(a, b)
    for _ in range(_STEPS):
        q = sigmoid(line + log_odds(share)[:, None])  # that an unknown label is present
        p = sigmoid(line + (tilted - plain)[:, None])  # that any label is
        error = of.present + of.unknown * q - every * p
        gradient = error.sum(1), error @ t - (b - slope) / spread**2
        whole = every * p * (1 - p)
        # Newton's step where it leads up; else the one that takes it as known which unknown labels
        # are present, which does where scores do not part present and absent ones altogether.
        moved = np.zeros(len(share), np.bool_)
        for curved in (whole - of.unknown * q * (1 - q), whole):
            da, db = _solved(_curvature(curved, t, spread), gradient)
            new_line, new_value = at(a + da, b + db)
            better = ~moved & (new_value > value)
            a, b = np.where(better, a + da, a), np.where(better, b + db, b)
            line = np.where(better[:, None], new_line, line)
            value = np.where(better, new_value, value)
            moved |= better
        if not moved.any():
            break
    # As if it were known which unknown labels are present. In truth slopes are less sure, and would
    # be drawn together less; shares by that were now a little better, now a little worse.
    aa, ab, bb = _curvature(whole, t, spread)
    return value, b, aa / np.maximum(aa * bb - ab**2, _FLAT)


def _curvature(curved: Floats, t: Floats, spread: float) -> tuple[Floats, Floats, Floats]:
    """Of the objective in intercept and slope, turned over."""
    return curved.sum(1), curved @ t, curved @ t**2 + spread**-2


def _solved(
    curvature: tuple[Floats, Floats, Floats], gradient: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """The steps of intercept and slope; none where the objective is not concave."""
    (aa, ab, bb), (ga, gb) = curvature, gradient
    det = aa * bb - ab**2
    good = (aa > 0) & (det > _FLAT)
    scale = np.where(good, 1 / np.where(good, det, 1.0), 0.0)
    return (bb * ga - ab * gb) * scale, (aa * gb - ab * ga) * scale
