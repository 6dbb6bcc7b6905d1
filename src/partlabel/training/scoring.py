"""Models over the images of a store: scores at annotated pairs, or histograms of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from partlabel.estimate import LogitHistogram
from partlabel.metrics import AveragePrecision
from partlabel.model import Classifier
from partlabel.tables import Rows
from partlabel.training.dataset import OnDevice, Skipped
from partlabel.training.processes import Processes
from partlabel.training.rundata import Part


class Seen(NamedTuple):
    """Hears of every batch: how many images were read, and which could not be."""

    read: Callable[[int], None]
    skipped: Callable[[list[Skipped]], None]

    def see(self, batch: OnDevice) -> None:
        """A batch is there."""
        self.read(len(batch.rows))
        self.skipped(batch.skipped)


class Batches(Protocol):
    """Gives images and labels of some rows of a store, on the device."""

    def __call__(self, rows: Rows) -> Iterator[OnDevice]:
        """Batches of these rows, in order."""


class Counting(nn.Module):
    """A model by its auxiliary head, which was trained in Ignore mode.

    Args:
        model: Has one.
    """

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def normalise(self, images: Tensor) -> Tensor:
        """As the model does."""
        return self.model.normalise(images)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of that head."""
        return self.model.both(images)[1]


def counting(model: Classifier) -> Classifier | Counting:
    """What of a model says how frequent classes are: its head in Ignore mode, if it has one."""
    return model if model.auxiliary is None else Counting(model)


def precision_context(device: torch.device, precision: str) -> Callable[[], Any]:
    """Autocast for a precision, or nothing."""
    types = {"bf16": torch.bfloat16, "fp16": torch.float16}
    if precision not in types:
        return nullcontext
    dtype = types[precision]

    def context() -> AbstractContextManager[Any]:
        return torch.autocast(device.type, dtype)

    return context


def chosen_precision(wanted: str, device: torch.device) -> str:
    """bf16 where a GPU has it, else fp32, unless something else is wanted."""
    if wanted != "auto":
        return wanted
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"


@torch.inference_mode()
def score(
    models: dict[str, Classifier],
    part: Part,
    batches: Batches,
    *,
    processes: Processes,
    precision: str,
    make_metric: Callable[[], AveragePrecision],
    seen_by: Seen | None = None,
) -> dict[str, AveragePrecision]:
    """Score every model on the images of a store, each image read once.

    With several processes each takes its share of the images; the metrics gather when computed.
    """
    context = precision_context(processes.device, precision)
    metrics = {name: make_metric() for name in models}
    columns = None if part.columns is None else torch.from_numpy(part.columns)
    for model in models.values():
        model.eval()
    for batch in batches(np.arange(processes.rank, len(part.store), processes.world)):
        if seen_by is not None:
            seen_by.see(batch)
        if not len(batch.rows):
            continue
        for name, model in models.items():
            with context():
                logits = model(model.normalise(batch.images))
            logits = _in_order(logits.float(), columns)
            metrics[name].update(logits, batch.states, images=batch.rows)
    return metrics


@torch.inference_mode()
def histogram(
    model: Classifier | Counting,
    batches: Batches,
    rows: Rows,
    *,
    num_classes: int,
    processes: Processes,
    precision: str,
    seen_by: Seen | None = None,
) -> LogitHistogram:
    """What a model predicts on images, for the prior."""
    context = precision_context(processes.device, precision)
    seen = LogitHistogram(num_classes, processes.device)
    model.eval()
    for batch in batches(rows[processes.rank :: processes.world]):
        if len(batch.rows):
            with context():
                logits = model(model.normalise(batch.images))
            seen.update(logits.float())
        if seen_by is not None:
            seen_by.see(batch)
    seen.all_reduce()
    return seen


def _in_order(logits: Tensor, columns: Tensor | None) -> Tensor:
    return logits if columns is None else logits[:, columns.to(logits.device)]
