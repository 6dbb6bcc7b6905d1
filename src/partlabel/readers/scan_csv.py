"""Csv files of any size in blocks, parsed on all cores, with the line of whatever is wrong.

Blocks are cut at the ends of records and parsed by Arrow. Line numbers are not counted on the way:
only when a block is refused is it read again, slowly, to find the place.
"""

from __future__ import annotations

import csv
import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from partlabel.errors import DataError, suggest
from partlabel.files import Source

BLOCK = 16 << 20
_LONGEST_RECORD = 4 * BLOCK

T = TypeVar("T")


class BadRow(Exception):  # noqa: N818  # a signal between a reader and scan(), which adds the place
    """A row that a reader refuses; its index is counted within the block."""

    def __init__(self, row: int, what: str, fix: str | None = None) -> None:
        super().__init__(what)
        self.row = row
        self.what = what
        self.fix = fix


class CsvFile:
    """One csv file, gzip or not, with or without byte order mark; opened for a single scan."""

    typed = False  # a csv has no types of its own

    def __init__(
        self, source: Source, *, delimiter: str = ",", columns: list[str] | None = None
    ) -> None:
        self.source = source
        self.delimiter = delimiter
        self._records = _whole_records(source.blocks(BLOCK))
        self._first = next(self._records, b"")
        self._skipped = 0
        if columns is None:
            columns = self._header()
        self.columns = columns

    def _header(self) -> list[str]:
        line = _first_record(self._first)
        try:
            cells = next(
                csv.reader(io.StringIO(line.decode(), newline=""), delimiter=self.delimiter), []
            )
        except (UnicodeDecodeError, csv.Error) as error:
            raise DataError(
                f"the header cannot be read ({error})", path=self.source.path, line=1
            ) from error
        columns = [cell.strip() for cell in cells]
        if not any(columns):
            raise DataError(
                "is empty", path=self.source.path, fix="a header line and rows were expected"
            )
        twice = (
            {name for name in columns if columns.count(name) > 1}
            if len(set(columns)) < len(columns)
            else ()
        )
        if twice:
            raise DataError(
                f"the header has column {min(twice)!r} twice",
                path=self.source.path,
                line=1,
                fix="rename one",
            )
        self._first = self._first[len(line) :]
        self._skipped = len(line)
        return columns

    def require(self, name: str, option: str | None = None) -> str:
        """Check that there is a column of this name."""
        if name in self.columns:
            return name
        how = f"; name it with {option}" if option else ""
        raise DataError(
            f"no column {name!r}",
            path=self.source.path,
            line=1,
            fix=suggest(name, self.columns) + how,
        )

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

        if block.isspace():
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
        self.source.progress.advance(rows=rows)
        return offset, block, result

    def _at_line(self, offset: int, block: bytes, error: BadRow) -> DataError:
        line = self._line(offset, block, error.row)
        return DataError(error.what, path=self.source.path, line=line, fix=error.fix)

    def _line(self, offset: int, block: bytes, row: int) -> int:
        text = block.decode("utf-8", errors="replace")
        line = 1
        for number, (at, _) in enumerate(_records_of(text, self.delimiter)):
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
            for line, cells in _records_of(text, self.delimiter):
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
            return (
                f"has {len(cells)} fields, the header has {len(self.columns)}: is the row cut off?"
            )
        for name, kind in types.items():
            cell = cells[self.columns.index(name)]
            if pa.types.is_fixed_size_binary(kind) and len(cell.encode()) != kind.byte_width:
                return f"{name} {_short(cell)} is not {kind.byte_width} hex digits"
            if pa.types.is_floating(kind) and not _is_number(cell):
                return f"{name} {_short(cell)} is not a number"
            if pa.types.is_integer(kind) and not _is_integer(cell):
                return f"{name} {_short(cell)} is not a whole number"
        return None


def _whole_records(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut at the last newline of each block that is not inside quotes."""
    rest = b""
    for block in blocks:
        data = rest + block if rest else block
        cut = data.rfind(b"\n") + 1
        if b'"' in data and len(data) <= _LONGEST_RECORD:
            odd = data.count(b'"', 0, cut) % 2
            while cut and odd:
                before = data.rfind(b"\n", 0, cut - 1) + 1
                odd ^= data.count(b'"', before, cut) % 2
                cut = before
        if cut:
            yield data[:cut]
        rest = data[cut:]
    if rest:
        yield rest


def _first_record(block: bytes) -> bytes:
    end = block.find(b"\n") + 1
    while end and block.count(b'"', 0, end) % 2:
        end = block.find(b"\n", end) + 1
    return block[:end] if end else block


def _records_of(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The records of a text with the line each starts at, empty lines left out, as Arrow does."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    line = 1
    for cells in reader:
        if cells:
            yield line, cells
        line = reader.line_num + 1


def _short(cell: str) -> str:
    return repr(cell if len(cell) <= 40 else cell[:37] + "...")


def _is_number(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True


def _is_integer(cell: str) -> bool:
    digits = cell.strip().removeprefix("-")
    return digits.isascii() and digits.isdigit()
