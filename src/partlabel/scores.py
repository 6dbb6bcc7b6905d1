"""Files of predictions: one row of scores per image, as npy or parquet, keyed by image id."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partlabel.errors import DataError, suggest
from partlabel.files import existing_file
from partlabel.store import LabelStore
from partlabel.tables import ImageTable, Rows

_ROWS = 4096


class Scores(NamedTuple):
    """Scores of some images."""

    rows: Rows
    """The rows of the images in the store."""
    values: npt.NDArray[np.float64]
    """(images, classes), in the order of the store's classes."""


def read_scores(path: str | Path, store: LabelStore) -> Iterator[Scores]:
    """Read dense scores in stretches of images.

    ``.npy``: (images, classes), in the order of the store. ``.parquet``: a column ``image_id`` and
    either a column ``scores`` of lists, in the order of the store's classes, or one column per
    class id.
    """
    path = existing_file(path)
    reading = _npy(path, store) if path.suffix == ".npy" else _parquet(path, store)
    for rows, values in reading:
        if not np.isfinite(values).all():
            image, which = np.argwhere(~np.isfinite(values))[0]
            what = f"score {values[image, which]} of image {store.images.show_id(int(rows[image]))}"
            raise DataError(
                f"{what}, class {store.classes.ids[which]}", path=path, fix="must be finite"
            )
        yield Scores(rows, values)


def _npy(path: Path, store: LabelStore) -> Iterator[tuple[Rows, npt.NDArray[np.float64]]]:
    try:
        scores: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"is not readable as npy ({error})", path=path) from error
    wanted = (len(store), len(store.classes))
    if scores.shape != wanted or scores.dtype.kind != "f":
        what = f"has {scores.dtype} {scores.shape}, the store needs floats {wanted}"
        raise DataError(what, path=path, fix="one row per image of the store, in its order")
    for start in range(0, len(scores), _ROWS):
        part = np.asarray(scores[start : start + _ROWS], np.float64)
        yield np.arange(start, start + len(part)), part


def _parquet(path: Path, store: LabelStore) -> Iterator[tuple[Rows, npt.NDArray[np.float64]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
        if "image_id" not in names:
            fix = suggest("image_id", names)
            raise DataError("has no column 'image_id'", path=path, fix=fix)
        lists = "scores" in names
        columns = ["scores"] if lists else list(store.classes.ids)
        missing = [name for name in columns if name not in names]
        if missing:
            what = f"has no column 'scores', and none for {len(missing)} classes ({missing[0]})"
            raise DataError(what, path=path, fix=suggest(missing[0], names))
        for batch in file.iter_batches(_ROWS, columns=["image_id", *columns]):
            rows = _rows(path, store, batch.column("image_id"))
            yield rows, _values(path, batch, columns, len(store.classes), lists=lists)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"is not readable as parquet ({error})", path=path) from error


def _rows(path: Path, store: LabelStore, ids: Any) -> Rows:
    import pyarrow as pa

    wanted = store.images.table["id"].type
    try:
        if wanted == pa.uint64() and not pa.types.is_integer(ids.type):
            ids = pa.array([int(text, 16) for text in ids.to_pylist()], wanted)  # 16 hex digits
        rows = store.images.find(ImageTable.make(ids.cast(wanted)))
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        what = f"image ids of type {ids.type} do not fit the store's {wanted} ({error})"
        raise DataError(what, path=path) from error
    if (rows < 0).any():
        wrong = ids[int(np.argmax(rows < 0))].as_py()
        raise DataError(f"image {wrong!r} is not in the store", path=path)
    return rows


def _values(
    path: Path, batch: Any, columns: list[str], classes: int, *, lists: bool
) -> npt.NDArray[np.float64]:
    if not lists:
        return np.stack([np.asarray(batch.column(name), np.float64) for name in columns], axis=1)
    import pyarrow.compute as pc

    column = batch.column("scores")
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    if (lengths != classes).any():
        what = f"a list in 'scores' has {lengths[lengths != classes][0]} entries"
        raise DataError(what, path=path, fix=f"the store has {classes} classes")
    return np.asarray(column.flatten(), np.float64).reshape(-1, classes)
