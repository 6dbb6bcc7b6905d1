"""What every file of scores has: a kind, image ids that are rows of a store, values to explain."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from partlabel.errors import DataError
from partlabel.scores.arrays import refuse_null
from partlabel.store import LabelStore
from partlabel.tables import ImageTable, Rows

_COMMON = "--common evaluates what both have"


def counted(count: int, one: str, many: str) -> str:
    """A number and its noun.

    Example:
        >>> counted(1, "class", "classes"), counted(1203, "class", "classes")
        ('1 class', '1,203 classes')
    """
    return f"{count:,} {one if count == 1 else many}"


def kind_of(path: Path) -> Literal["npy", "parquet"]:
    """What a file is, by its name."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("npy", "parquet"):
        what = f"has the suffix {path.suffix!r}" if path.suffix else "has no suffix"
        raise DataError(what, path=path, fix="scores are .npy or .parquet, and named so")
    return cast(Literal["npy", "parquet"], kind)


class Lookup(NamedTuple):
    """The images of a file, looked up in a store."""

    path: Path
    store: LabelStore
    whole: LabelStore | None = None
    """The store that ``store`` is one split of."""
    options: bool = True
    """Whether who gave the file can say --common and --image-ids too."""

    def or_common(self, fix: str | None = None) -> str | None:
        """What would do where file and store differ."""
        return "; ".join(text for text in (fix, _COMMON if self.options else None) if text) or None

    def rows(self, ids: Any, *, start: int = 0) -> Rows:
        """The row of each image id, -1 where the store has none; ids begin at row ``start``."""
        refuse_null(self.path, ids, "image_id", start=start)
        return self._rows_in(self.store, ids)

    def _rows_in(self, store: LabelStore, ids: Any) -> Rows:
        import pyarrow as pa

        wanted = store.images.table["id"].type
        try:
            if wanted == pa.uint64() and not pa.types.is_integer(ids.type):
                ids = pa.array([int(text, 16) for text in ids.to_pylist()], wanted)  # hex digits
            return store.images.find(ImageTable.make(ids.cast(wanted)))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            what = f"image ids of type {ids.type} do not fit the store's {wanted} ({error})"
            raise DataError(what, path=self.path) from error

    @property
    def place(self) -> str:
        """What images are looked up in."""
        return "store" if self.whole is None else "split"

    def unknown(self, ids: Any, at: int) -> str:
        """Say of one of the ids that it is not there, but in another split where that is so."""
        name = f"image {ids[at].as_py()!r}"
        if self.whole is not None:
            (row,) = self._rows_in(self.whole, ids.slice(at, 1))
            if row >= 0:
                (other,) = self.whole.images.splits([row])
                return f"{name} is not in the split but in {repr(other) if other else 'no split'}"
        return f"{name} is not in the store"

    def not_finite(self, row: int, which: int, value: float) -> DataError:
        """Say that a score is not a number."""
        image, label = self.store.images.show_id(int(row)), self.store.classes.ids[which]
        what = f"score {value} of image {image}, class {label}"
        return DataError(what, path=self.path, fix="must be finite")
