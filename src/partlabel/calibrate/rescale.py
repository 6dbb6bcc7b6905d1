"""A calibration carried over to another model's logits: the shares stay, the rest is new."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from partlabel.calibrate.calibration import Calibration, HeldOut, annotated_odds
from partlabel.calibrate.fit import LEAST, log_odds, matching
from partlabel.histogram import REACH, Floats, LogitHistogram
from partlabel.store import ClassCounts

_STEEPEST = 3.0  # focusing with gamma 4 asked for up to 2.6
_FEW = 20  # held-out labels of a kind with which no slope is looked for
_LOOKS = 16  # which leaves 0.1 % of the range
_COARSE = 8  # bins taken together while looking
_GOLDEN = (math.sqrt(5) - 1) / 2


def rescaled(
    before: Calibration, seen: LogitHistogram, held: HeldOut, counts: ClassCounts
) -> Calibration:
    """The calibration for a model that was trained on posteriors.

    Such a model answers for unknown labels, not for annotated ones, and its focusing makes it more
    or less sure than it should be. So for each slope every class is shifted until the mean
    posterior of its unknown labels is the share that there was before; an annotated label is more
    often present than that by the odds of being annotated. The slope is the one at which held-out
    annotations are most likely.

    Args:
        before: What the first stage said.
        seen: The model's logits at unknown labels.
        held: Its logits at annotated labels that it was not shown.
        counts: All annotations.
    """
    slope = 1.0 if too_few(held) else _best_slope(before, seen, held, counts)
    logits, weight = seen.columns()
    shift = matching(slope * logits, weight, before.share)
    return replace(before, slope=slope, offset=0.0, shift=shift)


def too_few(held: HeldOut) -> bool:
    """Whether held-out annotations are too few to compare anything by."""
    present = held.states > 0
    return bool(min(present.sum(), (~present).sum()) < _FEW)


def more_often(share: Floats, held: HeldOut, counts: ClassCounts) -> Floats:
    """By how much the log odds of held-out annotations are above those of unknown labels.

    Args:
        share: (C,) the share of the unknown labels of each class that are present.
        held: Annotations that were held out.
        counts: All annotations.
    """
    more: Floats = annotated_odds(counts) - log_odds(np.clip(share, LEAST, 1 - LEAST))
    return np.asarray(more[held.classes])


def cost(odds: Floats, held: HeldOut) -> float:
    """How unlikely held-out annotations are with these log odds, in nats."""
    return float(np.logaddexp(0, -held.states.astype(np.float64) * odds).sum())


def within_reach(held: HeldOut) -> Floats:
    """The logits, as far as they count."""
    return np.clip(held.logits, -REACH, REACH)


def _best_slope(
    before: Calibration, seen: LogitHistogram, held: HeldOut, counts: ClassCounts
) -> float:
    logits, weight = _coarse(seen)
    more, z = more_often(before.share, held, counts), within_reach(held)

    def cost_at(steepness: float) -> float:
        slope = math.exp(steepness)
        shift = matching(slope * logits, weight, before.share)[held.classes]
        return cost(slope * z + shift + more, held)

    low, high = -math.log(_STEEPEST), math.log(_STEEPEST)
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = cost_at(left), cost_at(right)
    for _ in range(_LOOKS - 2):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = cost_at(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = cost_at(right)
    return math.exp((low + high) / 2)


def _coarse(seen: LogitHistogram) -> tuple[Floats, Floats]:
    """The columns of a histogram with several bins taken together."""
    logits, weight = seen.columns()
    shape = (len(logits), -1, _COARSE)
    whole = weight.reshape(shape).sum(2)
    mean = (logits * weight).reshape(shape).sum(2) / np.where(whole > 0, whole, 1.0)
    return mean, whole
