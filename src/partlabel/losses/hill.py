"""Losses robust to missing positives: Hill weighs them down, SPLC relabels them (Zhang et al.)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from partlabel.losses.assume_negative import focal_term
from partlabel.losses.base import PartialLoss, absent_term, chosen, number, whole


class Hill(PartialLoss):
    """Hill (Zhang et al., 2021): an unknown label costs (lambda - p) p^2, flat where p is high.

    Present labels have a focal cost at the logit shifted by -margin; absent labels cross-entropy.

    Args:
        lambda_: Where the cost of an unknown label turns.
        margin: Shift of the logit of present labels.
        gamma: Focusing of present labels.
    """

    def __init__(
        self, *, lambda_: float = 1.5, margin: float = 1.0, gamma: float = 2.0, **base: Any
    ) -> None:
        super().__init__(**base)
        self.lambda_ = number("lambda_", lambda_, 1.0)
        self.margin = number("margin", margin, 0.0)
        self.gamma = number("gamma", gamma, 0.0)

    def terms(self, logits: Tensor, states: Tensor) -> Tensor:
        p = logits.sigmoid()
        present = focal_term(self.margin - logits, self.gamma)
        return chosen(states, present, absent_term(logits), (self.lambda_ - p) * p * p)


class SelfPacedCorrection(PartialLoss):
    """SPLC (Zhang et al., 2021): from epoch ``start`` unknown labels with high p are present.

    Present labels have a focal cost at the logit shifted by -margin, relabelled ones at the logit
    itself, other unknown labels the focal cost of an absent one, verified absent cross-entropy.
    """

    def __init__(
        self,
        *,
        threshold: float = 0.6,
        margin: float = 1.0,
        gamma: float = 2.0,
        start: int = 1,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.threshold = number("threshold", threshold, 0.0, 1.0)
        self.margin = number("margin", margin, 0.0)
        self.gamma = number("gamma", gamma, 0.0)
        self.start = whole("start", start, 0)

    def forward(self, logits: Tensor, states: Tensor, *, epoch: int = 0) -> Tensor:
        """Compute the loss; ``epoch`` counts from 0."""
        logits = self.checked(logits, states)
        unknown = focal_term(logits, self.gamma)
        if epoch >= self.start:
            likely = logits.detach().sigmoid() > self.threshold
            unknown = torch.where(likely, focal_term(-logits, self.gamma), unknown)
        present = focal_term(self.margin - logits, self.gamma)
        return self.reduced(chosen(states, present, absent_term(logits), unknown))
