"""Scores of pairs in a file: ``image_id``, ``class_id`` and ``score``, one row per pair."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partlabel.errors import ClassMismatchError, DataError, suggest
from partlabel.scores.arrays import (
    Floats,
    batches,
    check_floats,
    columns,
    load,
    numbers,
    refuse_null,
    wide,
)
from partlabel.scores.common import Lookup, counted, kind_of
from partlabel.tables import Rows

PAIR_COLUMNS = ("image_id", "class_id", "score")
_PAIRS_AT_ONCE = 1 << 20


class ScoredPairs(NamedTuple):
    """Scores of some pairs."""

    rows: Rows
    """The rows of the images in the store."""
    classes: Rows
    values: Floats


class _Columns(NamedTuple):
    """Some rows of the file."""

    image_id: Any
    """Arrow, as is the next."""
    class_id: Any
    score: Floats


class PairScores:
    """A file with a score for some pairs of image and class.

    Args:
        lookup: The file and the store.
        common: Skip pairs of images and classes that the store has not, instead of refusing them.
    """

    def __init__(self, lookup: Lookup, *, common: bool = False) -> None:
        self.lookup, self.common = lookup, common
        self.path, self.store = lookup.path, lookup.store
        self._other_images = self._other_classes = 0

    @property
    def left_out(self) -> list[str]:
        """What was skipped, once all stretches are read."""
        kinds = (
            (self._other_images, f"images not in the {self.lookup.place}"),
            (self._other_classes, "classes not in the store"),
        )
        return [
            f"{counted(count, 'pair is', 'pairs are')} of {what}" for count, what in kinds if count
        ]

    def stretches(self) -> Iterator[ScoredPairs]:
        """The scores, some pairs at a time; refuses what is not finite."""
        self._other_images = self._other_classes = start = 0
        for part in self._parts():
            rows = self.lookup.rows(part.image_id, start=start)
            refuse_null(self.path, part.class_id, "class_id", start=start)
            ids, classes = self._classes(part.class_id)
            if not self.common:
                self._refuse_unknown(part.image_id, rows, ids, classes)
            known = (rows >= 0) & (classes >= 0)
            self._other_images += int((rows < 0).sum())
            self._other_classes += int(((rows >= 0) & (classes < 0)).sum())
            bad = known & ~np.isfinite(part.score)
            if bad.any():
                at = int(np.argmax(bad))
                raise self.lookup.not_finite(rows[at], classes[at], part.score[at])
            yield ScoredPairs(rows[known], classes[known], part.score[known])
            start += len(rows)

    def _classes(self, column: Any) -> tuple[Any, Rows]:
        """The class ids as text, and their indices; -1 where the store has no such class."""
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            ids = column.cast(pa.string())
        except pa.ArrowException as error:
            what = f"class ids of type {column.type} are not text ({error})"
            raise DataError(what, path=self.path) from error
        index = pc.index_in(ids, value_set=pa.array(self.store.classes.ids, pa.string()))
        return ids, np.asarray(pc.fill_null(index, -1), np.int64)

    def _refuse_unknown(self, images: Any, rows: Rows, ids: Any, classes: Rows) -> None:
        unknown = (rows < 0) | (classes < 0)
        if not unknown.any():
            return
        first = int(np.argmax(unknown))
        if rows[first] < 0:
            raise DataError(
                self.lookup.unknown(images, first), path=self.path, fix=self.lookup.or_common()
            )
        wrong = ids[first].as_py()
        fix = self.lookup.or_common(suggest(wrong, self.store.classes.ids))
        raise ClassMismatchError(f"{self.path}: class {wrong!r} is not in the store; {fix}")

    def _parts(self) -> Iterator[_Columns]:
        if kind_of(self.path) == "npy":
            yield from self._parts_of_npy(load(self.path))
            return
        check_floats(self.path, "score", columns(self.path)["score"])
        for batch in batches(self.path, list(PAIR_COLUMNS), _PAIRS_AT_ONCE):
            image_id, class_id, score = (batch.column(name) for name in PAIR_COLUMNS)
            yield _Columns(image_id, class_id, numbers(score))

    def _parts_of_npy(self, array: npt.NDArray[Any]) -> Iterator[_Columns]:
        if array.ndim != 1:
            what = f"has pairs in {counted(array.ndim, 'dimension', 'dimensions')}"
            raise DataError(what, path=self.path, fix="save them in one, a row per pair")
        for name in PAIR_COLUMNS:
            if array.dtype[name].shape:
                what = f"field {name!r} has several values per pair"
                raise DataError(what, path=self.path, fix="save one")
        check_floats(self.path, "score", array.dtype["score"])
        for start in range(0, len(array), _PAIRS_AT_ONCE):
            part = array[start : start + _PAIRS_AT_ONCE]
            image_id, class_id = (self._arrow(part[name], name) for name in PAIR_COLUMNS[:2])
            yield _Columns(image_id, class_id, wide(part["score"]))

    def _arrow(self, values: npt.NDArray[Any], name: str) -> Any:
        """A field of ids: numbers keep their type, text may have any length."""
        import pyarrow as pa

        try:
            native = values.astype(values.dtype.newbyteorder("="))
            column = pa.array(native if values.dtype.kind in "iuf" else values.tolist())
            column.validate(full=True)  # text of numpy may have characters that do not exist
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            what = f"field {name!r} of type {values.dtype} cannot be read ({error})"
            raise DataError(what, path=self.path) from error
        return column
