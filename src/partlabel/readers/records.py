"""Records of csv text: where they end, and at which line they stand."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Iterator
from typing import Any

LONGEST = 64 << 20  # a record that seems longer has a stray quote in it


def whole_records(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut at the last newline of each block that is not inside quotes."""
    rest = b""
    for block in blocks:
        data = rest + block if rest else block
        cut = data.rfind(b"\n") + 1
        if b'"' in data and len(data) <= LONGEST:
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


def first_record(block: bytes) -> bytes:
    """The first record of a block with its line end."""
    end = block.find(b"\n") + 1
    while end and block.count(b'"', 0, end) % 2:
        end = block.find(b"\n", end) + 1
    return block[:end] if end else block


def records_of(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The records of a text with the line each starts at, empty lines left out, as Arrow does."""
    limit = csv.field_size_limit(sys.maxsize)  # a cell may be as long as it likes
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        line = 1
        for cells in reader:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    finally:
        csv.field_size_limit(limit)


def short(cell: str) -> str:
    """A cell as it is shown in an error."""
    return repr(cell if len(cell) <= 40 else cell[:37] + "...")


def fits(cell: str, kind: Any) -> bool:
    """Whether Arrow reads a cell as this type, or as nothing."""
    import pyarrow as pa
    from pyarrow import csv as pacsv

    text = cell.strip()
    try:
        pa.array([text]).cast(kind)
    except pa.ArrowException:
        return text in pacsv.ConvertOptions().null_values
    return True
