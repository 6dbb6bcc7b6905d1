"""Losses that can be computed in one go instead of operation by operation."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from partlabel.losses.base import PartialLoss, choice
from partlabel.losses.recipe import Recipe

Backend = Literal["auto", "fused", "eager"]

# Below this many labels both ways take far less than a millisecond on a CPU.
_WORTH_IT = 2**15
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# What a subclass may change of how a loss is computed, which no kernel would know of.
_STEPS = ("terms", "reduced", "widened", "unknown_weight", "ignored", "likely")
_PROVEN: dict[str, str] = {}
"""By device: why Triton does not work there; empty where it did once."""


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
        self._changed = _changed_after_recipe(type(self))

    def recipe(self) -> Recipe:
        """What a label costs. Whoever changes how it is computed changes this too, or is eager."""
        raise TypeError(f"{type(self).__name__} does not say what its recipe is")

    def class_table(self, classes: int) -> Tensor | None:
        """(C,) float32, the weights of unknown labels by class; None where all are 1."""
        return None

    def forward(self, logits: Tensor, states: Tensor) -> Tensor:
        self.check(logits, states)
        reason = self.why_eager(logits)
        if reason:
            if self.backend == "fused" or (logits.is_cuda and reason == _why_no_triton(logits)):
                self._warn(reason)
            return self._eager(logits, states)
        if logits.is_cuda and not torch.compiler.is_compiling():
            return self._tried_on_gpu(logits, states)
        return self._fused(logits, states)

    def why_eager(self, logits: Tensor) -> str:
        """Why the fused way is not taken for such logits; empty where it is.

        On a CPU it also depends on the states: where many are known it is eager.
        """
        if self.backend == "eager":
            return 'backend is "eager"'
        if self._changed:
            return f"{type(self).__name__} has its own {self._changed} and no recipe for it"
        if self.reduction == "none":
            return 'reduction is "none"'
        if self.scope == "batch":
            return 'scope is "batch"'
        if logits.dtype not in _DTYPES:
            return f"logits are {str(logits.dtype).removeprefix('torch.')}"
        if logits.numel() == 0:
            return "there are no labels"
        return self._why_not_here(logits)

    def _why_not_here(self, logits: Tensor) -> str:
        compiling = torch.compiler.is_compiling()
        if not compiling and _transformed(logits):
            return "logits are not plain tensors"
        if logits.is_cuda:
            return _why_no_triton(logits)
        if logits.device.type != "cpu":
            return f"logits are on {logits.device.type}"
        if compiling:
            return "torch.compile fuses on a CPU"
        small = self.backend == "auto" and logits.numel() < _WORTH_IT
        return f"there are fewer than {_WORTH_IT} labels" if small else ""

    def _fused(self, logits: Tensor, states: Tensor) -> Tensor:
        if logits.is_cuda:  # only here is Triton needed, and only here is it sure to be there
            from partlabel.losses._fused import fused
        else:
            from partlabel.losses._inplace import fused
        scale = 1 / logits.shape[0] if self.reduction == "mean" else 1.0
        table = self.class_table(logits.shape[1])
        return fused(logits, states, self.recipe(), table, scale, self._eager)

    def _tried_on_gpu(self, logits: Tensor, states: Tensor) -> Tensor:
        """As fused; where that fails the first time on a device, it is eager from then on."""
        device = str(logits.device)
        try:
            value = self._fused(logits, states)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # no compiler, a Triton of another age: many things can be
            if self.backend == "fused" or device in _PROVEN:
                raise
            _PROVEN[device] = f"Triton does not work here: {error}".splitlines()[0]
            self._warn(_PROVEN[device])
            return self._eager(logits, states)
        _PROVEN[device] = ""
        return value

    def _warn(self, reason: str) -> None:
        if not self._warned and not torch.compiler.is_compiling():
            self._warned = True
            warnings.warn(f"the fused loss is not used: {reason}", stacklevel=5)

    def _eager(self, logits: Tensor, states: Tensor) -> Tensor:
        return self.reduced(self.terms(self.widened(logits), states))


def _changed_after_recipe(kind: type) -> str:
    """Which step of the computation a class changes that does not say its recipe anew."""
    for parent in kind.__mro__:
        if "recipe" in vars(parent):
            return ""
        changed = [name for name in _STEPS if name in vars(parent)]
        if changed:
            return changed[0]
    return ""


def _transformed(logits: Tensor) -> bool:
    """Whether something other than plain autograd is at work (torch.func, fake tensors)."""
    if type(logits) not in (Tensor, nn.Parameter) or torch.autograd.forward_ad._current_level >= 0:
        return True
    return bool(torch._C._are_functorch_transforms_active())


def _why_no_triton(logits: Tensor) -> str:
    if not _TRITON:
        return "Triton is not installed"
    if torch.version.hip is not None:
        return "the kernels are for NVIDIA"
    return _PROVEN.get(str(logits.device), "")


def _found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # a stand-in that somebody put there
        return False


_TRITON = _found("triton")  # and not imported: that takes its time
