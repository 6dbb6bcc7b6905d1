"""A sample of the training images, scored by the model that learnt from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from partlabel import draw
from partlabel.config import Config
from partlabel.errors import UsageError
from partlabel.images import ImageSource
from partlabel.losses.selective import Selective
from partlabel.prediction.missing import columns_of
from partlabel.prediction.pictures import Picture
from partlabel.prediction.predict import Predictor
from partlabel.report.material import Cell, Material
from partlabel.report.wording import one_line
from partlabel.store import LabelStore
from partlabel.training.online import give_prior
from partlabel.training.rundata import training_labels, training_part

POOL = 256
"""Images that are scored."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Sample:
    """Scored images: what is known of them, and what the loss makes of the rest."""

    store: LabelStore
    source: ImageSource
    rows: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float32]
    states: npt.NDArray[np.int8]
    likely: Bools
    """Ignored, since among the most likely unknown labels of the image."""
    frequent: Bools
    """Ignored, since the class is frequent."""
    probable: Bools
    """Unknown, and above the threshold."""
    truth: npt.NDArray[np.int8] | None
    loss: Any
    from_run: bool
    """Whether the run chose thresholds; else a label is probable from one half."""

    @property
    def ignored(self) -> Bools:
        """By either reason."""
        return self.likely | self.frequent


def score_sample(material: Material, cell: Cell) -> Sample:
    """Score images, the same ones every time; whatever is missing for that raises an error."""
    if cell.folder is None or not (cell.folder / "checkpoints").is_dir():
        raise UsageError(f"{cell.title}: has no checkpoint (any more), so no image can be scored")
    predictor = Predictor.open(cell.folder)
    part = training_part(predictor.config)
    store = part.store
    keys = draw.image_keys(store.images, seed=0, purpose="report")
    rows = np.argsort(keys, kind="stable")[:POOL].astype(np.int64)
    columns = columns_of(store, predictor, predictor.config.data.train)
    scored = list(predictor.scores(_Chosen(store, part.source, rows), columns=columns))
    there = [int(picture.place) for each in scored for picture in each.pictures]
    if not there:
        reasons = [skipped.reason for each in scored for skipped in each.skipped]
        raise UsageError(f"no image can be read; the first: {one_line(reasons[0])}")
    rows = np.array(there, np.int64)
    logits = np.concatenate([each.logits for each in scored])
    states = store.dense(rows)
    loss = rebuilt_loss(predictor.config, store, cell)
    likely, frequent = _why(loss, logits, states == 0)
    found = predictor.thresholds()
    thresholds = 0.0 if found is None else found.align(store.classes)
    return Sample(
        store=store,
        source=part.source,
        rows=rows,
        logits=logits,
        states=states,
        likely=likely,
        frequent=frequent,
        probable=(states == 0) & (logits >= thresholds),
        truth=_truth(material, store, rows),
        loss=loss,
        from_run=found is not None,
    )


@dataclass(frozen=True)
class _Chosen:
    """Some images of a store, for a predictor."""

    store: LabelStore
    source: ImageSource
    rows: npt.NDArray[np.int64]
    ids_are = "string"

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, stop: int) -> Iterator[Picture]:
        """Those from ``start`` to ``stop``."""
        return (Picture(self.store.images.show_id(int(r)), int(r)) for r in self.rows[start:stop])

    def read(self, picture: Picture) -> bytes:
        """The bytes of the file."""
        return self.source.read(int(picture.place))


def rebuilt_loss(config: Config, store: LabelStore, cell: Cell) -> Any:
    """The loss as it was at the end of the training, with its prior."""
    known: dict[str, Any] = {
        "num_images": 1,
        "num_classes": len(store.classes),
        "epochs": config.train.epochs,
    }
    prior = cell.prior if config.needs_prior else None
    if config.needs_prior:
        if prior is None:
            raise UsageError("the run has no prior.csv, so what its loss ignored is not known")
        known["prior"] = prior.align(store.classes)
    given = {key: value for key, value in known.items() if key not in config.loss.params}
    loss = config.build_loss(**given)
    if prior is not None:
        give_prior(loss, prior, store.classes, config.prior)
    return loss


def _why(loss: Any, logits: npt.NDArray[np.float32], unknown: Bools) -> tuple[Bools, Bools]:
    """Where an unknown label is ignored by its likelihood, and where by its class."""
    nothing = np.zeros(unknown.shape, bool)
    if not isinstance(loss, Selective):
        return nothing, nothing
    likely = loss.likely(torch.from_numpy(logits), torch.from_numpy(unknown))
    frequent = nothing
    if loss.frequent is not None and loss.prior_mode == "hard":
        frequent = unknown & loss.frequent.numpy()
    return nothing if likely is None else likely.numpy() & unknown, frequent


def _truth(
    material: Material, store: LabelStore, rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.int8] | None:
    """All labels of the images, where the comparison began from complete ones."""
    if material.kind != "compare" or material.config is None:
        return None
    whole = training_labels(material.config).store
    if not whole.complete:
        return None
    found = whole.images.find(store.images.take(rows))
    if (found < 0).any():
        return None
    return whole.dense(found)[:, store.classes.positions_in(whole.classes)]
