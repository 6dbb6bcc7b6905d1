"""What held-out annotations say of a model: how much it knows, and how much of that by heart."""

from __future__ import annotations

import math

import numpy as np

from partlabel.calibrate.calibration import HeldOut, annotated_odds
from partlabel.calibrate.fit import RIDGE, logistic
from partlabel.calibrate.rescale import cost, too_few, within_reach
from partlabel.store import ClassCounts

_MOST = 4.0
_RIDGE = (*RIDGE, 1.0)
"""Of a logit, of what is usual for its class, and of a constant."""


def weight_of_present(shown: float, held: HeldOut) -> float:
    """The weight of a label that is known to be present, from 1 to 4.

    A model that knows labels it was shown far better than others has learnt them by heart; to weigh
    them more teaches nothing. One that knows both alike has not made the most of them: of rare
    classes most of all, whose few present labels stand against thousands of absent ones. So the
    weight is 1 + 3 r^2, where r is the ratio of the mean costs -log p of present labels: those that
    the model was shown over those that were held out. Where few were
    held out, or none was shown, it is 1.

    Args:
        shown: The mean cost of the labels that the model was shown.
        held: Its logits at those that were held out.

    Example:
        >>> there = np.zeros(40), np.zeros(40, np.int64), np.tile([1, -1], 20)
        >>> round(weight_of_present(0.5 * np.log(2).item(), HeldOut(*there)), 2)
        1.75
    """
    if too_few(held) or math.isnan(shown):
        return 1.0
    elsewhere = float(np.logaddexp(0, -held.logits[held.states > 0]).mean())
    ratio = min(shown / elsewhere, 1.0) if elsewhere > 0 else 1.0
    return 1 + (_MOST - 1) * ratio**2


def information(held: HeldOut, counts: ClassCounts) -> float:
    """How much the logits tell of held-out annotations beyond their class, in nats per label.

    Logits may know how often a class is annotated as present, or have one scale for all classes:
    they are helped with it, so that both kinds can be compared. 0 where too few were held out.

    Args:
        held: Logits at annotations that were held out. Classes without a verified negative do not
            count.
        counts: All annotations.

    Example:
        >>> states = np.tile([1, -1], 20)
        >>> classes, counts = np.zeros(40, np.int64), ClassCounts(np.array([99]), np.array([99]))
        >>> [round(information(HeldOut(z * states, classes, states), counts), 2) for z in (9.0, 0)]
        [0.69, 0.0]
    """
    told = (counts.negatives > 0)[held.classes]
    held = HeldOut(held.logits[told], held.classes[told], held.states[told])
    if too_few(held):
        return 0.0
    present, usual = held.states > 0, annotated_odds(counts)[held.classes]
    inputs = np.stack([within_reach(held), usual, np.ones_like(usual)], 1)
    by_class = cost(usual, held)
    return max(by_class - cost(inputs @ logistic(inputs, present, _RIDGE), held), 0) / len(present)
