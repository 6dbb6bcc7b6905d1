"""Scores of all classes in a file: one array, a column of lists, or one column per class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from partlabel.errors import DataError, suggest
from partlabel.scores.arrays import (
    Floats,
    batches,
    check_floats,
    columns,
    load,
    numbers,
    read_column,
    read_ids,
    wide,
)
from partlabel.scores.common import Lookup, counted, kind_of


class Layout(ABC):
    """How a file keeps its scores."""

    ids: Any = None
    """The image ids, an Arrow column; None: all images of the store, in its order."""

    def __init__(self, lookup: Lookup) -> None:
        self.lookup, self.path, self.classes = lookup, lookup.path, lookup.store.classes
        self.has_class = np.ones(len(self.classes), bool)
        self.left_out: list[str] = []

    @abstractmethod
    def blocks(self, size: int) -> Iterator[Floats]:
        """The scores of ``size`` images at a time, in the order of the store's classes."""


def open_layout(lookup: Lookup, *, image_ids: Path | None, common: bool) -> Layout:
    """See how a file keeps its scores.

    Args:
        lookup: The file and the store.
        image_ids: For npy files: a text file with the id of each row.
        common: Take the classes that file and store have in common.
    """
    if kind_of(lookup.path) == "npy":
        return _Array(lookup, image_ids)
    import pyarrow as pa

    kinds = columns(lookup.path)
    if "image_id" not in kinds:
        fix = suggest("image_id", kinds)
        raise DataError("has no column 'image_id'", path=lookup.path, fix=fix)
    scores = kinds.get("scores", pa.null())
    if _is_list(scores):
        check_floats(lookup.path, "scores", scores.value_type)
        return _Lists(lookup)
    return _Columns(lookup, kinds, common=common)


class _Array(Layout):
    """Npy, (images, classes)."""

    def __init__(self, lookup: Lookup, image_ids: Path | None) -> None:
        super().__init__(lookup)
        self._array = load(self.path)
        images = len(lookup.store)
        if image_ids is not None:
            self.ids = self._read_ids(image_ids)
            images = len(self.ids)
        wanted, kind = (images, len(self.classes)), self._array.dtype
        if self._array.shape == wanted and kind.kind == "f":
            return
        fix = "one row per image of the store, in its order"
        fix += ", or of --image-ids" if lookup.options else ""
        if self._array.shape == wanted:
            fix = "convert it: array.astype('float32')"
        what = f"has {kind} {self._array.shape}, the store needs floats {wanted}"
        raise DataError(what, path=self.path, fix=fix)

    def _read_ids(self, path: Path) -> Any:
        import pyarrow as pa

        ids, rows = read_ids(path), self._array.shape[:1]
        if rows and rows[0] != len(ids):
            what = f"has {counted(len(ids), 'id', 'ids')}, {self.path}"
            what = f"{what} has {counted(rows[0], 'row', 'rows')}"
            raise DataError(what, path=path, fix="one id per row")
        return pa.array(ids, pa.string())

    def blocks(self, size: int) -> Iterator[Floats]:
        for start in range(0, len(self._array), size):
            yield wide(np.asarray(self._array[start : start + size]))


class _Lists(Layout):
    """Parquet with a column ``scores`` of lists."""

    def __init__(self, lookup: Lookup) -> None:
        super().__init__(lookup)
        self.ids = read_column(self.path, "image_id")

    def blocks(self, size: int) -> Iterator[Floats]:
        import pyarrow.compute as pc

        classes = len(self.classes)
        for batch in batches(self.path, ["scores"], size):
            column = batch.column("scores")
            lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
            if (lengths != classes).any():
                wrong = int(lengths[lengths != classes][0])
                what = f"a list in 'scores' has {counted(wrong, 'entry', 'entries')}"
                fix = f"the store has {counted(classes, 'class', 'classes')}"
                raise DataError(what, path=self.path, fix=fix)
            yield numbers(column.flatten()).reshape(len(batch), classes)


class _Columns(Layout):
    """Parquet with one column per class id."""

    def __init__(self, lookup: Lookup, kinds: dict[str, Any], *, common: bool) -> None:
        super().__init__(lookup)
        if "image_id" in self.classes.index:
            what = "class 'image_id' has no column of its own: that one has the ids of the images"
            fix = "save a column 'scores' of lists, or pairs"
            raise DataError(what, path=self.path, fix=fix)
        self.has_class = np.array([name in kinds for name in self.classes.ids], bool)
        self._names = [name for name in self.classes.ids if name in kinds]
        if not self._names:
            raise self._no_class(kinds, common=common)
        self._compare(kinds, common=common)
        for name in self._names:
            check_floats(self.path, name, kinds[name])
        self.ids = read_column(self.path, "image_id")

    def _no_class(self, kinds: dict[str, Any], *, common: bool) -> DataError:
        if "scores" in kinds:
            what = f"column 'scores' is not a list but {kinds['scores']}"
            form = "save one list per image, in the order of the store's classes"
            return DataError(what, path=self.path, fix=form)
        what = "has no column 'scores', and none for a class of the store"
        what += ": nothing in common" if common else ""
        others = self._others(kinds)
        fix = suggest(next(iter(self.classes.ids), "scores"), others, most=3) if others else None
        return DataError(what, path=self.path, fix=fix)

    def _others(self, kinds: dict[str, Any]) -> list[str]:
        return [name for name in kinds if name not in self.classes.index and name != "image_id"]

    def _compare(self, kinds: dict[str, Any], *, common: bool) -> None:
        """Refuse or note classes that only one has; a column of floats is a class of the file."""
        import pyarrow as pa

        missing = [name for name in self.classes.ids if name not in kinds]
        others = self._others(kinds)
        extra = [name for name in others if pa.types.is_floating(kinds[name])]
        if common:
            lacking = counted(len(missing), "class has no scores", "classes have no scores")
            self.left_out += [f"{lacking} ({missing[0]})"] if missing else []
            self.left_out += [_strange(extra)] if extra else []
        elif missing:
            without = counted(len(missing), "class", "classes")
            what = f"has no column 'scores', and none for {without} ({missing[0]})"
            what += f", but {_strange(extra)}" if extra else ""
            close = suggest(missing[0], extra or others, most=3) if others else None
            raise DataError(what, path=self.path, fix=self.lookup.or_common(close))
        elif extra:
            fix = self.lookup.or_common("drop or rename what is none")
            raise DataError(_strange(extra), path=self.path, fix=fix)

    def blocks(self, size: int) -> Iterator[Floats]:
        for batch in batches(self.path, self._names, size):
            found = np.stack([numbers(batch.column(name)) for name in self._names], axis=1)
            if self.has_class.all():
                yield found
                continue
            values = np.zeros((len(found), len(self.classes)), found.dtype)
            values[:, self.has_class] = found
            yield values


def _strange(names: list[str]) -> str:
    what = counted(len(names), "column of floats is", "columns of floats are")
    return f"{what} no class of the store ({names[0]})"


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    names = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
    return any(getattr(pa.types, f"is_{name}")(kind) for name in names)
