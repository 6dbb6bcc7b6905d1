"""What the loss ``auto`` is told beside the labels: posteriors of unknown ones, and when.

The first stage was not shown some annotations. What its head in Ignore mode says there and at
unknown labels makes a calibration (partlabel.calibrate): how many unknown labels of each class are
present. Which ones, its other head may know better, which was trained by the paper's loss, or the
features that the backbone began with: all are scaled by the held-out annotations, shifted until as
many of each class are present, and mixed as those annotations say. After a third and two thirds of
the training the model's own moving average is mixed in, in the same way. Then all annotations are
used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from partlabel.calibrate import Calibration, mixture, rescaled, weight_of_present
from partlabel.errors import StoreError
from partlabel.estimate import sample_rows
from partlabel.model import Classifier
from partlabel.store import LabelStore
from partlabel.tables import Rows
from partlabel.training.asking import (
    Source,
    Told,
    ask,
    head_of,
    heads_of,
    mixed,
    said,
    shown_of,
    together,
)
from partlabel.training.dataset import OnDevice
from partlabel.training.posteriors import Posteriors, PosteriorWriter
from partlabel.training.processes import Processes
from partlabel.training.scoring import Batches, Seen

_ENOUGH = 1 << 16
"""Images by which it is found out how to mix, beside those with held-out labels."""


class Teacher:
    """Gives every batch its posteriors, and holds back the labels that calibrate them.

    Args:
        store: All the annotations of the images.
        held: Those that are held back.
        batches: Gives images as they are, with all their labels.
        folder: Where the tables are kept while the run goes on.
        epochs: Of the training.
        processes: This process among all.
        precision: Of a forward pass.
        counting: Makes something that hears of every batch.
    """

    def __init__(
        self,
        store: LabelStore,
        held: LabelStore,
        batches: Batches,
        folder: Path,
        *,
        epochs: int,
        processes: Processes,
        precision: str,
        counting: Callable[[], Seen],
    ) -> None:
        self.store, self.held, self.batches, self.folder = store, held, batches, folder
        self.processes, self.precision, self.counting = processes, precision, counting
        self.again = sorted({epochs // 3, 2 * epochs // 3} - {0})
        """After so many epochs the moving average is asked."""
        self.release = max(self.again, default=0)
        """The first epoch in which all annotations are used."""
        self._open: tuple[int, Posteriors] | None = None

    def begun(self) -> bool:
        """Whether the first table is there, the same on all processes."""
        return bool(self.processes.from_main(self._path(0).is_dir()))

    def begin(
        self,
        model: Classifier,
        batches: Batches,
        calibrated: Callable[[Told, Told | None], Calibration],
        frozen: Source | None = None,
        learnt: Rows | None = None,
    ) -> None:
        """Make the first table; called on all processes.

        Args:
            model: Of the first stage, with an auxiliary head.
            batches: Gives images as they are, with all their labels, of the size that it takes.
            calibrated: Makes a calibration of what the auxiliary head says, and the frozen features
                where there are such; what else it does is done for good.
            frozen: What the features said that the backbone began with.
            learnt: The images that the model was trained on; all, where it is left out.
        """
        heads = heads_of(model, self.precision)
        source = heads if frozen is None else together(heads, frozen)
        told = self._ask(source, batches, np.arange(len(self.store)), learnt=learnt)
        counting, beside = told[1], told[2] if frozen is not None else None
        alpha_pos = weight_of_present(counting.shown, counting.held)
        self._make(0, calibrated(counting, beside), source, told, batches, alpha_pos)

    def end_epoch(self, done: int, average: Classifier) -> None:
        """After some epochs: mix in the moving average, if it is time; called on all processes."""
        if done not in self.again:
            return
        before = self._table(done - 1)
        source = together(said(before), head_of(average, self.precision))
        told = self._ask(source, self.batches, self._some())
        self._make(done, before.calibration, source, told, self.batches, before.alpha_pos)

    def _some(self) -> Rows:
        """All images where they are few, else a sample and all with held-out labels."""
        sample = sample_rows(self.store.images, _ENOUGH, seed=0)
        return np.union1d(sample, np.flatnonzero(np.diff(self.held.indptr)))

    def _make(
        self,
        epoch: int,
        before: Calibration,
        source: Source,
        told: list[Told],
        batches: Batches,
        alpha_pos: float,
    ) -> None:
        """A table by all models of a source, which were asked; the shares stay."""
        counts = self.store.counts()
        parts = [(rescaled(before, each.seen, each.held, counts), each.held) for each in told]
        writer = self._writer(epoch)
        one = mixed(source, mixture(parts, counts))
        (last,) = self._ask(one, batches, np.arange(len(self.store)), writer=writer)
        self.processes.wait()
        if self.processes.main:
            writer.finish(rescaled(before, last.seen, last.held, counts), alpha_pos=alpha_pos)
        self.processes.wait()
        self._open = None

    def view(self, batch: OnDevice) -> tuple[Tensor, dict[str, Any]]:
        """The states of a batch as the loss is to see them in its epoch, and what it is told."""
        table = self._table(batch.plan.epoch)
        posterior = table.dense(batch.there, self.processes.device)
        free = batch.plan.epoch >= self.release
        states = batch.states if free else shown_of(batch, self.held).rest
        return states, {"posterior": posterior, "alpha_pos": table.alpha_pos}

    def _ask(
        self,
        source: Source,
        batches: Batches,
        rows: Rows,
        *,
        learnt: Rows | None = None,
        writer: PosteriorWriter | None = None,
    ) -> list[Told]:
        return ask(
            source,
            batches,
            rows,
            self.held,
            processes=self.processes,
            learnt=learnt,
            writer=writer,
            seen_by=self.counting(),
        )

    def _writer(self, epoch: int) -> PosteriorWriter:
        classes = len(self.store.classes)
        made = PosteriorWriter(self._path(epoch), images=len(self.store), classes=classes)
        if self.processes.main:
            made.make()
        self.processes.wait()
        return made

    def _table(self, epoch: int) -> Posteriors:
        """The table that is used in an epoch: made at its begin, or the last one before."""
        made = max((each for each in self.again if each <= epoch), default=0)
        if self._open is None or self._open[0] != made:
            if not self._path(made).is_dir():
                what = "what a model said of unknown labels is gone"
                raise StoreError(f"{self._path(made)}: {what}; start anew with --fresh")
            self._open = made, Posteriors(self._path(made))
        return self._open[1]

    def _path(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch:04d}"
