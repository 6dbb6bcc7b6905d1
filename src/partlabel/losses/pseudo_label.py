"""Unknown labels that the model is sure of are taken at its word; the others are ignored."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from partlabel.losses.base import PartialLoss, absent_term, chosen, number, present_term, whole


class PseudoLabel(PartialLoss):
    """From epoch ``start`` unknown labels with high or low p count as present or absent."""

    def __init__(
        self,
        *,
        present_above: float = 0.95,
        absent_below: float = 0.05,
        start: int = 1,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.present_above = number("present_above", present_above, 0.0, 1.0)
        self.absent_below = number("absent_below", absent_below, 0.0, 1.0)
        if self.absent_below >= self.present_above:
            raise ValueError(
                f"absent_below must be below present_above ({present_above}), got {absent_below}"
            )
        self.start = whole("start", start, 0)

    def forward(self, logits: Tensor, states: Tensor, *, epoch: int = 0) -> Tensor:
        """Compute the loss; ``epoch`` counts from 0."""
        logits = self.checked(logits, states)
        present, absent = present_term(logits), absent_term(logits)
        unknown: Tensor | float = 0.0
        if epoch >= self.start:
            p = logits.detach().sigmoid()
            sure_absent = torch.where(p <= self.absent_below, absent, 0.0)
            unknown = torch.where(p >= self.present_above, present, sure_absent)
        return self.reduced(chosen(states, present, absent, unknown))
