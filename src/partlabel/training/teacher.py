"""What the loss ``auto`` is told beside the labels: posteriors of unknown ones, and when.

The first stage was not shown some annotations. What its head in Ignore mode says there and at
unknown labels makes a calibration (partlabel.calibrate): how many unknown labels of each class are
present. Which ones, its other head knows better, which was trained by the paper's loss: its logits
are scaled by the held-out annotations, and shifted until as many of each class are present. After
two thirds of the training the model's own moving average is asked instead, in the same way. Then
all annotations are used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partlabel.calibrate import Calibration, HeldOut, rescaled
from partlabel.errors import StoreError
from partlabel.histogram import LogitHistogram
from partlabel.model import Classifier
from partlabel.store import LabelStore
from partlabel.tables import Rows
from partlabel.training.dataset import OnDevice
from partlabel.training.posteriors import Posteriors, PosteriorWriter, sent
from partlabel.training.processes import Processes
from partlabel.training.scoring import Batches, Counting, Seen, precision_context


@torch.inference_mode()
def ask(
    model: Classifier | Counting,
    batches: Batches,
    rows: Rows,
    held: LabelStore,
    *,
    processes: Processes,
    precision: str,
    writer: PosteriorWriter | None = None,
    seen_by: Seen | None = None,
) -> tuple[LogitHistogram, HeldOut]:
    """The logits of a model at unknown labels, as a histogram, and at labels that were held out.

    Args:
        model: Is left in evaluation mode.
        batches: Of images with all their labels, held-out ones too.
        rows: Which images.
        held: The labels that the model was not shown.
        processes: Each takes its share of the images; all get everything.
        precision: Of the forward pass.
        writer: Keeps the likeliest classes of each image.
        seen_by: Hears of every batch.
    """
    context = precision_context(processes.device, precision)
    seen = LogitHistogram(len(held.classes), processes.device)
    logits_there, labels_there = [], []
    model.eval()
    for batch in batches(rows[processes.rank :: processes.world]):
        if seen_by is not None:
            seen_by.see(batch)
        if not len(batch.there):
            continue
        with context():
            logits = model(model.normalise(batch.images)).float()
        unknown = batch.states == 0
        seen.update(logits, unknown)
        position, classes, states = held.batch(batch.there)
        at = tuple(torch.from_numpy(part).to(logits.device) for part in (position, classes))
        logits_there.append(logits[at])
        labels_there.append((classes, states))
        if writer is not None:
            unknown[at] = True  # to the training they are unknown for a while
            writer.write(batch.there, logits, unknown)
    if writer is not None:
        writer.flush()
    seen.all_reduce()
    own = (
        torch.cat(logits_there).double().cpu().numpy() if logits_there else np.zeros(0),
        np.concatenate([c for c, _ in labels_there]) if labels_there else np.zeros(0, np.int64),
        np.concatenate([s for _, s in labels_there]) if labels_there else np.zeros(0, np.int8),
    )
    parts = zip(*processes.gather(own), strict=True)
    return seen, HeldOut(*(np.concatenate(part) for part in parts))


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
        self.again = sorted({2 * epochs // 3} - {0})
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
        calibrated: Callable[[LogitHistogram, HeldOut], Calibration],
    ) -> None:
        """Make the first table; called on all processes.

        Args:
            model: Of the first stage.
            batches: Gives images as they are, with all their labels, of the size that it takes.
            calibrated: Makes a calibration of its logits; what else it does is done for good.
        """
        writer = self._writer(0)
        self._finish(writer, calibrated(*self._ask(model, batches, writer)))

    def end_epoch(self, done: int, average: Classifier) -> None:
        """After some epochs: ask the moving average, if it is time; called on all processes."""
        if done not in self.again:
            return
        writer = self._writer(done)
        seen, held = self._ask(average, self.batches, writer)
        before = self._table(done - 1).calibration
        self._finish(writer, rescaled(before, seen, held, self.store.counts()))

    def view(self, batch: OnDevice) -> tuple[Tensor, Tensor]:
        """States and posteriors of a batch, as the loss is to see them in its epoch."""
        posterior = self._table(batch.plan.epoch).dense(batch.there, self.processes.device)
        states = batch.states
        if batch.plan.epoch < self.release:
            position, classes, _ = self.held.batch(batch.there)
            if len(position):
                at = (sent(part, states.device) for part in (position, classes))
                states = states.index_put(tuple(at), states.new_zeros(()))
        return states, posterior

    def _ask(
        self, model: Classifier, batches: Batches, writer: PosteriorWriter
    ) -> tuple[LogitHistogram, HeldOut]:
        rows = np.arange(len(self.store))
        return ask(model, batches, rows, self.held, writer=writer, **self.asking())

    def asking(self) -> dict[str, Any]:
        """How a model is asked."""
        return {
            "processes": self.processes,
            "precision": self.precision,
            "seen_by": self.counting(),
        }

    def _writer(self, epoch: int) -> PosteriorWriter:
        classes = len(self.store.classes)
        made = PosteriorWriter(self._path(epoch), images=len(self.store), classes=classes)
        if self.processes.main:
            made.make()
        self.processes.wait()
        return made

    def _finish(self, writer: PosteriorWriter, calibration: Calibration) -> None:
        self.processes.wait()
        if self.processes.main:
            writer.finish(calibration)
        self.processes.wait()
        self._open = None

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
