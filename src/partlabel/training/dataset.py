"""Store and images into batches: which images each step takes, and how they get to the device.

Everything follows from (seed, epoch, step): shuffling, sharding and a start in mid-epoch are exact,
and depend neither on the number of workers nor on that of processes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from partlabel.augment import Augment
from partlabel.images import ImageError, ImageSource, decode
from partlabel.labels import ABSENT, UNKNOWN
from partlabel.store import LabelStore
from partlabel.tables import Rows
from partlabel.training.order import Order, Plan, stand_in
from partlabel.training.processes import Processes

_GRACE = 10  # seconds between the wish to end and the end of a worker
_TRIES = 100  # images asked in place of one before giving up


class Skipped(NamedTuple):
    """An image that could not be read."""

    row: int
    reason: str


class Loaded(NamedTuple):
    """A batch as workers give it: images as bytes, labels as three short arrays."""

    plan: Plan
    rows: Tensor
    """The images that are there: those of the plan, or others in place of unreadable ones."""
    images: Tensor
    position: Tensor
    classes: Tensor
    states: Tensor
    skipped: list[Skipped]
    failure: str | None = None
    """Why there is no batch. Not an exception: one from a worker comes with its traceback."""


class _Plans(Sampler[Plan]):
    def __init__(self, order: Order, start: int, stop: int) -> None:
        self.order, self.start, self.stop = order, start, stop

    def __iter__(self) -> Iterator[Plan]:
        return self.order.plans(self.start, self.stop)


class _Listed(Sampler[Plan]):
    def __init__(self, rows: Rows, size: int) -> None:
        self.rows, self.size = rows, size

    def __iter__(self) -> Iterator[Plan]:
        for step, start in enumerate(range(0, len(self.rows), self.size)):
            yield Plan(0, step, self.rows[start : start + self.size])


class LabelledImages(Dataset[Loaded]):
    """Images and labels of a store, one batch for each plan.

    Args:
        store: The labels.
        source: Where the bytes of the images are.
        size: Side of the square the images are resized to.
        augment: What is done to the images; None for evaluation.
        on_device: Leave all but the crop to whoever has the batch on the device.
        replace: An image that cannot be read is replaced by another of the store, so that a batch
            keeps its size everywhere; else it is left out.
    """

    def __init__(
        self,
        store: LabelStore,
        source: ImageSource,
        *,
        size: int,
        augment: Augment | None = None,
        on_device: bool = False,
        replace: bool = False,
    ) -> None:
        self.store, self.source, self.size = store, source, size
        self.augment, self.on_device, self.replace = augment, on_device, replace

    def __getitem__(self, plan: Plan) -> Loaded:
        images, rows, skipped = [], [], []
        draws = None if self.augment is None else self.augment.draw(plan.epoch, plan.rows)
        for i, row in enumerate(plan.rows.tolist()):
            for _ in range(_TRIES):
                try:
                    images.append(self._image(row, draws, i))
                    rows.append(row)
                    break
                except ImageError as error:
                    skipped.append(Skipped(row, str(error)))
                    if not self.replace:
                        break
                    row = stand_in(row, len(self.store))
            else:
                why = f"{_TRIES} images in a row cannot be read: {skipped[-1].reason}"
                none = torch.empty(0, dtype=torch.int64)
                return Loaded(plan, none, none, none, none, none, skipped, failure=why)
        there = np.array(rows, np.int64)
        position, classes, states = (torch.from_numpy(p) for p in self.store.batch(there))
        empty = torch.empty((0, 3, self.size, self.size), dtype=torch.uint8)
        pixels = torch.stack(images) if images else empty
        return Loaded(plan, torch.from_numpy(there), pixels, position, classes, states, skipped)

    def _image(self, row: int, draws: Any, i: int) -> Tensor:
        data = self.source.read(row)
        if self.augment is None:
            return decode(data, self.size)
        image = decode(data, self.size, crop=self.augment.crop(draws, i))
        return image if self.on_device else self.augment.one(image, draws, i)

    def steps(self, order: Order, start: int, stop: int, *, workers: int) -> Iterator[Loaded]:
        """Training batches of the steps from ``start`` to ``stop``; one set of workers for all."""
        return self._loader(_Plans(order, start, stop), workers)

    def listed(self, rows: Rows, *, batch_size: int, workers: int) -> Iterator[Loaded]:
        """Batches of given images, in order."""
        return self._loader(_Listed(rows, batch_size), workers)

    def _loader(self, sampler: Sampler[Plan], workers: int) -> Iterator[Loaded]:
        import pyarrow as pa

        # What reading the tables left over goes now: once workers share it, it stays with them.
        pa.default_memory_pool().release_unused()
        return iter(
            DataLoader(
                self,
                batch_size=None,
                sampler=sampler,
                collate_fn=_as_it_is,
                num_workers=workers,
                pin_memory=torch.cuda.is_available(),
                prefetch_factor=2 if workers else None,
                worker_init_fn=give_way,
                multiprocessing_context="fork" if workers and hasattr(os, "fork") else None,
            )
        )


def give_way(worker: int) -> None:
    """Let the process that feeds the GPU go first, and let it be the one that ends on a signal.

    A signal to the whole group must not take the workers away before the checkpoint is written. But
    Python ends workers that are left at exit by the same signal, and waits for them: so they go a
    little later.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "alarm"):
        signal.signal(signal.SIGTERM, _go_soon)
    if hasattr(os, "nice"):
        os.nice(10)


def _go_soon(number: int, frame: object) -> None:
    signal.alarm(_GRACE)


def _as_it_is(loaded: Any) -> Any:
    return loaded


class OnDevice(NamedTuple):
    """A batch where the model is."""

    plan: Plan
    images: Tensor
    """uint8 (B, 3, S, S)"""
    states: Tensor
    """int8 (B, C)"""
    rows: Tensor
    """int64 (B,), the rows of the images in the store."""
    skipped: list[Skipped]
    there: Rows
    """The same on the host."""


def to_device(
    loaded: Loaded, store: LabelStore, device: torch.device, augment: Augment | None = None
) -> OnDevice:
    """Bring a batch to the device, make its labels dense and do what is left to augment there."""
    if loaded.failure is not None:
        raise ImageError(loaded.failure)
    images = loaded.images.to(device, non_blocking=True)
    if augment is not None:
        draws = augment.draw(loaded.plan.epoch, loaded.plan.rows)
        images = augment.batch(images, draws, cropped=True)
    labels = (loaded.position, loaded.classes, loaded.states)
    states = labels_on(device, store, len(loaded.rows), *labels)
    rows = loaded.rows.to(device, non_blocking=True)
    return OnDevice(loaded.plan, images, states, rows, loaded.skipped, loaded.rows.numpy())


def labels_on(
    device: torch.device,
    store: LabelStore,
    images: int,
    position: Tensor,
    classes: Tensor,
    states: Tensor,
) -> Tensor:
    """Labels of a batch, dense on the device: int8 (images, classes)."""
    fill = ABSENT if store.complete else UNKNOWN
    dense = torch.full((images, len(store.classes)), fill, dtype=torch.int8, device=device)
    dense[position.to(device, non_blocking=True), classes.to(device, non_blocking=True)] = (
        states.to(device, non_blocking=True)
    )
    return dense


def ahead(
    batches: Iterator[Loaded],
    store: LabelStore,
    device: torch.device,
    augment: Augment | None = None,
) -> Iterator[OnDevice]:
    """Batches on the device; on a GPU the next one is made ready while this one is computed on."""
    if device.type != "cuda":
        for loaded in batches:
            yield to_device(loaded, store, device, augment)
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    waiting: OnDevice | None = None
    for loaded in batches:
        with torch.cuda.stream(stream):
            coming = to_device(loaded, store, device, augment)
        if waiting is not None:
            yield waiting
        torch.cuda.current_stream(device).wait_stream(stream)
        for part in (coming.images, coming.states, coming.rows):
            part.record_stream(torch.cuda.current_stream(device))
        waiting = coming
    if waiting is not None:
        yield waiting


def workers_for(processes: Processes, wanted: int | None) -> int:
    """How many workers read images: as wanted, or the cores there are for each process."""
    if wanted is not None:
        return wanted
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    share = (cores or 1) // processes.local_world
    return min(max(share, 1), 16) if processes.device.type == "cuda" else 0
