"""The two tables of a store: which classes there are, and which images (ids, paths, splits)."""

from __future__ import annotations

import csv
import re
import string
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from partlabel.errors import ClassMismatchError, StoreError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

Rows = npt.NDArray[np.int64]

ID_TYPES = ("uint64", "int64", "string")
_FIELD = re.compile(r"0?\d*[xd]?")


class ClassTable:
    """The classes of a store, in the order of their indices; matched by id, never by position.

    Example:
        >>> classes = ClassTable(["/m/01g317", "/m/09j2d"], ["Person", "Clothing"])
        >>> len(classes), classes.index["/m/09j2d"], classes.names[1]
        (2, 1, 'Clothing')
    """

    def __init__(self, ids: Iterable[str], names: Iterable[str] | None = None) -> None:
        self.ids = tuple(ids)
        self.names = self.ids if names is None else tuple(names)
        if len(self.names) != len(self.ids):
            raise ValueError(f"{len(self.names)} names for {len(self.ids)} class ids")
        longest = max((len(text) for text in (*self.ids, *self.names)), default=0)
        if longest > 10_000:
            raise UsageError(f"a class id or name has {longest:,} characters; 10,000 at most")
        if len(self.index) != len(self.ids):
            twice = next(name for i, name in enumerate(self.ids) if self.index[name] != i)
            raise UsageError(f"class id {twice!r} is there twice; class ids must be unique")

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassTable) and (self.ids, self.names) == (other.ids, other.names)

    __hash__ = None  # type: ignore[assignment]  # compared by content, and large

    @cached_property
    def index(self) -> dict[str, int]:
        """From class id to class index."""
        return {name: i for i, name in enumerate(self.ids)}

    def positions_in(self, other: ClassTable) -> Rows:
        """For each class here, its index in ``other``; refuses tables with different ids."""
        missing = [name for name in self.ids if name not in other.index]
        extra = [name for name in other.ids if name not in self.index]
        if missing or extra:
            raise ClassMismatchError(
                f"the classes differ: {len(missing)} only in the first ({_some(missing)}), "
                f"{len(extra)} only in the second ({_some(extra)})"
            )
        return np.array([other.index[name] for name in self.ids], dtype=np.int64)

    def write(self, path: Path) -> None:
        """Write ``index,id,name`` as csv."""
        with path.open("w", encoding="utf-8", newline="") as file:
            # Quoted wherever a reader might take a character for the end of a row.
            odd = any("\r" in text for text in (*self.ids, *self.names))
            form = csv.QUOTE_NONNUMERIC if odd else csv.QUOTE_MINIMAL
            writer = csv.writer(file, lineterminator="\n", quoting=cast(Any, form))
            writer.writerow(["index", "id", "name"])
            writer.writerows(
                (i, *row) for i, row in enumerate(zip(self.ids, self.names, strict=True))
            )

    @classmethod
    def read(cls, path: Path) -> ClassTable:
        """Read what :meth:`write` wrote."""
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(_csv_rows(file))
        if not rows or rows[0] != ["index", "id", "name"] or any(len(row) != 3 for row in rows):
            raise StoreError(f"{path}: is not a class table of a store (index,id,name)")
        return cls([row[1] for row in rows[1:]], [row[2] for row in rows[1:]])


class ImageTable:
    """The images of a store: an id each, where the file is, and which split it belongs to.

    Kept as an Arrow table with the columns ``id`` and, where there are any, ``path``, ``shard``,
    ``offset`` and ``split``. A path that the template gives is not stored (null).

    Example:
        >>> images = ImageTable.make(np.array([7], dtype=np.uint64), template="{id:04x}.jpg")
        >>> images.paths([0])
        ['0007.jpg']
    """

    def __init__(self, table: pa.Table, template: str | None = None) -> None:
        self.table = table
        self.template = template
        if template is not None:
            check_template(template)

    @classmethod
    def make(
        cls,
        ids: Any,
        *,
        paths: Any = None,
        splits: Any = None,
        template: str | None = None,
    ) -> ImageTable:
        """Build the table from columns: arrays or lists, one entry per image."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = pa.array(ids) if len(ids) else pa.array(ids, _arrow_type(ids))
        columns = {"id": column}
        if paths is not None:
            path = pa.array(paths, pa.string())
            if path.null_count < len(path):
                columns["path"] = path
        if splits is not None:
            split = (
                splits if isinstance(splits, pa.DictionaryArray) else pa.array(splits, pa.string())
            )
            if split.null_count < len(split):
                columns["split"] = pc.dictionary_encode(split)
        return cls(pa.table(columns), template)

    @classmethod
    def read(cls, data: npt.NDArray[np.uint8], template: str | None, *, rows: int) -> ImageTable:
        """Read the bytes of a parquet file that must have so many rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        # On this thread: Arrow's own may still be starting when a short command ends.
        table = pq.read_table(pa.BufferReader(data), use_threads=False, pre_buffer=False)
        table.validate(full=True)
        if "id" not in table.column_names or table["id"].null_count:
            raise ValueError("has no ids")
        if table.num_rows != rows:
            raise ValueError(f"has {table.num_rows} images for {rows} rows")
        return cls(table, template)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def id_type(self) -> str:
        """How ids are kept: uint64 (hex ids), int64 or string."""
        return str(self.table.schema.field("id").type)

    @cached_property
    def ids(self) -> npt.NDArray[Any]:
        """The ids, as uint64, int64 or objects (str)."""
        return np.asarray(self.table["id"].to_numpy())

    @cached_property
    def split_counts(self) -> dict[str, int]:
        """How many images each split has; images without a split count under ``""``."""
        if "split" not in self.table.column_names:
            return {"": len(self)} if len(self) else {}
        counted = self.table["split"].value_counts().to_pylist()
        return {row["values"] or "": row["counts"] for row in counted}

    def rows(self, split: str) -> Rows:
        """The rows of a split, in order."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if split not in self.split_counts:
            there = ", ".join(name or "(none)" for name in self.split_counts)
            raise UsageError(f"there is no split {split!r}; the splits are: {there}")
        if "split" not in self.table.column_names:
            return np.arange(len(self), dtype=np.int64)
        column = self.table["split"].dictionary_encode()  # compared as numbers, not as text
        parts = [pc.equal(each.indices, each.dictionary.index(split)) for each in column.chunks]
        wanted = pa.chunked_array(parts, pa.bool_())
        return np.flatnonzero(wanted.fill_null(not split).to_numpy())  # no split counts as ""

    def splits(self, rows: Sequence[int] | Rows) -> list[str | None]:
        """The split of each of these rows."""
        if "split" not in self.table.column_names:
            return [None] * len(rows)
        return list(self.table["split"].take(np.asarray(rows, np.int64)).to_pylist())

    def paths(self, rows: Sequence[int] | Rows) -> list[str | None]:
        """The path of each of these rows, relative to the image root; None where there is none."""
        rows = np.asarray(rows, dtype=np.int64)
        there = "path" in self.table.column_names
        stored = self.table["path"].take(rows).to_pylist() if there else [None] * len(rows)
        if self.template is None:
            return list(stored)
        template = self.template
        whole = zip(stored, self.table["id"].take(rows).to_pylist(), self.splits(rows), strict=True)
        return [
            template.format(id=name, split=split) if path is None else path
            for path, name, split in whole
        ]

    def with_template(self, template: str) -> ImageTable:
        """The same images with all paths made by a template; checked on the first of them."""
        kept = [name for name in self.table.column_names if name != "path"]
        images = ImageTable(self.table.select(kept), template)
        if "{split}" in template and "" in self.split_counts:
            raise UsageError(f"path template {template!r}: some images have no split")
        try:
            images.paths(range(min(len(images), 1)))
        except ValueError as error:
            raise UsageError(
                f"path template {template!r}: ids are {self.id_type} ({error})"
            ) from error
        return images

    def with_splits(self, splits: Any) -> ImageTable:
        """The same images with other splits."""
        import pyarrow as pa

        kept = [name for name in self.table.column_names if name != "split"]
        column = pa.array(splits, pa.string()).dictionary_encode()
        return ImageTable(self.table.select(kept).append_column("split", column), self.template)

    def take(self, rows: Rows) -> ImageTable:
        """The table of some rows only, in the given order."""
        return ImageTable(self.table.take(rows).combine_chunks(), self.template)

    def find(self, other: ImageTable) -> Rows:
        """For each image of ``other`` its row here, or -1."""
        import pyarrow.compute as pc

        if self.id_type != other.id_type:
            raise UsageError(f"image ids differ in type: {self.id_type} and {other.id_type}")
        where = pc.index_in(other.table["id"], value_set=self.table["id"])
        return np.asarray(pc.fill_null(where, -1).to_numpy(), dtype=np.int64)

    def duplicate(self) -> Any:
        """The first id that is there twice, or None."""
        import pyarrow.compute as pc

        if self.id_type != "string" and (self.ids[1:] > self.ids[:-1]).all():
            return None  # ascending, as most are: no need to count
        if pc.count_distinct(self.table["id"]).as_py() == len(self):
            return None
        counts = self.table["id"].value_counts().to_pylist()
        return next(row["values"] for row in counts if row["counts"] > 1)

    def show_id(self, row: int) -> str:
        """The id of a row as people write it: 16 hex digits for uint64."""
        value = self.table["id"][row].as_py()
        return f"{value:016x}" if self.id_type == "uint64" else str(value)


def check_template(template: str) -> None:
    """Check that a path template has only {id}, {id:016x}, {id:012d}, {split} and stays inside."""
    if re.search(r"^[/\\]|^[A-Za-z]:|(^|[/\\])\.\.([/\\]|$)", template):
        raise UsageError(
            f"path template {template!r} leaves the image folder; name it with --images"
        )
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        raise UsageError(f"path template {template!r}: {error}") from error
    for _, name, form, conversion in fields:
        if name is None:
            continue
        plain = name == "split" and not form
        number = name == "id" and _FIELD.fullmatch(form or "") is not None
        if conversion or not (plain or number):
            raise UsageError(
                f"path template {template!r}: use only {{split}}, {{id}}, {{id:016x}}, {{id:012d}}"
            )


def _csv_rows(file: Any) -> Iterator[list[str]]:
    try:
        yield from csv.reader(file)
    except csv.Error as error:
        raise StoreError(f"{file.name}: {error}") from error


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") if names else "none"


def _arrow_type(ids: Any) -> Any:
    """The type of an empty id column, which has no value to tell it by."""
    import pyarrow as pa

    if isinstance(ids, np.ndarray) and ids.dtype in (np.uint64, np.int64):
        return pa.from_numpy_dtype(ids.dtype)
    return ids.type if isinstance(ids, pa.Array) else pa.string()
