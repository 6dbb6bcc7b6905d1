"""The embedded data set: rendered scenes with complete labels, made on the fly from a seed.

It has what real data has: a few labels hold in most images (colours, place, light), next to many
rare things, long-tailed, that like some places and each other's company.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partlabel.assemble import code_type
from partlabel.demo.render import SIZE, Images, render
from partlabel.demo.scenes import CLASSES, draw_scenes, labels_of
from partlabel.errors import StoreError, UsageError
from partlabel.meta import Origin, read_meta
from partlabel.store import LabelStore
from partlabel.tables import ClassTable, ImageTable

Numbers = npt.NDArray[np.int64]
Labels = npt.NDArray[np.bool_]

__all__ = ["CLASSES", "SIZE", "DemoData", "found_demo", "generate", "write_demo"]

TRAIN, VAL = 6_000, 3_000
_VAL_FROM = 1_000_000_000  # numbers of scenes to evaluate on: the same for any number to train on
_AT_ONCE = 64  # scenes that fit into a core's cache
_QUALITY = 92
_SIGNATURE = b"partlabel.demo"
_VERSION = 1  # of what is drawn: another one is another data set


class DemoData(NamedTuple):
    """Where the data set is."""

    store: Path
    """Complete labels, with the splits train and val."""
    images: Path
    """The pictures, as JPEG in a parquet file."""


def generate(seed: int, numbers: Numbers) -> Iterator[tuple[Images, Labels]]:
    """Pictures (n, 64, 64, 3) and their labels (n, CLASSES), some at a time.

    A scene depends on the seed and its own number alone.

    Example:
        >>> pictures, labels = next(generate(0, np.arange(2)))
        >>> pictures.shape, [CLASSES[i] for i in np.flatnonzero(labels[1])][:4]
        ((2, 64, 64, 3), ['outdoor', 'daylight', 'sky', 'road'])
    """
    for start in range(0, len(numbers), _AT_ONCE):
        drawn = draw_scenes(seed, numbers[start : start + _AT_ONCE])
        yield render(drawn), labels_of(drawn)


def write_demo(
    folder: Path,
    *,
    seed: int = 0,
    train: int = TRAIN,
    val: int = VAL,
    progress: Callable[[int], None] | None = None,
) -> DemoData:
    """Write the data set as a label store and a parquet file of images.

    Args:
        folder: Where to; it is made.
        seed: Which of all such data sets.
        train: Images to train on.
        val: Images to evaluate on.
        progress: Is told how many images more are done.
    """
    if not 0 < train < _VAL_FROM or not 0 < val < _VAL_FROM:
        raise UsageError(f"the demo needs images to train and to evaluate on, got {train}, {val}")
    numbers = np.concatenate([np.arange(train), _VAL_FROM + np.arange(val)])
    data = DemoData(folder / "data.labels", folder / "images.parquet")
    made_by = _made_by(seed, train, val)
    try:
        _refuse_others(data)
        folder.mkdir(parents=True, exist_ok=True)
        present = _write_images(data.images, made_by, numbers, progress)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be written ({error.strerror or error})") from error
    store = LabelStore(
        ClassTable(CLASSES),
        ImageTable.make(numbers, splits=["train"] * train + ["val"] * val),
        indptr=np.concatenate([[0], np.cumsum(present.sum(1))]),
        codes=np.nonzero(present)[1].astype(code_type(len(CLASSES))),
        complete=True,
        origin=Origin(made_by=made_by),
    )
    store.save(data.store, overwrite=True)
    return data


def found_demo(folder: Path, *, seed: int, train: int, val: int) -> DemoData | None:
    """The data set that is in a folder, if it is this one and whole."""
    data = DemoData(folder / "data.labels", folder / "images.parquet")
    wanted = _made_by(seed, train, val)
    try:
        whole = _drawn_as(data.images) == wanted == LabelStore.open(data.store).origin.made_by
    except (StoreError, OSError):
        return None
    return data if whole else None


def _drawn_as(images: Path) -> dict[str, int] | None:
    """What a file of pictures says it was drawn as; None if it is not ours, or not whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        about = pq.read_schema(images).metadata or {}
        return dict(json.loads(about[_SIGNATURE]))
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None


def _refuse_others(data: DemoData) -> None:
    """Refuse to replace what is not a demo's."""
    if data.store.exists():
        try:
            ours = "demo" in read_meta(data.store)["made_by"]  # damaged or not
        except (StoreError, KeyError, TypeError):
            ours = False
        foreign = None if ours else data.store
    else:
        foreign = data.images if data.images.exists() and _drawn_as(data.images) is None else None
    if foreign is not None:
        raise UsageError(f"{foreign}: is there, and is not the demo's; choose another --out")


def _made_by(seed: int, train: int, val: int) -> dict[str, int]:
    return {"demo": _VERSION, "seed": seed, "train": train, "val": val}


def _write_images(
    path: Path,
    made_by: dict[str, int],
    numbers: Numbers,
    progress: Callable[[int], None] | None,
) -> Labels:
    """Write the pictures in one step, and give their labels."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import simplejpeg  # type: ignore[import-untyped]

    about = {_SIGNATURE: json.dumps(made_by).encode()}
    schema = pa.schema({"image_id": pa.int64(), "jpeg": pa.binary()}, metadata=about)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    present: list[Labels] = []
    done = 0
    try:
        with pq.ParquetWriter(temporary, schema, compression="none") as writer:
            for pictures, labels in generate(made_by["seed"], numbers):
                jpegs = [simplejpeg.encode_jpeg(each, _QUALITY, "RGB", "444") for each in pictures]
                ids = numbers[done : done + len(labels)]
                writer.write_table(pa.table([ids, jpegs], schema=schema))
                present.append(labels)
                done += len(labels)
                if progress is not None:
                    progress(len(labels))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return np.concatenate(present)
