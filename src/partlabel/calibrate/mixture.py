"""Two models' logits as one, mixed by what held-out annotations say of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from partlabel.calibrate.calibration import Calibration, HeldOut
from partlabel.calibrate.rescale import cost, more_often, too_few, within_reach
from partlabel.store import ClassCounts

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the second of two models; likelihood is flat near its top, so that no finer steps pay."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """The weighted mean of what models say in log odds.

    Example:
        >>> import torch
        >>> flat = np.zeros(1)
        >>> plain = Calibration(1.0, 0.0, flat, flat, flat, random=True, capped=False)
        >>> Mixture((plain, plain), (0.25, 0.75))([torch.tensor([[4.0]]), torch.tensor([[0.0]])])
        tensor([[1.]])
    """

    parts: Sequence[Calibration]
    weights: Sequence[float]

    def __call__(self, logits: Sequence[Tensor]) -> Tensor:
        """The log odds (B, C) by the logits (B, C) of each model."""
        found = [
            weight * part.log_odds(each)
            for part, weight, each in zip(self.parts, self.weights, logits, strict=True)
            if weight
        ]
        return sum(found[1:], found[0])


def mixture(parts: Sequence[tuple[Calibration, HeldOut]], counts: ClassCounts) -> Mixture:
    """The mixture of one model or two that makes held-out annotations most likely.

    Where too few of them were held out to tell, both count the same.

    Args:
        parts: For each model a calibration by :func:`rescaled`, and its logits at the same
            held-out annotations.
        counts: All annotations.
    """
    calibrations, held = [part for part, _ in parts], parts[0][1]
    if len(parts) == 1:
        return Mixture(calibrations, (1.0,))
    if too_few(held):
        return Mixture(calibrations, (0.5, 0.5))
    more = more_often(calibrations[0].share, held, counts)
    one, two = (
        part.slope * within_reach(there) + (part.offset + part.shift)[there.classes]
        for part, there in parts
    )
    costs = [cost((1 - weight) * one + weight * two + more, held) for weight in WEIGHTS]
    best = WEIGHTS[int(np.argmin(costs))]
    return Mixture(calibrations, (1 - best, best))
