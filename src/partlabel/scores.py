"""Files of predictions: scores per image or per pair, as npy or parquet, keyed by image id.

dense   ``.npy`` (images, classes), in the order of the store or of a list of image ids beside it;
        ``.parquet`` with ``image_id`` and a column ``scores`` of lists, in the order of the store's
        classes, or one column per class id
pairs   ``image_id``, ``class_id`` and ``score`` in one row per pair: ``.parquet``, or ``.npy`` with
        these fields
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from partlabel.arrays import Floats, load, numbers, parquet, read_column, read_ids, schema, wide
from partlabel.errors import ClassMismatchError, DataError, UsageError, suggest
from partlabel.files import existing_file
from partlabel.store import LabelStore
from partlabel.tables import ImageTable, Rows

_VALUES_AT_ONCE = 1 << 22
_PAIRS_AT_ONCE = 1 << 20
_PAIR_COLUMNS = ("image_id", "class_id", "score")
_COMMON = "--common evaluates what both have"


class Scores(NamedTuple):
    """Scores of some images."""

    rows: Rows
    """The rows of the images in the store."""
    values: Floats
    """(images, classes), in the order of the store's classes; float32 or float64."""


class ScoredPairs(NamedTuple):
    """Scores of some pairs."""

    rows: Rows
    classes: Rows
    values: Floats


class DenseScores:
    """A file with a score for every class of each image.

    Args:
        path: See the top of this module.
        store: Where the images and classes are looked up.
        image_ids: For npy files: a text file with the id of each row.
        common: Take what file and store have in common, instead of refusing a difference.
        sample: The file may lack images of the store.
    """

    def __init__(
        self,
        path: Path,
        store: LabelStore,
        *,
        image_ids: Path | None = None,
        common: bool = False,
        sample: bool = False,
    ) -> None:
        self.path, self.store = path, store
        self.left_out: list[str] = []
        self.has_class = np.ones(len(store.classes), bool)
        self._hint = "" if sample else f"; {_COMMON}"
        self._ids: Any = None
        if path.suffix == ".npy":
            self._array = load(path)
            self._rows = self._rows_of_npy(image_ids)
        else:
            self._columns = self._class_columns(common=common)
            self._ids = read_column(path, "image_id")
            self._rows = _find(path, store, self._ids)
        self._compare_images(common=common, sample=sample)

    def _rows_of_npy(self, image_ids: Path | None) -> Rows:
        classes = len(self.store.classes)
        ids = None if image_ids is None else read_ids(image_ids)
        images = len(self.store) if ids is None else len(ids)
        wanted = (images, classes)
        if self._array.shape != wanted or self._array.dtype.kind != "f":
            what = f"has {self._array.dtype} {self._array.shape}, the store needs floats {wanted}"
            fix = "one row per image of the store, in its order, or of --image-ids"
            raise DataError(what, path=self.path, fix=fix)
        if ids is None:
            return np.arange(len(self.store))
        import pyarrow as pa

        self._ids = pa.array(ids)
        return _find(self.path, self.store, self._ids)

    def _class_columns(self, *, common: bool) -> list[str] | None:
        """The columns to read, or None where there is one with lists."""
        names = schema(self.path).names
        if "image_id" not in names:
            raise DataError(
                "has no column 'image_id'", path=self.path, fix=suggest("image_id", names)
            )
        if "scores" in names and "scores" not in self.store.classes.index:
            return None
        ids = self.store.classes.ids
        self.has_class = np.array([name in names for name in ids], bool)
        missing = [name for name in ids if name not in names]
        if missing and (not common or not self.has_class.any()):
            extra = [name for name in names if name not in ids and name != "image_id"]
            what = f"has no column 'scores', and none for {len(missing)} classes ({missing[0]})"
            there = f", but {len(extra)} others ({extra[0]})" if extra else ""
            fix = suggest(missing[0], names, most=3)
            raise DataError(f"{what}{there}", path=self.path, fix=f"{fix}{self._hint}")
        if missing:
            self.left_out.append(f"{len(missing):,} classes have no scores ({missing[0]})")
        return [name for name in ids if name in names]

    def _compare_images(self, *, common: bool, sample: bool) -> None:
        seen = np.zeros(len(self.store), np.int64)
        inside = self._rows[self._rows >= 0]
        np.add.at(seen, inside, 1)
        if (seen > 1).any():
            which = self.store.images.show_id(int(np.argmax(seen > 1)))
            raise DataError(f"image {which!r} is there twice", path=self.path)
        extra, lacking = len(self._rows) - len(inside), 0 if sample else int((seen == 0).sum())
        for count, text in (
            (extra, "images are not in the store"),
            (lacking, "images of the store have no scores"),
        ):
            if count and common:
                self.left_out.append(f"{count:,} {text}")
        if common and not len(inside):
            raise DataError("has no image of the store", path=self.path)
        if common:
            return
        if extra:
            wrong = self._ids[int(np.argmax(self._rows < 0))].as_py()
            what = f"image {wrong!r} is not in the store"
            more = f", nor are {extra - 1:,} others" if extra > 1 else ""
            raise DataError(f"{what}{more}{self._hint}", path=self.path)
        if lacking:
            first = self.store.images.show_id(int(np.argmin(seen)))
            what = f"has no scores for {lacking:,} of {len(seen):,} images ({first!r})"
            raise DataError(what, path=self.path, fix=f"{_COMMON}, --split takes one split")

    def stretches(self) -> Iterator[Scores]:
        """The scores, some images at a time; refuses what is not finite."""
        position = 0
        for values in self._stretches(max(1, _VALUES_AT_ONCE // max(len(self.has_class), 1))):
            rows = self._rows[position : position + len(values)]
            position += len(values)
            if (rows < 0).any():
                values, rows = values[rows >= 0], rows[rows >= 0]
            self._check(rows, values)
            yield Scores(rows, values)

    def _stretches(self, size: int) -> Iterator[Floats]:
        if self.path.suffix == ".npy":
            for start in range(0, len(self._array), size):
                yield wide(np.asarray(self._array[start : start + size]))
            return
        import pyarrow as pa

        try:
            for batch in parquet(self.path).iter_batches(size, columns=self._columns or ["scores"]):
                yield self._values(batch)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"is not readable as parquet ({error})", path=self.path) from error

    def _values(self, batch: Any) -> Floats:
        classes = len(self.has_class)
        if self._columns is not None:
            columns = [numbers(self.path, batch.column(name), name) for name in self._columns]
            if len(columns) == classes:
                return np.stack(columns, axis=1)
            values = np.zeros((len(batch), classes), columns[0].dtype)
            values[:, self.has_class] = np.stack(columns, axis=1)
            return values
        import pyarrow.compute as pc

        column = batch.column("scores")
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        if (lengths != classes).any():
            what = f"a list in 'scores' has {lengths[lengths != classes][0]} entries"
            raise DataError(what, path=self.path, fix=f"the store has {classes} classes")
        return numbers(self.path, column.flatten(), "scores").reshape(-1, classes)

    def _check(self, rows: Rows, values: Floats) -> None:
        if not np.isfinite(values).all():
            image, which = np.argwhere(~np.isfinite(values))[0]
            raise _not_finite(self.path, self.store, rows[image], which, values[image, which])


class PairScores:
    """A file with a score for some pairs of image and class."""

    def __init__(self, path: Path, store: LabelStore, *, common: bool = False) -> None:
        self.path, self.store, self.common = path, store, common
        self.has_class = np.ones(len(store.classes), bool)
        self.left_out: list[str] = []

    def stretches(self) -> Iterator[ScoredPairs]:
        """The scores, some pairs at a time; with ``common`` those of other images are skipped."""
        import pyarrow as pa

        for table in self._tables():
            rows = _find(self.path, self.store, table["image_id"])
            ids = table["class_id"].cast(pa.string())
            index = pa.compute.index_in(ids, value_set=pa.array(self.store.classes.ids))
            classes = np.asarray(pa.compute.fill_null(index, -1), np.int64)
            values = numbers(self.path, table["score"], "score")
            unknown = (rows < 0) | (classes < 0)
            if unknown.any() and not self.common:
                first = int(np.argmax(unknown))
                if rows[first] < 0:
                    wrong = f"image {table['image_id'][first].as_py()!r} is not in the store"
                    raise DataError(wrong, path=self.path, fix=_COMMON)
                wrong, fix = ids[first].as_py(), suggest(ids[first].as_py(), self.store.classes.ids)
                what = f"{self.path}: class {wrong!r} is not in the store"
                raise ClassMismatchError(f"{what}; {fix}; {_COMMON}")
            keep = ~unknown
            bad = keep & ~np.isfinite(values)
            if bad.any():
                at = int(np.argmax(bad))
                raise _not_finite(self.path, self.store, rows[at], classes[at], values[at])
            yield ScoredPairs(rows[keep], classes[keep], values[keep])

    def _tables(self) -> Iterator[Any]:
        import pyarrow as pa

        if self.path.suffix == ".npy":
            array = load(self.path)
            for start in range(0, len(array), _PAIRS_AT_ONCE):
                part = array[start : start + _PAIRS_AT_ONCE]
                yield pa.table({name: pa.array(part[name].tolist()) for name in _PAIR_COLUMNS})
            return
        try:
            yield from parquet(self.path).iter_batches(_PAIRS_AT_ONCE, columns=_PAIR_COLUMNS)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"is not readable as parquet ({error})", path=self.path) from error


def open_scores(
    path: str | Path,
    store: LabelStore,
    *,
    image_ids: Path | None = None,
    common: bool = False,
) -> DenseScores | PairScores:
    """Open a file of scores, dense or pairs, whichever it is."""
    path = existing_file(path)
    if image_ids is not None and path.suffix != ".npy":
        raise UsageError("--image-ids goes with a dense npy file; others have a column image_id")
    names = load(path).dtype.names or () if path.suffix == ".npy" else schema(path).names
    if set(_PAIR_COLUMNS) <= set(names):
        return PairScores(path, store, common=common)
    return DenseScores(path, store, image_ids=image_ids, common=common)


def read_scores(path: str | Path, store: LabelStore) -> Iterator[Scores]:
    """Read dense scores of all or some images of a store, in stretches."""
    return DenseScores(existing_file(path), store, sample=True).stretches()


def _find(path: Path, store: LabelStore, ids: Any) -> Rows:
    """The row of each image id, -1 where the store has no such image."""
    import pyarrow as pa

    wanted = store.images.table["id"].type
    try:
        if wanted == pa.uint64() and not pa.types.is_integer(ids.type):
            ids = pa.array([int(text, 16) for text in ids.to_pylist()], wanted)  # 16 hex digits
        return store.images.find(ImageTable.make(ids.cast(wanted)))
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        what = f"image ids of type {ids.type} do not fit the store's {wanted} ({error})"
        raise DataError(what, path=path) from error


def _not_finite(path: Path, store: LabelStore, row: int, which: int, value: float) -> DataError:
    what = f"score {value} of image {store.images.show_id(int(row))}"
    return DataError(f"{what}, class {store.classes.ids[which]}", path=path, fix="must be finite")
