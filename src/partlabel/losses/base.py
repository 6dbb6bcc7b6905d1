"""What every loss promises, and the pieces they are made of.

A loss is called with ``logits`` (B, C) of any float dtype and ``states`` int8 (B, C) on the same
device: +1 present, -1 verified absent, 0 unknown. It computes in float32 (float64 stays), has a
finite value and gradient for every finite logit, and never waits for the device.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

Reduction = Literal["mean", "sum", "none"]
Unknown = Literal["ignore", "negative"]

# softplus(x) is taken as x beyond this: at 20, torch's default, float64 would still see the step.
_EXACT = 40


class PartialLoss(nn.Module):
    """A loss over labels of which most are unknown.

    Args:
        reduction: "mean" is the mean over images of the sum over classes, so that it does not
            depend on how a batch is cut among processes; "sum" adds the images up, as the paper's
            code does; "none" gives the terms (B, C).
        debug: Check the values of states in every call (waits for the device).
    """

    batchwise = False
    """True where the loss looks across images, so that cutting a batch changes it."""
    per_process = False
    """True where each process keeps a state of its own, which a checkpoint must have of all."""

    def __init__(self, *, reduction: Reduction = "mean", debug: bool = False) -> None:
        super().__init__()
        choice("reduction", reduction, get_args(Reduction))
        self.reduction = reduction
        self.debug = switch("debug", debug)

    def forward(self, logits: Tensor, states: Tensor) -> Tensor:
        """Compute the loss.

        Args:
            logits: (B, C), any float dtype.
            states: int8 (B, C): +1 present, -1 verified absent, 0 unknown.
        """
        return self.reduced(self.terms(self.checked(logits, states), states))

    def terms(self, logits: Tensor, states: Tensor) -> Tensor:
        """The terms (B, C) of the loss, from checked logits."""
        raise TypeError(f"{type(self).__name__} does not say what its terms are")

    def checked(self, logits: Tensor, states: Tensor) -> Tensor:
        """Check shapes and types, and give the logits in at least float32."""
        self.check(logits, states)
        return self.widened(logits)

    def check(self, logits: Tensor, states: Tensor) -> None:
        """Check shapes and types."""
        if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.ndim != 2:
            raise ValueError(f"logits must be a float tensor (B, C), got {described(logits)}")
        if not isinstance(states, Tensor) or states.dtype != torch.int8:
            fix = "convert labels with partlabel.to_states"
            raise ValueError(f"states must be an int8 tensor, got {described(states)}; {fix}")
        if states.shape != logits.shape:
            raise ValueError(
                f"states must have the shape of logits, {tuple(logits.shape)}, "
                f"got {tuple(states.shape)}"
            )
        if states.device != logits.device:
            raise ValueError(f"states must be on {logits.device} like logits, got {states.device}")
        if self.debug and bool(((states < -1) | (states > 1)).any()):
            raise ValueError("states must be +1, 0 or -1, got others; see partlabel.to_states")

    @staticmethod
    def widened(logits: Tensor) -> Tensor:
        """Logits in at least float32."""
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def reduced(self, terms: Tensor) -> Tensor:
        """Reduce terms (B, C) as the loss was told to."""
        if self.reduction == "none":
            return terms
        total = terms.sum()
        return total / max(terms.shape[0], 1) if self.reduction == "mean" else total

    def end_epoch(self) -> None:
        """Share what was learnt about single images in this epoch with the other processes.

        A trainer calls it on all processes; images change hands between epochs.
        """

    def extra_repr(self) -> str:
        """Show the settings."""
        hidden = {"training", "reduction", "debug"}
        shown = [f"{k}={v!r}" for k, v in vars(self).items() if k[0] != "_" and k not in hidden]
        return ", ".join(shown)


def present_term(logits: Tensor) -> Tensor:
    """-log p: what a label costs that is present."""
    return softplus(-logits, threshold=_EXACT)


def absent_term(logits: Tensor) -> Tensor:
    """-log(1 - p): what a label costs that is absent."""
    return softplus(logits, threshold=_EXACT)


def margin_of(logits: Tensor, present: Tensor) -> Tensor:
    """The logit of the wrong answer: a present label at z costs what an absent one costs at -z.

    A product with +-1, which is exact, has one pass backward where choosing between z and -z has
    four.
    """
    return logits * torch.where(present, -1.0, 1.0)


def chosen(states: Tensor, present: Tensor, absent: Tensor, unknown: Tensor | float) -> Tensor:
    """For each label the term of its state."""
    return torch.where(states > 0, present, torch.where(states < 0, absent, unknown))


def power(base: Tensor, exponent: float) -> Tensor:
    """Raise to a power; whole exponents by multiplying, which is several times faster."""
    if exponent == 0:
        return torch.ones_like(base)
    if exponent not in _BY_MULTIPLYING:
        return base.pow(exponent)
    result = base
    for step in _BY_MULTIPLYING[exponent]:
        factor = base if step == "x" else result
        if result is base or result.requires_grad:
            result = result * factor
        else:
            result *= factor  # no new memory: on a CPU that is most of the time
    return result


# How to come from x to a power: "x" multiplies by x, "s" squares.
_BY_MULTIPLYING: dict[float, str] = {
    1: "",
    2: "s",
    3: "sx",
    4: "ss",
    5: "ssx",
    6: "sxs",
    7: "sxsx",
    8: "sss",
}


def choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Check an argument that names one of a few things."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def number(name: str, value: float, low: float, high: float = float("inf")) -> float:
    """Check a number; both bounds are allowed values."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    good = good and math.isfinite(value)
    if not good:
        span = f"at least {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
        raise ValueError(f"{name} must be a number {span}, got {value!r}")
    return float(value)


def whole(name: str, value: int, low: int) -> int:
    """Check a whole number."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ValueError(f"{name} must be a whole number of at least {low}, got {value!r}")
    return value


def class_vector(name: str, value: Any) -> Tensor:
    """Check a tensor (C,) of probabilities."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.ndim != 1:
        raise ValueError(f"{name} must be a float tensor (C,), got {described(value)}")
    if not bool(((value >= 0) & (value <= 1)).all()):  # false for NaN too
        wrong = int((~((value >= 0) & (value <= 1))).nonzero()[0])
        raise ValueError(f"{name} must be between 0 and 1, got {value[wrong]:g} at [{wrong}]")
    return value.detach().clone()


def rows_of(index: Tensor | None, logits: Tensor, classes: int | None = None) -> Tensor:
    """Check the rows of the images of a batch, and that a table has as many classes as logits."""
    good = isinstance(index, Tensor) and index.dtype == torch.int64
    if index is None or not good or index.shape != logits.shape[:1]:
        want = f"the rows of the images, int64 ({logits.shape[0]},)"
        raise ValueError(f"index must be given: {want}, got {described(index)}")
    if classes is not None and classes != logits.shape[1]:
        raise ValueError(f"num_classes is {classes}, logits have {logits.shape[1]} classes")
    return index


def switch(name: str, value: bool) -> bool:
    """Check a setting that is on or off."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return value


def described(value: Any) -> str:
    """What was given, in a few words for an error."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return type(value).__name__
