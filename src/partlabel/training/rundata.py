"""The data of a run: stores, their splits, and where their images are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from partlabel.config import Config
from partlabel.errors import ClassMismatchError, UsageError
from partlabel.estimate import sample_rows
from partlabel.images import ImageSource, open_images
from partlabel.store import LabelStore
from partlabel.tables import Rows

TRAINING, VALIDATION = ("train",), ("val", "validation")


@dataclass(frozen=True)
class Part:
    """Images and labels of one purpose."""

    store: LabelStore
    source: ImageSource
    name: str
    """For people: the store, and its split."""
    columns: npt.NDArray[np.int64] | None = None
    """Where each class of the store is among the model's classes, if not in the same place."""


def training_part(config: Config) -> Part:
    """What the model is trained on."""
    whole = LabelStore.open(config.data.train)
    return _part(config, config.data.train, whole, config.data.train_split, val=False)


def validation_part(config: Config, train: Part) -> Part | None:
    """What the model is evaluated on, if there is anything."""
    path = config.data.val or config.data.train
    whole = LabelStore.open(path)
    split = config.data.val_split
    if config.data.val is None and split is None and automatic_split(whole, val=True) is None:
        return None
    part = _part(config, path, whole, split, val=True)
    if part.store.classes.ids == train.store.classes.ids:
        return part
    try:
        columns = part.store.classes.positions_in(train.store.classes)
    except ClassMismatchError as error:
        raise ClassMismatchError(f"{path} and {config.data.train}: {error}") from error
    return Part(part.store, part.source, part.name, columns)


def sampled(part: Part, config: Config, count: int) -> Part:
    """A sample of a part, the same for the same seed."""
    rows = sample_rows(part.store.images, count, seed=config.train.seed)
    source = _Some(part.source, rows)
    return Part(part.store.select(rows), source, f"{part.name}, {len(rows):,} images", part.columns)


@dataclass(frozen=True)
class _Some:
    """Some of the images of a source."""

    source: ImageSource
    rows: Rows

    def read(self, row: int) -> bytes:
        """The bytes of an image."""
        return self.source.read(int(self.rows[row]))

    def missing(self, rows: Sequence[int] | Rows) -> list[int]:
        """Those of the rows whose bytes are not there."""
        wanted = self.rows[np.asarray(rows, np.int64)].tolist()
        lost = set(self.source.missing(wanted))
        return [int(row) for row, own in zip(rows, wanted, strict=True) if own in lost]


def automatic_split(store: LabelStore, *, val: bool) -> str | None:
    """The split that is meant where none is named."""
    names = VALIDATION if val else TRAINING
    return next((name for name in names if name in store.images.split_counts), None)


def _part(
    config: Config,
    path: Path,
    whole: LabelStore,
    split: str | None,
    *,
    val: bool,
) -> Part:
    name = split or automatic_split(whole, val=val)
    if not val and name is None and config.data.val is None and automatic_split(whole, val=True):
        there = ", ".join(repr(each) for each in whole.images.split_counts)
        what = f"the store has the splits {there}, and one of them is evaluated on"
        raise config.error("data", "split", what=f"{what}; say which to train on")
    store = whole if name is None else whole.split(name)
    if not len(store):
        raise UsageError(f"{path}: has no images" + (f" in split {name!r}" if name else ""))
    root = config.images.root
    if val and config.images.val_root is not None:
        root = config.images.val_root
    if root is None:
        if not whole.origin.image_root:
            raise UsageError("[images] root: says where the images are, and is missing")
        root = Path(whole.origin.image_root)
    cache = config.images.cache or config.out / "cache"
    source = open_images(config.images.kind, root, store, cache=cache)
    return Part(store, source, f"{path} ({name})" if name else str(path))
