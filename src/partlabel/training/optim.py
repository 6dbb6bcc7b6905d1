"""Optimiser, learning rate and moving average: each a plain function of the step."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

_START, _END = 25.0, 1e4  # how far below its maximum the learning rate begins, and ends below that
_MOMENTUM = (0.95, 0.85)

M = TypeVar("M", bound=nn.Module)


class Pace(NamedTuple):
    """What a schedule says about one step."""

    lr: float
    """As a share of the maximum."""
    momentum: float | None
    """Adam's first beta, where it is cycled."""


def pace(step: int, total: int, *, schedule: str, warmup: float, cycle_momentum: bool) -> Pace:
    """The learning rate at a step.

    ``one_cycle`` is torch's OneCycleLR with its defaults (cosine, from 1/25 of the maximum up, down
    to 1/250,000), ``cosine`` rises linearly and falls to zero, ``constant`` stays.

    Example:
        >>> pace(20, 105, schedule="one_cycle", warmup=0.2, cycle_momentum=True)
        Pace(lr=1.0, momentum=0.85)
    """
    if schedule == "constant":
        return Pace(1.0, None)
    if schedule == "cosine":
        rising = max(warmup * total, 1.0)
        if step < rising:
            return Pace((step + 1) / (rising + 1), None)
        return Pace(_cosine(1.0, 0.0, (step - rising) / max(total - rising, 1.0)), None)
    top = warmup * total - 1
    high, low = _MOMENTUM
    if step <= top:
        share = step / top if top > 0 else 1.0
        lr, beta = _cosine(1 / _START, 1.0, share), _cosine(high, low, share)
    else:
        share = (step - top) / max(total - 1 - top, 1e-12)
        lr, beta = _cosine(1.0, 1 / _START / _END, share), _cosine(low, high, share)
    return Pace(lr, beta if cycle_momentum else None)


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * min(max(share, 0.0), 1.0)))


def make_optimiser(
    model: nn.Module,
    loss: nn.Module,
    *,
    name: str,
    lr: float,
    weight_decay: float,
    head_lr_factor: float = 1.0,
    loss_lr_factor: float = 10.0,
) -> torch.optim.Optimizer:
    """AdamW, or Adam with decay in the gradient; vectors and biases do not decay.

    A loss's own parameters are a group without decay, with a learning rate of their own.
    """
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for key, parameter in model.named_parameters():
        if parameter.requires_grad:
            decays = parameter.ndim > 1 and not key.endswith(".bias")
            head = key.startswith(("head.", "auxiliary."))
            groups.setdefault((decays, head), []).append(parameter)
    made: list[dict[str, Any]] = [
        {
            "params": parameters,
            "weight_decay": weight_decay if decays else 0.0,
            "max_lr": lr * (head_lr_factor if head else 1.0),
        }
        for (decays, head), parameters in groups.items()
    ]
    own = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    if own:
        made.append({"params": own, "weight_decay": 0.0, "max_lr": lr * loss_lr_factor})
    for group in made:
        group["lr"] = group["max_lr"]
    kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
    on_gpu = next(model.parameters()).device.type == "cuda"
    return kind(made, lr=lr, fused=True if on_gpu else None)


def set_pace(optimiser: torch.optim.Optimizer, now: Pace) -> None:
    """Give every group its learning rate for this step."""
    for group in optimiser.param_groups:
        group["lr"] = group["max_lr"] * now.lr
        if now.momentum is not None:
            group["betas"] = (now.momentum, group["betas"][1])


class Update:
    """Steps of an optimiser.

    Args:
        optimiser: From :func:`make_optimiser`. Its state may be loaded until the first step.
        scaler: Of the loss; disabled where it is not needed.
        by_lists: Gather the tensors for a fused step once. The optimiser does that at each step,
            one by one: for 150 parameters it takes the host half a millisecond. The numbers are
            the same.
    """

    def __init__(
        self, optimiser: torch.optim.Optimizer, scaler: torch.amp.GradScaler, *, by_lists: bool
    ) -> None:
        self.optimiser, self.scaler = optimiser, scaler
        fused = all(group["fused"] for group in optimiser.param_groups)
        self._by_lists = by_lists and fused and not scaler.is_enabled()
        self._state: list[tuple[list[Tensor], ...]] = []
        """For each group both moments and the numbers of steps."""

    def __call__(self) -> None:
        """Update the parameters by their gradients."""
        if self._state:
            groups = [group["params"] for group in self.optimiser.param_groups]
            grads = [[p.grad for p in group if p.grad is not None] for group in groups]
            if all(len(a) == len(b) for a, b in zip(groups, grads, strict=True)):
                self._fused(grads)
                return
        self.scaler.step(self.optimiser)
        self.scaler.update()
        if self._by_lists and not self._state:
            self._state = self._gathered()

    def _gathered(self) -> list[tuple[list[Tensor], ...]]:
        """The state of all parameters; nothing where one had no gradient yet."""
        state, groups = self.optimiser.state, self.optimiser.param_groups
        if not all(state.get(p) for group in groups for p in group["params"]):
            return []
        names = ("exp_avg", "exp_avg_sq", "step")
        return [tuple([state[p][name] for p in g["params"]] for name in names) for g in groups]

    @torch.no_grad()
    def _fused(self, grads: list[list[Tensor]]) -> None:
        """The end of torch's own step, where its lists are made."""
        decays_beside = isinstance(self.optimiser, torch.optim.AdamW)
        update = torch._fused_adamw_ if decays_beside else torch._fused_adam_
        groups = self.optimiser.param_groups
        for group, found, (first, second, steps) in zip(groups, grads, self._state, strict=True):
            torch._foreach_add_(steps, 1)
            update(
                group["params"],
                found,
                first,
                second,
                [],
                steps,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )


class MovingAverage(Generic[M]):
    """An exponential moving average of a model's weights and buffers.

    Args:
        model: The model that is trained.
        decay: Share of the average that stays at each step.
        warmup: Let the average forget faster at first: min(decay, (1 + t) / (10 + t)).
    """

    def __init__(self, model: M, *, decay: float, warmup: bool = True) -> None:
        self.model: M = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay, self.warmup = decay, warmup
        pairs = list(zip(_tensors(self.model), _tensors(model), strict=True))
        floats = [pair for pair in pairs if pair[0].is_floating_point()]
        others = [pair for pair in pairs if not pair[0].is_floating_point()]
        # Lists of mine and theirs, made once: there are hundreds of tensors.
        self._averaged = [mine for mine, _ in floats], [theirs for _, theirs in floats]
        self._copied = [mine for mine, _ in others], [theirs for _, theirs in others]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after a step."""
        decay = min(self.decay, (1 + step) / (10 + step)) if self.warmup else self.decay
        torch._foreach_lerp_(*self._averaged, 1 - decay)
        if self._copied[0]:
            torch._foreach_copy_(*self._copied)

    @property
    def tensors(self) -> list[Tensor]:
        """Weights and buffers of the average."""
        return list(_tensors(self.model))


def _tensors(model: nn.Module) -> Iterable[Tensor]:
    yield from model.parameters()
    yield from model.buffers()
