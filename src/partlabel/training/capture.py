"""The passes of a model as CUDA graphs: recorded at the first batch, replayed from then on.

To launch the kernels of a small model takes the host longer than the GPU takes for them; a replay
launches all of a pass at once. They are the same kernels in the same order, so a replay gives the
numbers that the model itself gives. Loss, optimiser and moving average stay outside: they look at
more than the images.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from partlabel.errors import UsageError
from partlabel.training.processes import Processes

_WARM_UP = 3  # as often as torch.cuda.make_graphed_callables


def obstacle(processes: Processes) -> str:
    """Why passes cannot be replayed here; empty where they can."""
    if processes.device.type != "cuda":
        return "without CUDA"
    return "with several processes" if processes.world > 1 else ""


class Replay(Protocol):
    """Work that was recorded."""

    def replay(self) -> None:
        """Do it again, from and to the same memory."""


class Passes(NamedTuple):
    """Both passes over a batch."""

    images: Tensor
    """Where the forward pass finds the images."""
    outputs: tuple[Tensor, ...]
    """Where it leaves what it computes."""
    gradients: tuple[Tensor, ...]
    """Where the backward pass finds the gradients of the outputs."""
    forward: Replay
    backward: Replay
    """It leaves the gradients of the parameters where their ``grad`` was when it was recorded; what
    is there does not outlive the next forward pass."""


class Captured(nn.Module):
    """Images to logits like the module inside, by replays; for training, not for evaluation.

    Parameters keep the same ``grad`` from one step to the next: nothing is to be set to None, but
    a step begins with :meth:`begin`.

    Args:
        module: Gives logits and those of the auxiliary head, or None in their place.
        parts: Over how many batches gradients are added up.
    """

    _anchor: Tensor
    """Asks for a gradient, so that the outputs do."""

    def __init__(self, module: nn.Module, *, parts: int = 1) -> None:
        super().__init__()
        self.module, self.parts = module, parts
        self._passes: Passes | None = None
        self._found: list[Tensor] = []
        self._sums: list[Tensor] = []
        self._fresh = True

    def begin(self) -> None:
        """Let the next gradients take the place of those that are there."""
        self._fresh = True

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits of the head and of the auxiliary head, which ``backward`` can be called on."""
        if self._passes is None:
            self._passes = self._recorded(images)
        if images.shape != self._passes.images.shape:
            was, now = tuple(self._passes.images.shape), tuple(images.shape)
            raise ValueError(f"images must be {was} as when the passes were recorded, got {now}")
        run: Callable[..., tuple[Tensor, ...]] = _Replayed.apply
        outputs = run(self._anchor, self, images)
        return outputs[0], outputs[1] if len(outputs) > 1 else None

    def _recorded(self, images: Tensor) -> Passes:
        self._anchor = torch.zeros((), device=images.device, requires_grad=True)
        self.module.zero_grad(set_to_none=True)
        # Random numbers were seeded for this step already.
        with torch.random.fork_rng(devices=[images.device] if images.is_cuda else []):
            passes = record(self.module, images)
        learning = [each for each in self.module.parameters() if each.grad is not None]
        self._found = [each.grad for each in learning if each.grad is not None]
        if self.parts > 1:
            self._sums = [torch.empty_like(gradient) for gradient in self._found]
            for parameter, total in zip(learning, self._sums, strict=True):
                parameter.grad = total
        return passes

    def replay_forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """What the module gives for these images; stays until the next ones."""
        assert self._passes is not None
        self._passes.images.copy_(images)
        self._passes.forward.replay()
        return tuple(output.detach() for output in self._passes.outputs)

    def replay_backward(self, gradients: Sequence[Tensor]) -> None:
        """From the gradients of the outputs to those of the parameters."""
        assert self._passes is not None
        for place, gradient in zip(self._passes.gradients, gradients, strict=True):
            place.copy_(gradient)
        self._passes.backward.replay()
        if self.parts > 1:
            if self._fresh:
                torch._foreach_copy_(self._sums, self._found)
            else:
                torch._foreach_add_(self._sums, self._found)
            self._fresh = False


class _Replayed(torch.autograd.Function):
    """One node in place of all that the model has."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, captured: Captured, images: Tensor) -> Any:
        ctx.captured = captured
        return captured.replay_forward(images)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        ctx.captured.replay_backward(gradients)
        return None, None, None


def record(module: nn.Module, images: Tensor) -> Passes:
    """Record both passes on a GPU; parameters get the memory that holds their gradients."""
    device, place = images.device, images.clone()
    once = passing(module, place)
    stream = _side_stream(device)
    with torch.cuda.device(device), _no_garbage():
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            warm_up(module, once)
        torch.cuda.current_stream().wait_stream(stream)
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Other threads may pin memory meanwhile: what they call is their own affair.
        how: dict[str, Any] = {
            "pool": torch.cuda.graph_pool_handle(),
            "stream": stream,
            "capture_error_mode": "thread_local",
        }
        try:
            with torch.cuda.graph(forward, **how):
                outputs = once()
            gradients = tuple(torch.zeros_like(output) for output in outputs)
            with torch.cuda.graph(backward, **how):
                torch.autograd.backward(outputs, gradients)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error.__context__ or error).splitlines()[0]
            what = f"[train] capture: this model cannot be recorded ({reason})"
            raise UsageError(f"{what}; leave it out") from error
    return Passes(place, tuple(each.detach() for each in outputs), gradients, forward, backward)


def passing(module: nn.Module, images: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """The forward pass over images that stay in their place, in the precision around it."""
    kind = images.device.type
    # Without the cache: a weight in half precision from there would be that of now for good.
    precision = torch.autocast(
        kind,
        torch.get_autocast_dtype(kind),
        enabled=torch.is_autocast_enabled(kind),
        cache_enabled=False,
    )

    def once() -> tuple[Tensor, ...]:
        with precision:
            return tuple(output for output in module(images) if output is not None)

    return once


def warm_up(module: nn.Module, once: Callable[[], tuple[Tensor, ...]]) -> None:
    """Do what happens in the first passes alone; no gradient and no statistic is left of it."""
    buffers = list(module.buffers())
    before = [buffer.clone() for buffer in buffers]
    for _ in range(_WARM_UP):
        outputs = once()
        torch.autograd.backward(outputs, [torch.zeros_like(output) for output in outputs])
        module.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)


@lru_cache(maxsize=8)
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all recordings of a process: to each stream cuBLAS gives memory for good."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Collect now and not while a graph is recorded, which memory that is freed may break."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
