"""Csv files with one row per class: written in one step, read back, matched by class id."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from partlabel.errors import ClassMismatchError, DataError, StoreError, suggest
from partlabel.files import existing_file
from partlabel.tables import ClassTable


class Entry(Protocol):
    """What a row has at least."""

    @property
    def class_name(self) -> str:
        """The name of the class."""


E = TypeVar("E", bound=Entry)


def write_rows(path: str | Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a csv file in one step: a crash leaves what was there before."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            plain = csv.writer(file, lineterminator="\n")
            quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
            for row in (columns, *rows):
                cells = [_cell(value) for value in row]
                # Python leaves a lone carriage return bare, and takes it for the end of a row.
                odd = any(isinstance(cell, str) and "\r" in cell for cell in cells)
                (quoted if odd else plain).writerow(cells)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"{path}: cannot be written ({error.strerror or error})") from error


def read_rows(path: str | Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Read a csv file: its header, and the line and the cells by column of each row."""
    path = existing_file(path)
    rows, line = [], 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            for row in reader:
                if row:  # not a blank line
                    rows.append((line, row))
                line = reader.line_num + 1
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot be read ({error})", path=path, fix="save it as UTF-8") from error
    header = rows[0][1] if rows else []
    return header, [(line, dict(zip(header, row, strict=False))) for line, row in rows[1:]]


def matched(entries: Mapping[str, E], classes: ClassTable, *, what: str) -> list[E]:
    """The entry of each class of a table: by id, or all by name where a file has no ids."""
    named = {entry.class_name: entry for entry in entries.values()}
    distinct = len(set(classes.names)) == len(classes) and len(named) == len(entries)
    if distinct and not set(classes.ids) <= set(entries):
        for known in (entries, named):
            if set(classes.names) <= set(known):
                return [known[name] for name in classes.names]
    missing = [i for i in classes.ids if i not in entries]
    if missing:
        more = ", ..." if len(missing) > 3 else ""
        raise ClassMismatchError(
            f"{what} lacks {len(missing)} of {len(classes)} classes: "
            f"{', '.join(missing[:3])}{more}; {suggest(missing[0], entries, most=3)}"
        )
    for i, name in zip(classes.ids, classes.names, strict=True):
        other = entries[i].class_name
        if i != name and i != other and name != other:
            raise ClassMismatchError(f"class {i} is {name!r} here and {other!r} in {what}")
    return [entries[i] for i in classes.ids]


def _cell(value: Any) -> Any:
    return f"{value:.9g}" if isinstance(value, float) else value
