"""Several models' logits as one, mixed by what held-out annotations say of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from torch import Tensor

from partlabel.calibrate.calibration import Calibration, HeldOut
from partlabel.calibrate.rescale import cost, more_often, too_few, within_reach
from partlabel.store import ClassCounts

PARTS = 4
"""Weights are quarters; likelihood is flat near its top, so that no finer steps pay."""


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
    """The mixture of some models that makes held-out annotations most likely.

    Where too few of them were held out to tell, all count the same.

    Args:
        parts: For each model a calibration by :func:`rescaled`, and its logits at the same
            held-out annotations.
        counts: All annotations.
    """
    calibrations, held = [part for part, _ in parts], parts[0][1]
    if len(parts) == 1 or too_few(held):
        return Mixture(calibrations, (1 / len(parts),) * len(parts))
    more = more_often(calibrations[0].share, held, counts)
    odds = [
        part.slope * within_reach(there) + (part.offset + part.shift)[there.classes]
        for part, there in parts
    ]
    choices = _weights(len(parts))
    costs = [cost(np.tensordot(weights, odds, 1) + more, held) for weights in choices]
    return Mixture(calibrations, choices[int(np.argmin(costs))])


def _weights(number: int) -> list[tuple[float, ...]]:
    """All ways to deal the quarters, more of them to the first models before."""
    ways = [each for each in product(range(PARTS, -1, -1), repeat=number) if sum(each) == PARTS]
    return [tuple(part / PARTS for part in each) for each in ways]
