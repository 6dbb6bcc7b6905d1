"""How much labels that are known to be present should weigh beside expected ones."""

from __future__ import annotations

import math

import numpy as np

from partlabel.calibrate.calibration import HeldOut
from partlabel.calibrate.rescale import too_few

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
