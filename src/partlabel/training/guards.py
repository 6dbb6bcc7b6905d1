"""What stops a run before it goes wrong: a loss that is not finite, too many unreadable images."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from partlabel.errors import DataError, PartlabelError
from partlabel.training.dataset import OnDevice
from partlabel.training.processes import Processes
from partlabel.training.rundata import Part
from partlabel.training.runfolder import RunFolder

_HOPELESS = 0.5  # stop at once where more than this share of what was seen cannot be read
_BEHIND = 8  # batches a check may be behind on a GPU


class LossGuard:
    """Looks at every loss, as soon as that does not wait for the device."""

    def __init__(self, folder: RunFolder, part: Part) -> None:
        self.folder, self.part = folder, part
        self._pending: deque[tuple[Tensor, int, Tensor, Any]] = deque()
        self._pinned: Tensor | None = None
        self._count = 0

    def watch(self, batch: OnDevice, step: int, value: Tensor) -> None:
        """Remember a loss, and look at those that have come."""
        event = None
        if value.device.type == "cuda":
            # Into pinned memory: a copy to other memory waits for all that is queued before it.
            if self._pinned is None:
                self._pinned = torch.empty(2 * _BEHIND, pin_memory=True)
            place = self._pinned[self._count % len(self._pinned)]
            self._count += 1
            value = place.copy_(value, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._pending.append((batch.rows, step, value, event))
        self.check(wait=False)

    def check(self, *, wait: bool) -> None:
        """Stop the run at a loss that is not finite; the ids of its batch are saved."""
        while self._pending:
            rows, step, value, event = self._pending[0]
            if event is not None:
                if wait or len(self._pending) > _BEHIND:
                    event.synchronize()
                elif not event.query():
                    return
            self._pending.popleft()
            if not math.isfinite(float(value)):
                name = f"not-finite-step-{step}.csv"
                path = self.folder.write_ids(name, rows.tolist(), self.part.store.images)
                what = f"the loss is {float(value)} at step {step}"
                raise DataError(
                    f"{what}; the ids of its batch are in {path}",
                    fix="look at these images, lower [optim] lr, or set [train] precision to fp32",
                )


class SkipGuard:
    """Counts the images that could not be read, and stops the run where there are too many."""

    def __init__(self, folder: RunFolder, part: Part, *, most: float) -> None:
        self.folder, self.part, self.most = folder, part, most
        self.skipped: dict[int, str] = {}
        self._new: dict[int, str] = {}
        self._lost = 0
        """Images that were asked for and could not be read, each time; of this process."""

    def note(self, batch: OnDevice) -> None:
        """Remember what a batch had to do without."""
        if batch.skipped:
            self._new |= {row: why for row, why in batch.skipped if row not in self.skipped}
            asked = set(batch.plan.rows.tolist())
            self._lost += len(asked & {row for row, _ in batch.skipped})

    def check(self, processes: Processes, *, seen: int) -> None:
        """Share what is new, write skipped.csv, and stop if it is too much."""
        before = len(self.skipped)
        lost = 0
        for theirs, count in processes.gather((self._new, self._lost)):
            self.skipped |= theirs
            lost += count
        self._new = {}
        count, whole = len(self.skipped), len(self.part.store)
        if count == before:
            return
        if processes.main:
            self.folder.write_skipped("skipped.csv", self.skipped, self.part.store.images)
        listed = f"see {self.folder.path / 'skipped.csv'}"
        first = next(iter(self.skipped.values()))
        if lost > _HOPELESS * seen:
            what = f"{lost:,} of the first {seen:,} images cannot be read"
            raise PartlabelError(f"{what}; is [images] root right? {listed}; the first: {first}")
        if count > self.most * whole:
            what = f"{count:,} of {whole:,} images cannot be read"
            limit = f"more than [images] max_skipped ({self.most:.1%}) allows"
            raise PartlabelError(f"{what}, {limit}; {listed}; the first: {first}")
