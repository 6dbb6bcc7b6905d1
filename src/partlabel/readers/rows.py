"""Rows of csv or parquet tables, and the images they speak of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from partlabel.assemble import Ints
from partlabel.errors import DataError, suggest
from partlabel.files import Source
from partlabel.readers.base import Job
from partlabel.readers.hexids import decode_hex, hex_bytes
from partlabel.readers.scan_csv import BadRow, CsvFile
from partlabel.tables import ImageTable

T = TypeVar("T")

_PARQUET_ROWS = 1 << 18
_WORDS = {"double": "a number", "int64": "a whole number", "string": "text"}


class ParquetFile:
    """A parquet file with the interface of CsvFile; columns have types of their own."""

    typed = True

    def __init__(self, source: Source) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.source = source
        try:
            self._file = pq.ParquetFile(source.path)
            self.columns: list[str] = self._file.schema_arrow.names
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._error(error) from error
        twice = {name for name in self.columns if self.columns.count(name) > 1}
        if twice:
            raise DataError(f"has column {min(twice)!r} twice", path=source.path, fix="rename one")
        if not self._file.metadata.num_rows:
            raise DataError("has no rows", path=source.path)

    def require(self, name: str, option: str | None = None) -> str:
        """Check that there is a column of this name."""
        if name in self.columns:
            return name
        how = f"; name it with {option}" if option else ""
        raise DataError(
            f"no column {name!r}", path=self.source.path, fix=suggest(name, self.columns) + how
        )

    def scan(self, types: Mapping[str, Any], convert: Callable[[Any], T]) -> Iterator[T]:
        """Hand batches of rows with the columns in ``types`` to ``convert``."""
        import pyarrow as pa

        before = 0
        try:
            for batch in self._file.iter_batches(_PARQUET_ROWS, columns=list(types)):
                try:
                    yield convert(self._cast(pa.table(batch), types))
                except BadRow as error:
                    key = f"row {before + error.row + 1}"
                    raise error.kind(
                        error.what, path=self.source.path, key=key, fix=error.fix
                    ) from None
                before += batch.num_rows
                share = batch.num_rows / self._file.metadata.num_rows
                self.source.progress.advance(
                    read=int(self.source.size * share), rows=batch.num_rows
                )
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._error(error) from error

    def each(self, types: Mapping[str, Any], take: Callable[[Any], None]) -> None:
        """Hand batches of rows to ``take``."""
        for _ in self.scan(types, take):
            pass

    def _cast(self, table: Any, types: Mapping[str, Any]) -> Any:
        """Bring columns to the wanted type; where none is wanted they stay as they are."""
        import pyarrow as pa

        for name, kind in types.items():
            column = table[name].combine_chunks()
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            if kind is not None and column.type != kind:
                column = _cast_column(name, column, kind)
            table = table.set_column(table.column_names.index(name), name, column)
        return table

    def _error(self, error: Exception) -> DataError:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return DataError(f"is not readable as parquet ({text})", path=self.source.path)


def _cast_column(name: str, column: Any, kind: Any) -> Any:
    import pyarrow as pa

    try:
        return column.cast(kind)
    except pa.ArrowException:
        pass
    for row in range(len(column)):  # find the one that does not fit
        try:
            column.slice(row, 1).cast(kind)
        except pa.ArrowException:
            value = repr(column[row].as_py())
            shown = value if len(value) <= 40 else value[:37] + "..."
            what = (
                f"{shown} in column {name!r} ({column.type}) is not {_WORDS.get(str(kind), kind)}"
            )
            raise BadRow(row, what) from None
    raise BadRow(0, f"column {name!r} of type {column.type} is not {kind}")


def open_table(job: Job, path: Path, delimiter: str | None = None) -> CsvFile | ParquetFile:
    """Open a table by its ending: .parquet, else csv (tab for .tsv)."""
    source = job.open(path)
    if path.suffix.lower() in (".parquet", ".pq"):
        return ParquetFile(source)
    tabs = ".tsv" in (suffix.lower() for suffix in path.suffixes)
    return CsvFile(source, delimiter=delimiter or ("\t" if tabs else ","))


class ImageRows:
    """Gives each image id a row, in order of first appearance, and remembers its path and split."""

    def __init__(self) -> None:
        self._row: dict[Any, int] = {}
        self._type: Any = None
        self._about: list[tuple[str | None, str | None]] = []
        self.closed = False
        """Set once an image table has named every image there is."""

    def __len__(self) -> int:
        return len(self._row)

    def first(self) -> Any:
        """The first id, or None."""
        return next(iter(self._row), None)

    def rows(self, ids: Any, *, paths: Any = None, splits: Any = None) -> Ints:
        """The row of each id of an Arrow array."""
        self._check(ids)
        encoded = ids.dictionary_encode()
        codes = encoded.indices.to_numpy()
        known = len(self._row)
        found = [
            self._row.setdefault(key, len(self._row)) for key in encoded.dictionary.to_pylist()
        ]
        rows = np.array(found, np.int64)[codes] if len(codes) else np.zeros(0, np.int64)
        if self.closed and len(self._row) > known:
            place = int(np.argmax(rows >= known))
            fix = "add it there, or leave --image-table out"
            raise BadRow(place, f"image {ids[place].as_py()!r} is not in the image table", fix)
        if paths is not None or splits is not None:
            self._remember(rows, known, paths, splits)
        return rows

    def _check(self, ids: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        missing = ids.is_null()
        if ids.type == pa.string():
            missing = pc.or_kleene(missing, pc.equal(ids, ""))
        if pc.any(missing).as_py():
            raise BadRow(int(np.argmax(np.asarray(missing.fill_null(True)))), "has no image id")
        self._type = self._type or ids.type
        if ids.type != self._type and len(ids):
            what = f"image ids are {ids.type} here and {self._type} in the files before"
            raise BadRow(0, what, "say --ids string, int or hex")

    def _remember(self, rows: Ints, known: int, paths: Any, splits: Any) -> None:
        nothing = [None] * len(rows)
        about = list(
            zip(
                nothing if paths is None else paths.to_pylist(),
                nothing if splits is None else (split or None for split in splits.to_pylist()),
                strict=True,
            )
        )
        self._about.extend([(None, None)] * (len(self._row) - len(self._about)))
        _, first = np.unique(rows, return_index=True)
        for place in first.tolist():
            if rows[place] >= known:
                self._about[rows[place]] = about[place]
        for place, row in enumerate(rows.tolist()):
            if self._about[row] != about[place]:
                what = (
                    f"the image has (path, split) {about[place]} here and {self._about[row]} before"
                )
                raise BadRow(place, what, "an image has one path and one split")

    def table(self) -> ImageTable:
        """The image table; a string id is its own path where there is no path column."""
        import pyarrow as pa

        ids = pa.array(self._row, self._type or pa.string())
        self._about.extend([(None, None)] * (len(self._row) - len(self._about)))
        paths, splits = ([entry[i] for entry in self._about] for i in (0, 1))
        own = ids.type == pa.string() and not any(path is not None for path in paths)
        return ImageTable.make(ids, paths=paths, splits=splits, template="{id}" if own else None)


def id_type(kind: str, *, typed: bool) -> Any:
    """The Arrow type that an id column is parsed as; a typed file says it itself."""
    import pyarrow as pa

    if kind == "string" and typed:
        return None
    return {"string": pa.string(), "int": pa.int64(), "hex": pa.binary(16)}[kind]


def plain_ids(ids: Any) -> Any:
    """Ids as int64, uint64 or strings: 16 hex digits become a number."""
    import pyarrow as pa

    ids = ids.combine_chunks()
    if pa.types.is_fixed_size_binary(ids.type) and ids.type.byte_width == 16:
        raw = hex_bytes(ids)
        return pa.array(decode_hex(raw, np.arange(len(raw))))
    if pa.types.is_large_string(ids.type) or pa.types.is_string(ids.type):
        return ids.cast(pa.string())
    if pa.types.is_integer(ids.type):
        return ids if ids.type == pa.uint64() else ids.cast(pa.int64())
    raise BadRow(0, f"image ids of type {ids.type} cannot be used", "use whole numbers or strings")
