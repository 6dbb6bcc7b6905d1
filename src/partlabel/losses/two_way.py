"""Two-way multi-label loss (Kobayashi, CVPR 2023): softmax over classes and over images."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor

from partlabel.losses.base import PartialLoss, Unknown, absent_term, choice, number


class TwoWay(PartialLoss):
    """softplus(T_neg LSE_neg(z / T_neg) + T_pos LSE_pos(-z / T_pos)), by image and by class.

    The mean over images that have a positive, plus the mean over classes that have one in the
    batch. Each process computes it over its own images. With reduction="none" the value of an
    image is spread evenly over its classes and that of a class over its images, so that the terms
    add up.

    Args:
        temperature_pos: Of positives.
        temperature_neg: Of negatives.
        unknown: Whether unknown labels count among the negatives.
    """

    batchwise = True

    def __init__(
        self,
        *,
        temperature_pos: float = 4.0,
        temperature_neg: float = 1.0,
        unknown: Unknown = "negative",
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.temperature_pos = number("temperature_pos", temperature_pos, 1e-3)
        self.temperature_neg = number("temperature_neg", temperature_neg, 1e-3)
        choice("unknown", unknown, get_args(Unknown))
        self.unknown = unknown

    def terms(self, logits: Tensor, states: Tensor) -> Tensor:
        images, classes = logits.shape
        present = states > 0
        absent = states <= 0 if self.unknown == "negative" else states < 0
        if not images or not classes:
            return logits * 0.0
        by_image = self._one_way(logits, present, absent, dim=1)
        by_class = self._one_way(logits, present, absent, dim=0)
        return by_image[:, None] * (images / classes) + by_class[None, :]

    def _one_way(self, logits: Tensor, present: Tensor, absent: Tensor, *, dim: int) -> Tensor:
        """The value of each image (dim 1) or class (dim 0), divided by how many have a positive."""
        # Not -inf: a row without any entry would have a gradient of NaN.
        nothing = torch.finfo(logits.dtype).min / 16
        up = self.temperature_pos * torch.logsumexp(
            torch.where(present, -logits / self.temperature_pos, nothing), dim
        )
        down = self.temperature_neg * torch.logsumexp(
            torch.where(absent, logits / self.temperature_neg, nothing), dim
        )
        has = present.any(dim)
        value = torch.where(has, absent_term(up.clamp(min=nothing) + down.clamp(min=nothing)), 0.0)
        return value / has.sum().clamp(min=1).to(value.dtype)
