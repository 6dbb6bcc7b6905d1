"""Losses that know how many positives to expect per image: EPR and ROLE (Cole et al., 2021)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from partlabel.losses.base import (
    PartialLoss,
    absent_term,
    chosen,
    number,
    present_term,
    rows_of,
    whole,
)

_SURE = math.log(0.995 / 0.005)
_START = math.log(0.6 / 0.4)


class ExpectedPositive(PartialLoss):
    """EPR: known labels, and a penalty when the predicted positives per image are not as expected.

    The penalty is (mean over images of the sum of p, minus expected)^2 / C, over the images of one
    process. Cole et al. divide by C^2 beside a mean over classes; this is the same for a sum.
    """

    batchwise = True

    def __init__(self, *, expected: float = 2.9, **base: Any) -> None:
        super().__init__(**base)
        self.expected = number("expected", expected, 0.0)

    def terms(self, logits: Tensor, states: Tensor) -> Tensor:
        known = chosen(states, present_term(logits), absent_term(logits), 0.0)
        return known + count_penalty(logits, self.expected)


class Role(PartialLoss):
    """ROLE: a learnt estimate of every label, trained beside the model; each teaches the other.

    The estimate is a table images x classes of logits, a parameter of this loss (give it a
    learning rate ten times the model's). Known labels are fixed in it. It does not scale: see
    max_state_gb.

    Args:
        num_images: Rows of the table; ``index`` of a call says which are in the batch.
        num_classes: Columns of the table.
        expected: Positives to expect per image.
        max_state_gb: Refuse a larger table.
        seed: Of the first estimate of unknown labels, uniform within p = 0.4 to 0.6.
    """

    batchwise = True

    def __init__(
        self,
        *,
        num_images: int,
        num_classes: int,
        expected: float = 2.9,
        max_state_gb: float = 4.0,
        seed: int = 0,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        whole("num_images", num_images, 1)
        whole("num_classes", num_classes, 1)
        self.expected = number("expected", expected, 0.0)
        number("max_state_gb", max_state_gb, 0.0)
        size = num_images * num_classes * 4 / 1e9
        if size > max_state_gb:
            raise ValueError(
                f"role needs {size:.1f} GB for {num_images} x {num_classes} estimates; "
                f"max_state_gb is {max_state_gb:g}"
            )
        generator = torch.Generator().manual_seed(seed)
        start = torch.rand(num_images, num_classes, generator=generator)
        self.estimates = nn.Parameter((2 * start - 1) * _START)

    def forward(self, logits: Tensor, states: Tensor, *, index: Tensor | None = None) -> Tensor:
        """Compute the loss of the images whose rows are ``index`` (B,)."""
        logits = self.checked(logits, states)
        rows = rows_of(index, logits, self.estimates.shape[1])
        learnt = self.estimates[rows].to(logits.dtype)
        guess = chosen(states, learnt.new_full((), _SURE), learnt.new_full((), -_SURE), learnt)
        both = torch.zeros_like(logits)
        for own, other in ((logits, guess), (guess, logits)):
            known = chosen(states, present_term(own), absent_term(own), 0.0)
            target = other.detach().sigmoid()
            agree = target * present_term(own) + (1 - target) * absent_term(own)
            both = both + 0.5 * (known + agree + count_penalty(own, self.expected))
        return self.reduced(both)


def count_penalty(logits: Tensor, expected: float) -> Tensor:
    """The penalty of EPR, spread evenly over the classes: a scalar to add to each term."""
    images, classes = max(logits.shape[0], 1), max(logits.shape[1], 1)
    found = logits.sigmoid().sum() / images
    return (found - expected).square() / classes**2
