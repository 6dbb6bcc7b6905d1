"""A training step, and what of it the device needs for the loss, measured in two ways.

A step is forward in bf16, loss, backward and AdamW, on tensors that are already there: TResNet-M
at 224 pixels, 256 x 9,600. The loading of data, augmentation and the moving average of the weights
are left out, so of a whole training a loss has a smaller share than of this.

In training the host is ahead: when the device comes to the loss, its kernels are in the queue. A
step that begins with an empty queue does not show that: small kernels end before the host has
launched the next ones, and events around them count the host's time. So here

- by graphs, the host launches nothing: the whole step is one CUDA graph, with the loss and with a
  gradient that is simply given, replayed in turn. What the loss takes is the difference.
- by events, the device is kept waiting just before the loss until its kernels are in the queue.
  Whether they were is looked at in each step; a step where they were not does not count.
"""

from __future__ import annotations

import gc
import random
import time
import warnings
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from contenders import REFERENCE, Call, Key, contenders
from timing import batches, between, mark, stall
from torch import Tensor, nn

from partlabel.model import build_model

BARE, AGAIN = ("no loss", "given"), ("no loss", "again")
"""The gradient by the logits is given; captured a second time, which shows what a difference of
two graphs is worth."""
SAMPLES, ROUNDS = 25, 60
_REAL = ("tresnet_m", 224, 256, 9_600)
_TOY = ("test_resnet", 64, 16, 50)
_LONGEST_WAIT = 1.0
Finish = Callable[[Tensor], object]


class Sample(NamedTuple):
    """One step by events, in milliseconds."""

    loss: float
    step: float
    """The device's waiting not counted."""
    ahead: bool
    """Whether the loss was in the queue, to its end, before the device came to it."""
    host: tuple[float, float]
    """Seconds that it took to enqueue what is up to the loss, and the rest."""


class Training:
    """A model and its step.

    All of it, from here on, has to be run on one stream that is not the default one: the nodes
    that add up gradients remember theirs, and in a captured graph that must be the graph's.
    """

    def __init__(self, device: str, *, compiled: bool) -> None:
        self.cuda = device == "cuda"
        self._device = device
        backbone, size, images, classes = _REAL if self.cuda else _TOY
        model = build_model(backbone, classes, weights=None, image_size=size).to(device)
        model = model.to(memory_format=torch.channels_last)
        # At a rate of 0 there is as much to do, but the weights stay, and so do the logits: with
        # a gradient that never changes they would soon be infinite.
        self._optimiser = torch.optim.AdamW(
            model.parameters(), lr=0.0, fused=self.cuda or None, capturable=self.cuda
        )
        pictures = torch.randn(images, 3, size, size, device=device)
        self._images = pictures.to(memory_format=torch.channels_last)
        [self.batch] = batches(f"{images}x{classes}", torch.bfloat16, device, 1)
        self._model: nn.Module = model
        self._spread(model.head)
        if compiled:
            self._model = torch.compile(model)
        self.calls = contenders(["selective"], self.batch[0], compiled=False)
        del self.calls[REFERENCE, "eager"]  # it waits for the device
        # Zeros would let the device run faster than it does in training.
        self._given = self._slopes(self.calls["selective", "eager"], self._forward())
        self._pool = torch.cuda.graph_pool_handle() if self.cuda else None

    def _spread(self, head: nn.Module) -> None:
        """Logits as of a trained model: how long the search for the largest takes depends on it."""
        last = [layer for layer in head.modules() if isinstance(layer, nn.Linear)][-1]
        with torch.no_grad():
            last.weight *= 2 / self._forward().float().std()
            last.bias.fill_(-4.0)

    def _forward(self) -> Tensor:
        # Without a cache of casts, as PyTorch wants it for graphs; no weight is used twice anyway.
        with torch.autocast(self._device, torch.bfloat16, cache_enabled=False):
            out: Tensor = self._model(self._images)
        return out

    def _slopes(self, call: Call, out: Tensor) -> Tensor:
        leaf = out.detach().requires_grad_()
        call(leaf, self.batch[1]).backward()
        assert leaf.grad is not None
        return leaf.grad

    def finishes(self) -> dict[Key, Finish]:
        """The backward passes to compare, from the logits on."""
        with_loss = {key: self._finish(call) for key, call in self.calls.items()}
        given = self._finish(None)
        return {BARE: given, **with_loss, AGAIN: given}

    def _finish(self, call: Call | None) -> Finish:
        if call is None:
            return lambda out: out.backward(self._given)
        return lambda out: call(out, self.batch[1]).backward()

    def _step(self, finish: Finish) -> None:
        self._forget()
        finish(self._forward())
        self._optimiser.step()

    def _forget(self) -> None:
        self._optimiser.zero_grad(set_to_none=True)

    def captured(self, finish: Finish) -> torch.cuda.CUDAGraph:
        """The step as a CUDA graph, all of which share their memory: only one runs at a time."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This instance was constructed with capturable=True")
            for _ in range(3):  # compiles kernels, makes workspaces and the optimiser's state
                self._step(finish)
        self._forget()  # so that gradients are not added to, but made anew in the graph's memory
        gc.collect()
        gc.disable()  # what is freed while a graph is captured can spoil it
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(
                graph,
                pool=self._pool,
                stream=torch.cuda.current_stream(),
                capture_error_mode="thread_local",  # what other threads do is their business
            ):
                self._step(finish)
        finally:
            gc.enable()
            self._forget()  # those of the graph are the graph's
        return graph

    def by_events(self, call: Call | None) -> list[Sample]:
        """Steps with a loss, or with nothing where it would be: what two events alone are apart."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This instance was constructed with capturable=True")
            host = [self._sample(call, (0.0, 0.0)).host for _ in range(4)][1:]
        before, after = (min(2 * max(part), _LONGEST_WAIT) for part in zip(*host, strict=True))
        found = [self._sample(call, (before, after)) for _ in range(SAMPLES)]
        self._forget()
        ahead = [sample for sample in found if sample.ahead]
        if not ahead:
            raise RuntimeError("the device was never kept waiting until the loss was in the queue")
        return ahead

    def _sample(self, call: Call | None, waits: tuple[float, float]) -> Sample:
        # The first wait is for the time of the whole step, the second for that of the loss: from
        # its kernels on, all up to the last one of the step is in the queue when it ends, or as
        # much as a queue takes (some 1,000 kernels, tens of milliseconds of this model).
        self._forget()
        if self.cuda:
            torch.cuda.synchronize()
            stall(waits[0])
        began = time.perf_counter()
        start = mark(cuda=self.cuda)
        out = self._forward()
        logits = mark(cuda=self.cuda)
        middle = time.perf_counter()
        if self.cuda:
            stall(waits[1])
        before = mark(cuda=self.cuda)
        slopes = self._given if call is None else self._slopes(call, out)
        after = mark(cuda=self.cuda)
        # `before` lies behind the wait: where it is still to come, all the loss is in the queue.
        ahead = isinstance(before, float) or not before.query()
        out.backward(slopes)
        self._optimiser.step()
        end = mark(cuda=self.cuda)
        host = middle - began, time.perf_counter() - middle
        if self.cuda:
            torch.cuda.synchronize()
        step = between(start, logits) + between(before, end)
        return Sample(between(before, after), step, ahead, host)


def replayed(graphs: Mapping[Key, torch.cuda.CUDAGraph]) -> dict[Key, list[float]]:
    """Milliseconds of replays by round; in each round every graph once, in an order of its own."""
    found: dict[Key, list[float]] = {key: [] for key in graphs}
    draw = random.Random(0)
    spans = []
    for _ in range(ROUNDS + 2):
        for key in draw.sample(list(graphs), len(graphs)):
            start = mark(cuda=True)
            graphs[key].replay()
            spans.append((key, start, mark(cuda=True)))
        # Until the last replay begins and not until it ends: there is always one in the queue.
        start.synchronize()
    torch.cuda.synchronize()
    for key, *span in spans[2 * len(graphs) :]:
        found[key].append(between(*span))
    return found
