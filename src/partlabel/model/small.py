"""A backbone for small pictures on a CPU: the demo's, and for trying things out.

Timm's own are made for large pictures and GPUs: at 64 pixels the smallest keep 2 x 2 places, and
small things are gone before they are seen.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from partlabel.vision import load

__all__ = ["partlabel_small", "register"]

_STEM, _WIDTHS = 16, (32, 64, 128)


class _Block(nn.Module):
    """Two convolutions to half the size, beside a shorter way."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, 2, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.shorter = nn.Conv2d(before, after, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(after)
        self.pool = nn.AvgPool2d(2, ceil_mode=True)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu_(self.norm1(self.first(x)))
        inner = self.norm2(self.second(inner))
        return torch.relu_(inner + self.norm3(self.shorter(self.pool(x))))


class _Small(nn.Module):
    """Three blocks; features are their means and maxima, since small things fill a small place."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, _STEM, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(_STEM)
        widths = (_STEM, *_WIDTHS)
        self.blocks = nn.Sequential(*(_Block(*each) for each in pairwise(widths)))
        self.fc = nn.Linear(2 * widths[-1], num_classes) if num_classes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        found = self.blocks(torch.relu_(self.norm(self.stem(x))))
        features: Tensor = self.fc(torch.cat([found.mean((2, 3)), found.amax((2, 3))], 1))
        return features


def partlabel_small(pretrained: bool = False, *, num_classes: int = 1000, **more: Any) -> nn.Module:
    """Make the backbone, as timm calls it; there are no pretrained weights."""
    if pretrained:
        raise RuntimeError("there are no pretrained weights of partlabel_small")
    return _Small(num_classes)


def register() -> None:
    """Let timm know the backbone by its name."""
    timm = load("timm")
    if not timm.is_model("partlabel_small"):
        timm.models.register_model(partlabel_small)
