"""Csv files of any size in blocks, parsed on all cores, with the line of whatever is wrong.

Blocks are cut at the ends of records and parsed by Arrow. Line numbers are not counted on the way:
only when a block is refused is it read again, slowly, to find the place.
"""

from __future__ import annotations

import csv
import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from partlabel.errors import DataError, UsageError, suggest
from partlabel.files import Source
from partlabel.readers.records import first_record, fits, records_of, short, whole_records

BLOCK = 16 << 20

T = TypeVar("T")


class BadRow(Exception):  # noqa: N818  # a signal between a reader and scan(), which adds the place
    """A row that a reader refuses; its index is counted within the block."""

    def __init__(
        self, row: int, what: str, fix: str | None = None, kind: type[DataError] = DataError
    ) -> None:
        super().__init__(what)
        self.row = row
        self.what = what
        self.fix = fix
        self.kind = kind


class CsvFile:
    """One csv file, gzip or not, with or without byte order mark; opened for a single scan."""

    typed = False  # a csv has no types of its own

    def __init__(
        self, source: Source, *, delimiter: str = ",", columns: list[str] | None = None
    ) -> None:
        self.source = source
        self.delimiter = delimiter
        if len(delimiter.encode()) != 1 or delimiter in '\r\n"':
            raise UsageError(f"--delimiter must be one plain character, got {delimiter!r}")
        self._records = whole_records(source.blocks(BLOCK))
        self._first = next(self._records, b"")
        self._skipped = 0
        self.rows = 0
        if columns is None:
            columns = self._header()
        self.columns = columns

    def _header(self) -> list[str]:
        line = first_record(self._first)
        path = self.source.path
        if line.startswith(b"PAR1"):
            raise DataError("is a parquet file", path=self.source.path, fix="name it .parquet")
        if b"\r" in line.removesuffix(b"\n").removesuffix(b"\r"):
            what = "has old Mac line ends (CR alone)"
            raise DataError(what, path=self.source.path, fix="save it with LF or CRLF")
        try:
            text = io.StringIO(line.decode(), newline="")
            cells = next(csv.reader(text, delimiter=self.delimiter), [])
        except UnicodeDecodeError as error:
            what = f"is not UTF-8 (byte {line[error.start]:#04x})"
            raise DataError(what, path=path, line=1, fix="save it as UTF-8") from error
        except csv.Error as error:
            what = f"the header cannot be read ({error})"
            raise DataError(what, path=path, line=1) from error
        columns = [cell.strip() for cell in cells]
        if not any(columns):
            fix = "a header line and rows were expected"
            raise DataError("is empty", path=self.source.path, fix=fix)
        if len(set(columns)) < len(columns):
            twice = next(name for name in columns if columns.count(name) > 1)
            what = f"the header has column {twice!r} twice"
            raise DataError(what, path=path, line=1, fix="rename one")
        self._first = self._first[len(line) :]
        self._skipped = len(line)
        return columns

    def require(self, name: str, option: str | None = None) -> str:
        """Check that there is a column of this name."""
        if name in self.columns:
            return name
        fix = suggest(name, self.columns) + (f"; name it with {option}" if option else "")
        only = self.columns[0]
        if len(self.columns) == 1 and any(mark in only for mark in ",;\t|"):
            fix = f"the header is one column, {short(only)}: is another --delimiter used?"
        raise DataError(f"no column {name!r}", path=self.source.path, line=1, fix=fix)

    def scan(self, types: Mapping[str, Any], convert: Callable[[Any], T]) -> Iterator[T]:
        """Parse the columns in ``types``, hand each block's table to ``convert``, keep the order.

        Blocks are parsed and converted on several threads.
        """
        for _, _, result in self._parsed(types, convert):
            yield result

    def each(self, types: Mapping[str, Any], take: Callable[[Any], None]) -> None:
        """Parse on several threads, but hand the tables to ``take`` one by one, in order."""
        for offset, block, table in self._parsed(types, lambda table: table):
            try:
                take(table)
            except BadRow as error:
                raise self._at_line(offset, block, error) from None

    def _parsed(
        self, types: Mapping[str, Any], convert: Callable[[Any], T]
    ) -> Iterator[tuple[int, bytes, T]]:
        offset = self._skipped
        workers = os.cpu_count() or 1
        waiting: deque[tuple[int, bytes, Future[tuple[int, T]]]] = deque()
        with ThreadPoolExecutor(workers) as pool:
            try:
                for block in self._blocks():
                    waiting.append((offset, block, pool.submit(self._work, block, types, convert)))
                    offset += len(block)
                    if len(waiting) > workers:
                        yield self._result(*waiting.popleft(), types)
                while waiting:
                    yield self._result(*waiting.popleft(), types)
            finally:
                pool.shutdown(cancel_futures=True)
        if not self.rows:
            raise DataError("has a header but no rows", path=self.source.path)

    def _blocks(self) -> Iterator[bytes]:
        """The blocks after the header; offsets count every byte, so none is left out here."""
        first, self._first = self._first, b""
        if first:
            yield first
        yield from self._records

    def _work(
        self, block: bytes, types: Mapping[str, Any], convert: Callable[[Any], T]
    ) -> tuple[int, T]:
        table = self._parse(block, types)
        return table.num_rows, convert(table)

    def _parse(self, block: bytes, types: Mapping[str, Any]) -> Any:
        import pyarrow as pa
        from pyarrow import csv as pacsv

        if block.isspace() and not block.strip(b"\r\n"):
            return pa.schema(list(types.items())).empty_table()
        return pacsv.read_csv(
            pa.BufferReader(block),
            pacsv.ReadOptions(
                use_threads=False, column_names=self.columns, block_size=len(block) + 1
            ),
            pacsv.ParseOptions(delimiter=self.delimiter, newlines_in_values=b'"' in block),
            pacsv.ConvertOptions(include_columns=list(types), column_types=dict(types)),
        ).combine_chunks()

    def _result(
        self, offset: int, block: bytes, future: Future[tuple[int, T]], types: Mapping[str, Any]
    ) -> tuple[int, bytes, T]:
        import pyarrow as pa

        try:
            rows, result = future.result()
        except BadRow as error:
            raise self._at_line(offset, block, error) from None
        except pa.ArrowException as error:
            raise self._explain(offset, block, types, str(error)) from error
        self.rows += rows
        self.source.progress.advance(rows=rows)
        return offset, block, result

    def _at_line(self, offset: int, block: bytes, error: BadRow) -> DataError:
        line = self._line(offset, block, error.row)
        return error.kind(error.what, path=self.source.path, line=line, fix=error.fix)

    def _line(self, offset: int, block: bytes, row: int) -> int:
        text = block.decode("utf-8", errors="replace")
        line = 1
        for number, (at, _) in enumerate(records_of(text, self.delimiter)):
            line = at
            if number == row:
                break
        return self._lines_before(offset) + line

    def _lines_before(self, offset: int) -> int:
        lines = 0
        with Source(self.source.path) as again:
            for block in again.blocks(BLOCK):
                lines += block[:offset].count(b"\n")
                offset -= len(block)
                if offset <= 0:
                    break
        return lines

    def _explain(
        self, offset: int, block: bytes, types: Mapping[str, Any], arrow: str
    ) -> DataError:
        """Find the first record that Arrow cannot have liked."""
        where = self._lines_before(offset)
        path = self.source.path
        try:
            text = block.decode("utf-8")
        except UnicodeDecodeError as error:
            line = where + block[: error.start].count(b"\n") + 1
            return DataError(
                f"is not UTF-8 (byte {block[error.start]:#04x})",
                path=path,
                line=line,
                fix="save it as UTF-8",
            )
        try:
            for line, cells in records_of(text, self.delimiter):
                problem = self._problem(cells, types)
                if problem:
                    return DataError(problem, path=path, line=where + line)
        except csv.Error as error:
            arrow = str(error)
        return DataError(
            f"cannot be parsed after line {where} ({arrow.splitlines()[0]})", path=path
        )

    def _problem(self, cells: list[str], types: Mapping[str, Any]) -> str | None:
        import pyarrow as pa

        if len(cells) != len(self.columns):
            why = "is the row cut off?" if len(cells) < len(self.columns) else "a comma not quoted?"
            return f"has {len(cells)} fields, the header has {len(self.columns)}: {why}"
        for name, kind in types.items():
            cell = cells[self.columns.index(name)]
            if pa.types.is_fixed_size_binary(kind) and len(cell.encode()) != kind.byte_width:
                return f"{name} {short(cell)} is not {kind.byte_width} hex digits"
            what = "a number" if pa.types.is_floating(kind) else "a whole number of 64 bits"
            if pa.types.is_primitive(kind) and not fits(cell, kind):
                return f"{name} {short(cell)} is not {what}"
        return None
