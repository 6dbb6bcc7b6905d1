"""What held-out annotations say of a model: how much it knows, and how much of that by heart."""

from __future__ import annotations

import math

import numpy as np

from partlabel.calibrate.calibration import HeldOut
from partlabel.calibrate.fit import platt
from partlabel.calibrate.rescale import cost, too_few, within_reach

_MOST = 4.0


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


def information(held: HeldOut) -> float:
    """How much the logits tell of held-out annotations, in nats per label; 0 where they are few.

    Example:
        >>> states = np.tile([1, -1], 20)
        >>> classes = np.zeros(40, np.int64)
        >>> [round(information(HeldOut(z * states, classes, states)), 2) for z in (9.0, 0.0)]
        [0.69, 0.0]
    """
    if too_few(held):
        return 0.0
    present, logits = held.states > 0, within_reach(held)
    slope, offset = platt(logits, present)
    share = float(present.mean())
    entropy = -share * math.log(share) - (1 - share) * math.log1p(-share)
    return entropy - cost(slope * logits + offset, held) / len(present)
