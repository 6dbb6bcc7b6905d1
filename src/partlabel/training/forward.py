"""Bytes in, logits out: the part of a step that DDP, a compiler or CUDA graphs see."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from partlabel.model import Classifier


class Forward(nn.Module):
    """Normalises images and gives the logits of a model's heads."""

    def __init__(self, model: Classifier, *, channels_last: bool) -> None:
        super().__init__()
        self.model = model
        self.channels_last = channels_last

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits of uint8 images, and those of the auxiliary head where there is one."""
        normalised = self.model.normalise(images)
        if self.channels_last:
            normalised = normalised.contiguous(memory_format=torch.channels_last)
        if self.model.auxiliary is not None:
            logits, auxiliary = self.model.both(normalised)
            return logits, auxiliary
        return self.model(normalised), None
