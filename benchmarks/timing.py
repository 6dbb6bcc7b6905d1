"""How the losses are measured: clocks, cold caches, CUDA graphs and peak memory.

Device times are taken by events around single steps. Before each, the L2 is filled with something
else (by reading: what was written would have to be written back during the step), and the device
is kept waiting until the host has enqueued the step, so that the host's pauses do not count. They
do count in ``wall_times``, and in steps that wait for the device themselves.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

Step = Callable[[Tensor, Tensor], object]
Batch = tuple[Tensor, Tensor]

SLOW = 20.0
"""Seconds of one step from which on it is not measured."""
_CYCLES = 2e9  # of the device in a second, about
_LONGEST_WAIT = 5e-3


class TooSlowError(Exception):
    """A step that is not worth its time."""


def batches(shape: str, dtype: torch.dtype, device: str, count: int) -> list[Batch]:
    """Logits as of a trained model, and states with seven known labels an image, each its own."""
    images, classes = map(int, shape.split("x"))
    found = []
    for seed in range(count):
        rng = torch.Generator(device).manual_seed(seed)
        logits = torch.randn(images, classes, generator=rng, device=device) * 2 - 4
        known = torch.rand(images, classes, generator=rng, device=device) < 7 / classes
        present = torch.rand(images, classes, generator=rng, device=device) < 0.35
        states = torch.where(known, torch.where(present, 1, -1), 0).to(torch.int8)
        found.append((logits.to(dtype).requires_grad_(), states))
    return found


def batches_for(shape: str, dtype: torch.dtype, device: str) -> list[Batch]:
    """Several batches on a GPU, together at least four times its L2 unless they are tiny."""
    if device != "cuda":
        return batches(shape, dtype, device, 1)
    images, classes = map(int, shape.split("x"))
    each = images * classes * (dtype.itemsize + 1)
    return batches(shape, dtype, device, int(np.clip(4 * 60e6 / each + 1, 4, 32)))


def mark(*, cuda: bool) -> torch.cuda.Event | float:
    """This moment, on the clock of the device."""
    if not cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(start: torch.cuda.Event | float, stop: torch.cuda.Event | float) -> float:
    """Milliseconds; the device must have passed both."""
    if isinstance(start, float) and isinstance(stop, float):
        return 1e3 * (stop - start)
    return start.elapsed_time(stop)


def stall(seconds: float) -> None:
    """Keep the device busy with nothing for about so long, so that the host gets ahead of it."""
    torch.cuda._sleep(int(_CYCLES * seconds))


def cpu_times(step: Step, batch: Batch) -> list[float]:
    """Milliseconds of steps on the CPU."""

    def once() -> float:
        forget([batch])
        start = mark(cuda=False)
        step(*batch)
        return between(start, mark(cuda=False))

    once()
    first = once()
    if first > 1e3 * SLOW:
        raise TooSlowError
    runs = int(np.clip(1500 / max(first, 0.01), 5, 200))
    return [once() for _ in range(runs)]


class Device:
    """Times on the GPU, each of a step on inputs that no cache has."""

    def __init__(self, seconds: float) -> None:
        cache = torch.cuda.get_device_properties().L2_cache_size
        self.other = torch.ones(max(4 * cache, 2**28) // 4, device="cuda")
        self.seconds = seconds
        big = torch.rand(2**28, device="cuda")
        copy = torch.empty_like(big)
        middle = np.median(self._times(lambda _: copy.copy_(big)))
        self.bandwidth = 2 * big.nbytes / (1e-3 * float(middle))
        """Bytes read and written in a second by a large copy."""

    def times(self, step: Step, sets: Sequence[Batch]) -> list[float]:
        """Milliseconds of steps, by events, the sets in turn."""
        return self._times(lambda i: _anew(step, sets[i % len(sets)]))

    def graph_times(self, step: Step, sets: Sequence[Batch]) -> list[float]:
        """Milliseconds of a step in a CUDA graph that has one for each set."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for batch in (*sets[:2], sets[0]):
                _anew(step, batch)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        forget(sets)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for batch in sets:
                step(*batch)
        found = self._times(lambda _: graph.replay())
        forget(sets)  # gradients are in the graph's memory
        return [each / len(sets) for each in found]

    def wall_times(self, step: Step, sets: Sequence[Batch]) -> list[float]:
        """Milliseconds of a step on the host's clock, many in a row, then one wait."""

        def row(calls: int) -> float:
            torch.cuda.synchronize()
            began = time.perf_counter()
            for i in range(calls):
                _anew(step, sets[i % len(sets)])
            torch.cuda.synchronize()
            return 1e3 * (time.perf_counter() - began) / calls

        row(2)
        rows = 7
        calls = int(np.clip(1e3 * self.seconds / 2 / rows / row(2), 2, 300))
        return [row(calls) for _ in range(rows)]

    def _times(self, run: Callable[[int], object]) -> list[float]:
        for i in range(3):
            torch.cuda.synchronize()
            began = time.perf_counter()
            run(i)
            enqueued = time.perf_counter() - began
            torch.cuda.synchronize()
            if i and time.perf_counter() - began > SLOW:  # the first may compile
                raise TooSlowError
        wait = min(1.5 * enqueued + 2e-5, _LONGEST_WAIT)
        found: list[float] = []
        began = time.perf_counter()
        while len(found) < 10 or (len(found) < 300 and time.perf_counter() - began < self.seconds):
            self.other.sum()
            stall(wait)
            start = mark(cuda=True)
            run(len(found))
            stop = mark(cuda=True)
            torch.cuda.synchronize()
            found.append(between(start, stop))
        return found


def forget(sets: Sequence[Batch]) -> None:
    """Free the gradients of the sets."""
    for logits, _ in sets:
        logits.grad = None


def _anew(step: Step, batch: Batch) -> None:
    forget([batch])
    step(*batch)


def peak_mib(step: Step, batch: Batch) -> float:
    """Peak memory of a step beyond what was there before, the gradient included."""
    gc.collect()
    forget([batch])
    if batch[0].is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(*batch)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    # Freed memory stays mapped, so the process's size says nothing: add up what torch allocates.
    with torch.profiler.profile(profile_memory=True) as profile:
        step(*batch)
    events = profile.profiler.kineto_results.events()
    changes = [
        e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()) if e.name() == "[memory]"
    ]
    return float(np.cumsum([0, *changes]).max() / 2**20)
