"""Models asked about all images: their logits at unknown labels, and at labels held out of theirs.

What is asked is a source: one model or several together, whose logits are kept apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from partlabel.calibrate import HeldOut, Mixture
from partlabel.histogram import LogitHistogram
from partlabel.losses.base import present_term
from partlabel.model import Classifier
from partlabel.store import LabelStore
from partlabel.tables import Rows
from partlabel.training.dataset import OnDevice
from partlabel.training.posteriors import Posteriors, PosteriorWriter
from partlabel.training.processes import Processes
from partlabel.training.scoring import Batches, Counting, Seen, precision_context


class Source(NamedTuple):
    """Gives logits of images."""

    models: int
    """How many logits each label gets."""
    logits: Callable[[OnDevice], Sequence[Tensor]]
    """Of a batch, float32 (B, C) by each."""


class Told(NamedTuple):
    """What one model said."""

    seen: LogitHistogram
    """At unknown labels."""
    held: HeldOut
    """At those that were held out."""
    shown: float
    """The mean cost -log p of present labels that were not; NaN where there is none."""


def head_of(model: Classifier | Counting, precision: str) -> Source:
    """A model, in evaluation mode."""

    def logits(batch: OnDevice) -> list[Tensor]:
        with precision_context(batch.images.device, precision)():
            return [model(model.normalise(batch.images)).float()]

    model.eval()
    return Source(1, logits)


def heads_of(model: Classifier, precision: str) -> Source:
    """A model with an auxiliary head, in evaluation mode: its head, and the auxiliary one."""

    def logits(batch: OnDevice) -> list[Tensor]:
        with precision_context(batch.images.device, precision)():
            return [each.float() for each in model.both(model.normalise(batch.images))]

    model.eval()
    return Source(2, logits)


def beside(table: Posteriors, source: Source) -> Source:
    """What was said before, and then what a source says."""

    def logits(batch: OnDevice) -> list[Tensor]:
        return [table.log_odds(batch.there, batch.images.device), *source.logits(batch)]

    return Source(1 + source.models, logits)


def mixed(source: Source, mixture: Mixture) -> Source:
    """A source as one model."""
    return Source(1, lambda batch: [mixture(source.logits(batch))])


@torch.inference_mode()
def ask(
    source: Source,
    batches: Batches,
    rows: Rows,
    held: LabelStore,
    *,
    processes: Processes,
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
        writer: Keeps the likeliest classes of each image, where the source is one model.
        seen_by: Hears of every batch.
    """
    seen = [LogitHistogram(len(held.classes), processes.device) for _ in range(source.models)]
    there: list[list[Tensor]] = [[] for _ in seen]
    shown = torch.zeros(source.models + 1, dtype=torch.float64, device=processes.device)
    labels = []
    for batch in batches(rows[processes.rank :: processes.world]):
        if seen_by is not None:
            seen_by.see(batch)
        if not len(batch.there):
            continue
        logits, unknown = source.logits(batch), batch.states == 0
        position, classes, states = held.batch(batch.there)
        at = tuple(torch.from_numpy(part).to(unknown.device) for part in (position, classes))
        labels.append((classes, states))
        present = batch.states > 0
        present[at] = False
        shown[-1] += present.sum()
        for i, (histogram, kept, each) in enumerate(zip(seen, there, logits, strict=True)):
            histogram.update(each, unknown)
            kept.append(each[at])
            shown[i] += (present_term(each) * present).sum()
        if writer is not None:
            unknown[at] = True  # to the training they are unknown for a while
            writer.write(batch.there, logits[0], unknown)
    if writer is not None:
        writer.flush()
    classes = _joined([c for c, _ in labels], np.int64)
    states = _joined([s for _, s in labels], np.int8)
    told = []
    means = (processes.add(shown)[:-1] / shown[-1]).tolist()
    for histogram, kept, mean in zip(seen, there, means, strict=True):
        histogram.all_reduce()
        own = _joined([each.double().cpu().numpy() for each in kept], np.float64), classes, states
        parts = zip(*processes.gather(own), strict=True)
        told.append(Told(histogram, HeldOut(*(np.concatenate(part) for part in parts)), mean))
    return told


def _joined(parts: list[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, kind)
