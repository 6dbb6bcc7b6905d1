"""Losses that can be computed in one go instead of operation by operation."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from partlabel.losses.base import PartialLoss, choice
from partlabel.losses.recipe import Recipe

Backend = Literal["auto", "fused", "eager"]

# Below this many labels both ways take far less than a millisecond on a CPU.
_WORTH_IT = 2**15
# Found once, and not imported: that takes its time and is of no use on a CPU.
_TRITON = importlib.util.find_spec("triton") is not None
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Fusable(PartialLoss):
    """A loss of the asymmetric family.

    Args:
        backend: "fused" computes value and gradient by Triton kernels on a GPU and with few passes
            over memory on a CPU; "eager" by PyTorch's operations one by one; "auto" is "fused"
            where that can be done and is worth it. All give the same up to float32 rounding.
        base: What PartialLoss takes.
    """

    scope = "sample"

    def __init__(self, *, backend: Backend = "auto", **base: Any) -> None:
        super().__init__(**base)
        choice("backend", backend, get_args(Backend))
        self.backend = backend
        self._warned = False

    def recipe(self) -> Recipe:
        """What a label costs."""
        raise TypeError(f"{type(self).__name__} does not say what its recipe is")

    def class_table(self, classes: int) -> Tensor | None:
        """(C,) float32, the weights of unknown labels by class; None where all are 1."""
        return None

    def forward(self, logits: Tensor, states: Tensor) -> Tensor:
        self.check(logits, states)
        reason = self.why_eager(logits)
        if reason:
            self._warn(reason, logits)
            return self._eager(logits, states)
        if logits.is_cuda:  # only here is Triton needed, and only here is it sure to be there
            from partlabel.losses._fused import fused
        else:
            from partlabel.losses._inplace import fused
        scale = 1 / logits.shape[0] if self.reduction == "mean" else 1.0
        table = self.class_table(logits.shape[1])
        return fused(logits, states, self.recipe(), table, scale, self._eager)

    def why_eager(self, logits: Tensor) -> str:
        """Why the fused way is not taken for such logits; empty where it is."""
        if self.backend == "eager":
            return 'backend is "eager"'
        if self.reduction == "none":
            return 'reduction is "none"'
        if self.scope == "batch":
            return 'scope is "batch"'
        if logits.dtype not in _DTYPES:
            return f"logits are {str(logits.dtype).removeprefix('torch.')}"
        if logits.numel() == 0:
            return "there are no labels"
        return self._why_not_on(logits)

    def _why_not_on(self, logits: Tensor) -> str:
        if logits.is_cuda:
            return "" if _TRITON else "Triton is not installed"
        if logits.device.type != "cpu":
            return f"logits are on {logits.device.type}"
        if torch.compiler.is_compiling():
            return "torch.compile fuses on a CPU"
        small = self.backend == "auto" and logits.numel() < _WORTH_IT
        return f"there are fewer than {_WORTH_IT} labels" if small else ""

    def _warn(self, reason: str, logits: Tensor) -> None:
        wanted = self.backend == "fused" or (logits.is_cuda and "Triton" in reason)
        if wanted and not self._warned and not torch.compiler.is_compiling():
            self._warned = True
            warnings.warn(f"the fused loss is not used: {reason}", stacklevel=3)

    def _eager(self, logits: Tensor, states: Tensor) -> Tensor:
        return self.reduced(self.terms(self.widened(logits), states))
