"""The data of a run: stores, their splits, and where their images are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from partlabel.config import Config
from partlabel.errors import ClassMismatchError, UsageError
from partlabel.estimate import sample_rows
from partlabel.holdout import held_out_share, hold_out
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
    root: Path | None = None
    """Where the images are."""


@dataclass(frozen=True)
class Labels:
    """The labels of one purpose, before anybody looks for images."""

    store: LabelStore
    """Of the split alone."""
    path: Path
    split: str | None


def training_labels(config: Config) -> Labels:
    """What the model is trained on."""
    data, whole = config.data, LabelStore.open(config.data.train)
    name = data.train_split or automatic_split(whole, val=False)
    if name is None and data.val is None and automatic_split(whole, val=True):
        there = ", ".join(repr(each) for each in whole.images.split_counts)
        what = f"the store has the splits {there}, and one of them is evaluated on"
        raise config.error("data", "split", what=f"{what}; say which to train on")
    return _labels(data.train, whole, name)


def validation_labels(config: Config) -> Labels | None:
    """What the model is evaluated on, if there is anything."""
    path = config.data.val or config.data.train
    whole = LabelStore.open(path)
    name = config.data.val_split or automatic_split(whole, val=True)
    return None if config.data.val is None and name is None else _labels(path, whole, name)


def training_part(config: Config) -> Part:
    """What the model is trained on, with its images."""
    return _part(config, training_labels(config), config.images.root)


def validation_part(config: Config, train: Part) -> Part | None:
    """What the model is evaluated on, if there is anything."""
    labels = validation_labels(config)
    if labels is None:
        return None
    part = _part(config, labels, config.images.val_root or config.images.root)
    if part.store.classes.ids == train.store.classes.ids:
        return part
    try:
        columns = part.store.classes.positions_in(train.store.classes)
    except ClassMismatchError as error:
        raise ClassMismatchError(f"{labels.path} and {config.data.train}: {error}") from error
    return replace(part, columns=columns)


def sampled(part: Part, config: Config, count: int) -> Part:
    """A sample of a part, the same for the same seed."""
    rows = sample_rows(part.store.images, count, seed=config.train.seed)
    name = f"{part.name}, {len(rows):,} images"
    return replace(part, store=part.store.select(rows), source=_Some(part.source, rows), name=name)


def held_back(part: Part, seed: int) -> tuple[Part, LabelStore]:
    """A part without some annotations, and those: enough to calibrate a model by them."""
    store = part.store
    if store.complete:
        what = f"{part.name} has complete labels, so there is nothing to estimate of unknown ones"
        raise UsageError(f"{what}; leave out [train] hold_out and [prior] use")
    share = held_out_share(store.counts())
    left, held = hold_out(store, share, seed=seed)
    return replace(part, store=left, name=f"{part.name}, some labels held out"), held


def looks(part: Part) -> tuple[str, str]:
    """Which images a part has, in which order, and where: equal for parts that look the same.

    By value: how Arrow keeps a column changes when a store is saved and opened. For sets that fit
    on a device; it makes Python objects of all ids and paths.
    """
    images, digest = part.store.images, hashlib.sha256()
    others = [name for name in images.table.column_names if name not in ("path", "split")]
    for column in (images.paths(range(len(images))), *map(images.table.column, others)):
        digest.update(repr(column if isinstance(column, list) else column.to_pylist()).encode())
    return str(part.root and part.root.absolute()), digest.hexdigest()


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


def _labels(path: Path, whole: LabelStore, split: str | None) -> Labels:
    store = whole if split is None else whole.split(split)
    if not len(store):
        raise UsageError(f"{path}: has no images" + (f" in split {split!r}" if split else ""))
    return Labels(store, path, split)


def _part(config: Config, labels: Labels, root: Path | None) -> Part:
    store = labels.store
    if root is None:
        if not store.origin.image_root:
            raise UsageError("[images] root: says where the images are, and is missing")
        root = Path(store.origin.image_root)
    cache = config.images.cache or config.out / "cache"
    source = open_images(config.images.kind, root, store, cache=cache)
    name = f"{labels.path} ({labels.split})" if labels.split else str(labels.path)
    return Part(store, source, name, root=root)
