"""Unknown labels taken as absent, with a correction: focal loss, label smoothing, less weight."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor

from partlabel.losses.base import (
    PartialLoss,
    Unknown,
    absent_term,
    choice,
    chosen,
    number,
    present_term,
)


class Focal(PartialLoss):
    """Focal loss (Lin et al., 2017): (1 - q)^gamma (-log q), q the probability of what is so."""

    def __init__(self, *, gamma: float = 2.0, unknown: Unknown = "negative", **base: Any) -> None:
        super().__init__(**base)
        self.gamma = number("gamma", gamma, 0.0)
        choice("unknown", unknown, get_args(Unknown))
        self.unknown = unknown

    def terms(self, logits: Tensor, states: Tensor) -> Tensor:
        term = focal_term(torch.where(states > 0, -logits, logits), self.gamma)
        return term if self.unknown == "negative" else torch.where(states == 0, 0.0, term)


class LabelSmoothing(PartialLoss):
    """AN-LS (Cole et al., 2021): present and unknown labels are believed only to 1 - epsilon.

    Unknown labels count as absent. Verified absent labels are not smoothed: they are verified.
    """

    def __init__(self, *, epsilon: float = 0.1, **base: Any) -> None:
        super().__init__(**base)
        self.epsilon = number("epsilon", epsilon, 0.0, 1.0)

    def terms(self, logits: Tensor, states: Tensor) -> Tensor:
        present, absent = present_term(logits), absent_term(logits)
        mostly, rest = 1 - self.epsilon, self.epsilon
        smooth_present = mostly * present + rest * absent
        return chosen(states, smooth_present, absent, mostly * absent + rest * present)


class WeakAssumeNegative(PartialLoss):
    """WAN (Cole et al., 2021): unknown labels count as absent with weight 1 / (C - 1)."""

    def terms(self, logits: Tensor, states: Tensor) -> Tensor:
        absent = absent_term(logits)
        return chosen(states, present_term(logits), absent, absent / max(logits.shape[1] - 1, 1))


def focal_term(margin: Tensor, gamma: float) -> Tensor:
    """sigma(m)^gamma softplus(m): the focal cost of a label that is wrong by margin m."""
    log_wrong = torch.nn.functional.logsigmoid(margin)
    return torch.exp(gamma * log_wrong) * absent_term(margin)
