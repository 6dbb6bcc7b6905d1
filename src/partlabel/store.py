"""LabelStore: who knows what about which image, as memory-mapped sparse rows in a folder.

``NAME.labels/`` holds ``meta.json``, ``classes.csv``, ``images.parquet``, ``indptr.npy`` (int64;
the labels of row i are codes[indptr[i]:indptr[i+1]]) and ``codes.npy`` (class index, ascending
within a row; the top bit is set where the class is verified absent; uint16 up to 32,768 classes,
else uint32). What is not listed is unknown, or, in a *complete* store, verified absent: such a
store lists positives only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partlabel.assemble import absent_bit, code_type, segments
from partlabel.errors import StoreError, UsageError
from partlabel.folder import identity, mapped_array, new_folder, recover
from partlabel.labels import ABSENT, PRESENT, UNKNOWN, States
from partlabel.meta import FORMAT_VERSION, Origin, read_meta
from partlabel.tables import ClassTable, ImageTable, Rows

_TRIES = 20  # to open a store that others keep replacing
_CHUNK = 1 << 22  # labels handled at a time where a whole array would not fit


class Batch(NamedTuple):
    """The known labels of some rows: three arrays of equal length."""

    position: npt.NDArray[np.int64]
    """Which of the rows asked for, counted from 0."""
    classes: npt.NDArray[np.int64]
    states: npt.NDArray[np.int8]


class ClassCounts(NamedTuple):
    """Per class: images where it is present, and where it is verified absent."""

    positives: npt.NDArray[np.int64]
    negatives: npt.NDArray[np.int64]


class LabelStore:
    """Partial labels of many images.

    Example:
        >>> from partlabel.tables import ClassTable, ImageTable
        >>> store = LabelStore(
        ...     ClassTable(["cat", "dog", "sky"]),
        ...     ImageTable.make(["a.jpg", "b.jpg"]),
        ...     indptr=np.array([0, 2, 3]),
        ...     codes=np.array([0, 2 | 1 << 15, 1], dtype=np.uint16),
        ... )
        >>> store.dense([0, 1])
        array([[ 1,  0, -1],
               [ 0,  1,  0]], dtype=int8)
        >>> store.batch([1])
        Batch(position=array([0]), classes=array([1]), states=array([1], dtype=int8))
    """

    def __init__(
        self,
        classes: ClassTable,
        images: ImageTable,
        *,
        indptr: npt.NDArray[np.int64],
        codes: npt.NDArray[Any],
        complete: bool = False,
        origin: Origin | None = None,
    ) -> None:
        self.classes = classes
        self.path: Path | None = None
        self._images: ImageTable | npt.NDArray[np.uint8] = images
        self._template = images.template
        self.complete = complete
        self.origin = origin or Origin()
        self._set_arrays(indptr, codes)
        if len(images) != len(self):
            raise ValueError(f"{len(images)} images, but indptr has {len(self)} rows")

    def _set_arrays(self, indptr: npt.NDArray[np.int64], codes: npt.NDArray[Any]) -> None:
        # Plain views: indexing a memmap object itself costs several microseconds more.
        self.indptr = np.asarray(indptr)
        self.codes = np.asarray(codes)
        wanted = code_type(len(self.classes))
        if self.codes.dtype != wanted:
            raise ValueError(f"codes must be {np.dtype(wanted)}, got {self.codes.dtype}")
        if self.indptr.dtype != np.int64 or not len(self.indptr):
            raise ValueError(f"indptr must be int64 and not empty, got {self.indptr.dtype}")
        if self.indptr[0] != 0 or self.indptr[-1] != len(self.codes):
            raise ValueError(f"indptr does not span the {len(self.codes)} codes")
        if not (self.indptr[1:] >= self.indptr[:-1]).all():
            raise ValueError("indptr goes back")
        self._flag = self.codes.dtype.type(absent_bit(self.codes.dtype))

    @classmethod
    def open(cls, path: str | Path) -> LabelStore:
        """Open a store folder; arrays are mapped, the image table is parsed when it is needed."""
        path = Path(path)
        recover(path)
        for _ in range(_TRIES):
            before = identity(path)
            try:
                store = cls._open(path, read_meta(path))
            except StoreError:
                if before == identity(path):
                    raise
                continue
            if before == identity(path):
                return store
        raise StoreError(f"{path}: is replaced again and again while it is opened; try later")

    @classmethod
    def _open(cls, path: Path, meta: dict[str, Any]) -> LabelStore:
        store = cls.__new__(cls)
        store.path = path
        try:
            store.classes = ClassTable.read(path / "classes.csv")
            # Mapped now: once the folder is replaced its name leads to another table.
            store._images = np.memmap(path / "images.parquet", np.uint8, "r")
            store._template = meta["path_template"]
            store.complete = bool(meta["complete"])
            store.origin = Origin.from_meta(meta)
            store._set_arrays(mapped_array(path / "indptr.npy"), mapped_array(path / "codes.npy"))
            counts = (meta["counts"]["images"], meta["counts"]["classes"])
            if counts != (len(store), len(store.classes)):
                raise ValueError(f"has {len(store)} rows and {len(store.classes)} classes")
        except FileNotFoundError as error:
            name = Path(error.filename or "").name
            raise StoreError(
                f"{path}: damaged store ({name} is missing); import it again"
            ) from error
        except KeyError as error:
            what = f"meta.json has no {error}"
            raise StoreError(f"{path}: damaged store ({what}); import it again") from error
        except (OSError, ValueError, TypeError, StoreError) as error:
            raise StoreError(f"{path}: damaged store ({error}); import it again") from error
        return store

    @property
    def images(self) -> ImageTable:
        """Ids, paths and splits of the images."""
        if not isinstance(self._images, ImageTable):
            try:
                self._images = ImageTable.read(self._images, self._template, rows=len(self))
            except (OSError, ValueError, NotImplementedError, UsageError) as error:
                what = f"damaged store (images.parquet: {error})"
                raise StoreError(f"{self.path}: {what}; import it again") from error
        return self._images

    @images.setter
    def images(self, images: ImageTable) -> None:
        if len(images) != len(self):
            raise ValueError(f"{len(images)} images, but the store has {len(self)} rows")
        self._images = images

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def batch(self, rows: Sequence[int] | npt.NDArray[Any]) -> Batch:
        """The known labels of some rows; in a complete store its positives only."""
        rows = self._rows(rows)
        # take() and work in place: a training loop calls this for every batch.
        starts = self.indptr.take(rows)
        lengths = self.indptr.take(rows + 1)
        lengths -= starts
        codes = self.codes.take(segments(starts, lengths))
        states = (codes < self._flag).view(np.int8)
        states *= PRESENT - ABSENT
        states += ABSENT
        codes &= self._flag - 1
        return Batch(np.repeat(np.arange(len(rows)), lengths), codes.astype(np.int64), states)

    def dense(self, rows: Sequence[int] | npt.NDArray[Any]) -> States:
        """The states of some rows as int8 (rows, classes), with the absent of a complete store."""
        rows = self._rows(rows)
        fill = ABSENT if self.complete else UNKNOWN
        states = np.full((len(rows), len(self.classes)), fill, dtype=np.int8)
        position, classes, known = self.batch(rows)
        states[position, classes] = known
        return states

    def counts(self) -> ClassCounts:
        """How often each class is present and verified absent, over all images."""
        count = len(self.classes)
        total = np.zeros(2 * count, np.int64)
        for start in range(0, len(self.codes), _CHUNK):
            codes = self.codes[start : start + _CHUNK]
            which = (codes & (self._flag - 1)).astype(np.int64)
            if len(which) and which.max() >= count:
                place = f"{self.path}: " if self.path else ""
                what = f"damaged store (codes.npy: class {which.max()} of {count})"
                raise StoreError(f"{place}{what}; import it again")
            which += (codes >= self._flag) * count
            total += np.bincount(which, minlength=2 * count)
        positives = total[:count]
        negatives = len(self) - positives if self.complete else total[count:]
        return ClassCounts(positives, negatives)

    def chunks(self, size: int = _CHUNK) -> Iterator[slice]:
        """Stretches of rows with about ``size`` labels each, to walk through a large store."""
        row = 0
        while row < len(self):
            stop = int(np.searchsorted(self.indptr, self.indptr[row] + size, side="right")) - 1
            stop = min(max(stop, row + 1), row + size, len(self))
            yield slice(row, stop)
            row = stop

    def select(self, rows: Sequence[int] | npt.NDArray[Any]) -> LabelStore:
        """The store of some rows only, in the given order; in memory until saved."""
        rows = self._rows(rows)
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (rows[1:] > rows[:-1]).all():
            first, last = int(rows[0]), int(rows[-1])  # one stretch: a view, not a copy
            codes = self.codes[self.indptr[first] : self.indptr[last + 1]]
            indptr = self.indptr[first : last + 2] - self.indptr[first]
        else:
            starts = self.indptr[rows]
            lengths = self.indptr[rows + 1] - starts
            indptr = np.concatenate([[0], np.cumsum(lengths)])
            codes = self.codes[segments(starts, lengths)]
        return self.with_labels(indptr, codes, images=self.images.take(rows))

    def split(self, name: str) -> LabelStore:
        """The store of one split only."""
        return self.select(self.images.rows(name))

    def with_labels(
        self,
        indptr: npt.NDArray[np.int64],
        codes: npt.NDArray[Any],
        *,
        images: ImageTable | None = None,
        complete: bool | None = None,
        **origin: Any,
    ) -> LabelStore:
        """A store like this one with other labels; ``origin`` replaces fields of its origin."""
        return LabelStore(
            self.classes,
            self.images if images is None else images,
            indptr=indptr,
            codes=codes,
            complete=self.complete if complete is None else complete,
            origin=replaced(self.origin, **origin),
        )

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the store to a folder, in one step: a crash leaves what was there before."""
        path = Path(path)
        with new_folder(path, overwrite=overwrite) as folder:
            self.write(folder)
        return path

    def write(self, folder: Path) -> None:
        """Write the files of the store into a folder that is there."""
        import pyarrow.parquet as pq

        self.classes.write(folder / "classes.csv")
        encoded = [name for name in ("split", "shard") if name in self.images.table.column_names]
        pq.write_table(self.images.table, folder / "images.parquet", use_dictionary=encoded)
        np.save(folder / "indptr.npy", self.indptr)
        np.save(folder / "codes.npy", self.codes)
        text = json.dumps(self._meta(), indent=2) + "\n"
        (folder / "meta.json").write_text(text, encoding="utf-8")

    def _meta(self) -> dict[str, Any]:
        counts = self.counts()
        return {
            "format_version": FORMAT_VERSION,
            "complete": self.complete,
            "id_type": self.images.id_type,
            "path_template": self.images.template,
            "counts": {
                "images": len(self),
                "classes": len(self.classes),
                "positives": int(counts.positives.sum()),
                "negatives": int(counts.negatives.sum()),
            },
            **asdict(self.origin),
        }

    def _rows(self, rows: Sequence[int] | npt.NDArray[Any]) -> Rows:
        index = np.asarray(rows)
        if index.dtype.kind not in "iu" and index.size:
            raise ValueError(f"rows must be integers, got {index.dtype}")
        if index.ndim != 1:
            raise ValueError(f"rows must have one dimension, got {index.ndim}")
        index = index.astype(np.int64, copy=False)
        if len(index) and not (index.min() >= 0 and index.max() < len(self)):
            raise IndexError(
                f"rows must be in 0..{len(self) - 1}, got {index.min()}..{index.max()}"
            )
        return index
