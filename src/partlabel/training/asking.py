"""Models asked about all images: their logits at unknown labels, and at labels held out of theirs.

What is asked is a source: one model or several together, whose logits are kept apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from partlabel.calibrate import HeldOut, Mixture, Samples
from partlabel.histogram import LogitHistogram
from partlabel.losses.base import present_term
from partlabel.model import Classifier
from partlabel.store import LabelStore
from partlabel.tables import Rows
from partlabel.training.dataset import OnDevice
from partlabel.training.posteriors import Posteriors, PosteriorWriter, sent
from partlabel.training.processes import Processes
from partlabel.training.scoring import Batches, Counting, Seen, precision_context

Logits = Callable[[OnDevice, Tensor], Sequence[Tensor]]
"""Of a batch, given its labels (B, C) as a training sees them: float32 (B, C) by each model."""


class Source(NamedTuple):
    """Gives logits of images."""

    models: int
    """How many logits each label gets."""
    logits: Logits
    sampled: bool = False
    """Whether those of the last model know no label by heart, so that all are worth keeping."""


class Told(NamedTuple):
    """What one model said."""

    seen: LogitHistogram
    """At unknown labels."""
    held: HeldOut
    """At those that were held out."""
    shown: float
    """The mean cost -log p of present labels that were learnt from; NaN where there is none."""
    samples: Samples | None
    """At labels of each state, where the source is sampled."""


def head_of(model: Classifier | Counting, precision: str) -> Source:
    """A model, in evaluation mode."""

    def logits(batch: OnDevice, _: Tensor) -> list[Tensor]:
        with precision_context(batch.images.device, precision)():
            return [model(model.normalise(batch.images)).float()]

    model.eval()
    return Source(1, logits)


def heads_of(model: Classifier, precision: str) -> Source:
    """A model with an auxiliary head, in evaluation mode: its head, and the auxiliary one."""

    def logits(batch: OnDevice, _: Tensor) -> list[Tensor]:
        with precision_context(batch.images.device, precision)():
            return [each.float() for each in model.both(model.normalise(batch.images))]

    model.eval()
    return Source(2, logits)


def said(table: Posteriors) -> Source:
    """What was said before."""
    return Source(1, lambda batch, _: [table.log_odds(batch.there, batch.images.device)])


def together(*sources: Source) -> Source:
    """Some sources as one."""

    def logits(batch: OnDevice, shown: Tensor) -> list[Tensor]:
        return [each for source in sources for each in source.logits(batch, shown)]

    return Source(sum(source.models for source in sources), logits, sources[-1].sampled)


def mixed(source: Source, mixture: Mixture) -> Source:
    """A source as one model."""
    return Source(1, lambda batch, shown: [mixture(source.logits(batch, shown))])


class Shown(NamedTuple):
    """The labels of a batch."""

    at: tuple[Tensor, Tensor]
    """Which are held out: image and class."""
    classes: npt.NDArray[np.int64]
    states: npt.NDArray[np.int8]
    """Of these."""
    rest: Tensor
    """int8 (B, C), the labels without them."""


def shown_of(batch: OnDevice, held: LabelStore) -> Shown:
    """The labels of a batch as a training sees them that some are held out of."""
    position, classes, states = held.batch(batch.there)
    at = sent(position, batch.states.device), sent(classes, batch.states.device)
    return Shown(at, classes, states, batch.states.index_put(at, batch.states.new_zeros(())))


@torch.inference_mode()
def ask(
    source: Source,
    batches: Batches,
    rows: Rows,
    held: LabelStore,
    *,
    processes: Processes,
    learnt: Rows | None = None,
    writer: PosteriorWriter | None = None,
    seen_by: Seen | None = None,
) -> list[Told]:
    """What each model of a source says.

    Args:
        source: Who is asked.
        batches: Of images with all their labels, held-out ones too.
        rows: Which images.
        held: The labels that the models were not shown.
        processes: Each takes its share of the images; all get everything.
        learnt: The images whose other labels the models were shown; all, where it is left out.
        writer: Keeps the likeliest classes of each image, where the source is one model.
        seen_by: Hears of every batch.
    """
    number = source.models
    seen = [LogitHistogram(len(held.classes), processes.device) for _ in range(number)]
    known = [LogitHistogram(len(held.classes), processes.device) for _ in "+-" if source.sampled]
    there: list[list[Tensor]] = [[] for _ in seen]
    costs = torch.zeros(number + 1, dtype=torch.float64, device=processes.device)
    labels = []
    for batch in batches(rows[processes.rank :: processes.world]):
        if seen_by is not None:
            seen_by.see(batch)
        if not len(batch.there):
            continue
        shown = shown_of(batch, held)
        logits, unknown = source.logits(batch, shown.rest), batch.states == 0
        present = _learnt(shown.rest > 0, batch.there, learnt)
        labels.append((shown.classes, shown.states))
        costs[-1] += present.sum()
        for i, (histogram, kept, each) in enumerate(zip(seen, there, logits, strict=True)):
            histogram.update(each, unknown)
            kept.append(each[shown.at])
            costs[i] += (present_term(each) * present).sum()
        if known:
            known[0].update(logits[-1], batch.states > 0)
            known[1].update(logits[-1], batch.states < 0)
        if writer is not None:
            # To the training what is held out is unknown for a while.
            writer.write(batch.there, logits[0], shown.rest == 0)
    if writer is not None:
        writer.flush()
    classes = _joined([c for c, _ in labels], np.int64)
    states = _joined([s for _, s in labels], np.int8)
    means = (processes.add(costs)[:-1] / costs[-1]).tolist()
    for histogram in (*seen, *known):
        histogram.all_reduce()
    told = []
    for i, (histogram, kept) in enumerate(zip(seen, there, strict=True)):
        own = _joined([each.double().cpu().numpy() for each in kept], np.float64), classes, states
        parts = zip(*processes.gather(own), strict=True)
        samples = Samples(known[0], known[1], histogram) if known and i == number - 1 else None
        told.append(
            Told(histogram, HeldOut(*(np.concatenate(part) for part in parts)), means[i], samples)
        )
    return told


def _learnt(labels: Tensor, there: Rows, learnt: Rows | None) -> Tensor:
    """Which labels (B, C) of some images the models have learnt from, where some are theirs."""
    if learnt is None:
        return labels
    return labels & sent(np.isin(there, learnt), labels.device)[:, None]


def _joined(parts: list[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, kind)
