"""Parts of the fused losses' kernels, callable by themselves; imports Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from partlabel.losses import _kernels


@triton.jit
def _log1p(source, target, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    places = tl.arange(0, SIZE)
    tl.store(target + places, _kernels._log1p(tl.load(source + places)))


def log1p(values: Tensor) -> Tensor:
    result = torch.empty_like(values)
    _log1p[(1,)](values, result, SIZE=values.numel())
    return result
