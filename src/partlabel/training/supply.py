"""Batches on the device: read and decoded by workers as they are needed, or resident there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from partlabel.augment import Augment
from partlabel.errors import UsageError
from partlabel.tables import Rows
from partlabel.training.dataset import LabelledImages, OnDevice, Skipped, ahead, labels_on
from partlabel.training.order import Order, Plan, stand_in
from partlabel.training.rundata import Part

_AT_ONCE = 256


class Supply(Protocol):
    """Gives batches of one part of the data."""

    def steps(self, order: Order, start: int, stop: int) -> Iterator[OnDevice]:
        """Augmented batches of the steps from ``start`` to ``stop``."""

    def listed(self, rows: Rows) -> Iterator[OnDevice]:
        """Images as they are, in order; those that cannot be read are left out."""


class Streamed:
    """Images read when they are needed; memory does not grow with their number."""

    def __init__(
        self,
        part: Part,
        *,
        size: int,
        augment: Augment | None,
        batch_size: int,
        workers: int,
        device: torch.device,
    ) -> None:
        self.part, self.device = part, device
        self.batch_size, self.workers = batch_size, workers
        self._plain = LabelledImages(part.store, part.source, size=size)
        # On a GPU augmentation is nearly free, and workers have enough to do with decoding.
        on_gpu = device.type == "cuda" and augment is not None and augment.name != "timm"
        self._on_device = augment if on_gpu else None
        self._augmented = LabelledImages(
            part.store, part.source, size=size, augment=augment, on_device=on_gpu, replace=True
        )

    def steps(self, order: Order, start: int, stop: int) -> Iterator[OnDevice]:
        """Augmented batches of the steps from ``start`` to ``stop``."""
        loaded = self._augmented.steps(order, start, stop, workers=self.workers)
        return ahead(loaded, self.part.store, self.device, self._on_device)

    def listed(self, rows: Rows) -> Iterator[OnDevice]:
        """Images as they are, in order; those that cannot be read are left out."""
        loaded = self._plain.listed(rows, batch_size=self.batch_size, workers=self.workers)
        return ahead(loaded, self.part.store, self.device)


class Resident:
    """All images decoded once and kept on the device, where they are augmented too.

    For small sets and studies. Labels are gathered from the store as always.
    """

    def __init__(
        self,
        part: Part,
        *,
        size: int,
        augment: Augment | None,
        batch_size: int,
        workers: int,
        device: torch.device,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        count = len(part.store)
        _refuse_too_large(count * 3 * size * size, device)
        self.part, self.device, self.augment = part, device, augment
        self.batch_size = batch_size
        self._images = torch.empty((count, 3, size, size), dtype=torch.uint8, device=device)
        self._skipped: dict[int, Skipped] = {}
        plain = LabelledImages(part.store, part.source, size=size)
        for loaded in plain.listed(np.arange(count), batch_size=_AT_ONCE, workers=workers):
            rows = loaded.rows.to(device)
            self._images[rows] = loaded.images.to(device)
            self._skipped |= {one.row: one for one in loaded.skipped}
            if progress is not None:
                progress(len(rows))
        if len(self._skipped) == count:
            reason = next(iter(self._skipped.values())).reason
            raise UsageError(f"{part.name}: no image can be read: {reason}")
        # An image that cannot be read is replaced by the same one as where images are streamed.
        self._stands_for = np.arange(count)
        for row in self._skipped:
            other = row
            while other in self._skipped:
                other = stand_in(other, count)
            self._stands_for[row] = other

    def sharing(self, part: Part, *, augment: Augment | None, batch_size: int) -> Resident:
        """The same decoded images, with other labels, augmentation or batches."""
        other = copy.copy(self)
        other.part, other.augment, other.batch_size = part, augment, batch_size
        return other

    def steps(self, order: Order, start: int, stop: int) -> Iterator[OnDevice]:
        """Augmented batches of the steps from ``start`` to ``stop``."""
        for plan in order.plans(start, stop):
            skipped = [self._skipped[r] for r in plan.rows.tolist() if r in self._skipped]
            batch = self._batch(plan, self._stands_for[plan.rows], skipped)
            if self.augment is not None:
                draws = self.augment.draw(plan.epoch, plan.rows)
                batch = batch._replace(images=self.augment.batch(batch.images, draws))
            yield batch

    def listed(self, rows: Rows) -> Iterator[OnDevice]:
        """Images as they are, in order; those that cannot be read are left out."""
        there = rows[self._stands_for[rows] == rows]
        for step, start in enumerate(range(0, len(there), self.batch_size)):
            part = there[start : start + self.batch_size]
            yield self._batch(Plan(0, step, part), part, [])

    def _batch(self, plan: Plan, there: Rows, skipped: list[Skipped]) -> OnDevice:
        rows = torch.from_numpy(there).to(self.device, non_blocking=True)
        labels = [torch.from_numpy(part) for part in self.part.store.batch(there)]
        states: Tensor = labels_on(self.device, self.part.store, len(there), *labels)
        return OnDevice(plan, self._images[rows], states, rows, skipped, there)


def _refuse_too_large(wanted: int, device: torch.device) -> None:
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        if wanted > 0.7 * free:
            raise UsageError(
                f"[images] device_resident: the images take {wanted / 2**30:.1f} GiB, {device} has "
                f"{free / 2**30:.1f} GiB free; leave it out, or make size smaller"
            )
