"""A trained model over any number of images: scores batch by batch, memory that does not grow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from partlabel.config import Config
from partlabel.errors import DataError
from partlabel.metrics import Thresholds
from partlabel.model import Classifier
from partlabel.prediction.pictures import Picture, Pictures
from partlabel.prediction.reading import Read, Skipped, Stretch
from partlabel.tables import ClassTable, Rows
from partlabel.training.runfolder import RunFolder
from partlabel.training.scoring import chosen_precision, precision_context
from partlabel.training.trained import load_model

Floats = npt.NDArray[np.float32]


class Scored(NamedTuple):
    """Scores of some images, on the host."""

    pictures: list[Picture]
    logits: Floats
    """(images, classes), or (images, k) the k highest, in descending order."""
    classes: Rows | None
    """(images, k), which classes these are; None for all in their order."""
    skipped: list[Skipped]


class Labels(NamedTuple):
    """Pairs of image and class: four arrays of equal length, by image, then the best first."""

    position: Rows
    """Which of the images of a batch."""
    classes: Rows
    logits: Floats


@dataclass(frozen=True)
class Predictor:
    """The model of a run, and what goes with it."""

    folder: RunFolder
    config: Config
    classes: ClassTable
    model: Classifier
    device: torch.device
    step: int
    """Of the training, that it is from."""

    @classmethod
    def open(
        cls,
        run: str | Path,
        *,
        device: torch.device | None = None,
        say: Callable[[str], None] | None = None,
    ) -> Predictor:
        """Load the model that a run has left; ``say`` hears of damaged checkpoints."""
        folder = RunFolder.existing(run)
        device = device or torch.device("cpu")
        model, classes, step = load_model(folder, device, say=say)
        if device.type == "cuda":
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return cls(folder, folder.config, classes, model, device, step)

    def thresholds(self) -> Thresholds | None:
        """The thresholds that the run chose on its validation set, if it has one."""
        path = self.folder.path / "thresholds.csv"
        return Thresholds.read(path) if path.is_file() else None

    def scores(  # noqa: PLR0913 - which images, and how they get there
        self,
        pictures: Pictures,
        *,
        start: int = 0,
        stop: int | None = None,
        batch_size: int = 64,
        workers: int = 0,
        top_k: int | None = None,
        columns: Rows | None = None,
    ) -> Iterator[Scored]:
        """Score images, in order; those that cannot be read are left out and named.

        Args:
            pictures: The images.
            start: The first of them.
            stop: The first that is left out.
            batch_size: Images at a time.
            workers: Processes that read and decode; 0 is this one.
            top_k: Give the highest so many of each image only.
            columns: Give these classes in this order, in place of all.
        """
        stop = len(pictures) if stop is None else stop
        part = Stretch(pictures, start, stop)
        waiting: _Result | None = None
        for read in part.batches(batch_size, size=self.model.info.size, workers=workers):
            coming = self._forward(read, top_k, columns)
            if waiting is not None:
                yield waiting.get()
            waiting = coming
        if waiting is not None:
            yield waiting.get()

    @torch.inference_mode()
    def _forward(self, read: Read, top_k: int | None, columns: Rows | None) -> _Result:
        """Begin a batch; on a GPU the one before is taken care of meanwhile."""
        model, device = self.model, self.device
        # As the run was evaluated; but a CPU is slow in half precision, or lacks it.
        wanted = self.config.train.precision if device.type == "cuda" else "fp32"
        context = precision_context(device, chosen_precision(wanted, device))
        if not len(read.images):
            width = len(self.classes) if columns is None else len(columns)
            empty = torch.empty((0, width if top_k is None else min(top_k, width)))
            none = None if top_k is None else torch.empty(empty.shape, dtype=torch.int64)
            return _Result(read, empty, none, None)
        images = model.normalise(read.images.to(device, non_blocking=True))
        if device.type == "cuda":
            images = images.contiguous(memory_format=torch.channels_last)
        with context():
            logits = model(images)
        logits, which = logits.float(), None
        if columns is not None:
            logits = logits[:, torch.from_numpy(columns).to(device)]
        if top_k is not None:
            logits, which = logits.topk(min(top_k, logits.shape[1]), dim=1)
            which = which.to("cpu", non_blocking=True)
        logits, event = logits.to("cpu", non_blocking=True), None
        if device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        return _Result(read, logits, which, event)


def share(count: int, rank: int, world: int) -> tuple[int, int]:
    """The stretch of images that a process takes; one after the other they are all.

    Example:
        >>> [share(10, rank, 3) for rank in range(3)]
        [(0, 3), (3, 6), (6, 10)]
    """
    return count * rank // world, count * (rank + 1) // world


def select(scored: Scored, thresholds: npt.NDArray[np.float64] | None) -> Labels:
    """The pairs that are at least at the threshold of their class; all, where there is none."""
    logits, classes = scored.logits, scored.classes
    if classes is None:
        classes = np.broadcast_to(np.arange(logits.shape[1]), logits.shape)
    keep = np.ones(logits.shape, bool) if thresholds is None else logits >= thresholds[classes]
    position, place = np.nonzero(keep)
    values, which = logits[position, place], classes[position, place]
    if scored.classes is None:
        order = np.lexsort((-values, position))
        position, values, which = position[order], values[order], which[order]
    return Labels(position, which, values)


def probabilities(logits: Floats) -> Floats:
    """Logits as probabilities, exact also where they are small."""
    # In float64: torch rounds float32 otherwise at the end of an array than within.
    wide = torch.from_numpy(np.ascontiguousarray(logits)).double()
    found: Floats = wide.sigmoid().float().numpy()
    return found


def logit(probability: float) -> float:
    """A probability as a logit.

    Example:
        >>> logit(0.5), logit(1)
        (0.0, inf)
    """
    if probability in (0, 1):
        return math.inf if probability else -math.inf
    return math.log(probability) - math.log1p(-probability)


class _Result(NamedTuple):
    """A batch that may still be computed."""

    read: Read
    logits: Tensor
    classes: Tensor | None
    event: Any

    def get(self) -> Scored:
        """Wait for it."""
        if self.event is not None:
            self.event.synchronize()
        logits = self.logits.numpy()
        if not np.isfinite(logits).all():
            at = int(np.argmax(~np.isfinite(logits).all(axis=1)))
            name = self.read.pictures[at].key
            raise DataError(f"the model's score of image {name!r} is not finite; it is broken")
        classes = None if self.classes is None else self.classes.numpy()
        return Scored(self.read.pictures, logits, classes, self.read.skipped)
