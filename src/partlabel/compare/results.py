"""The table of results: one row for each finished cell, never half written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from partlabel.classfile import read_rows, write_rows
from partlabel.errors import DataError

RESULTS = "results.csv"
AP = "ap:"
"""How columns begin that hold the average precision of one class."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What came out of one method, scheme and seed. Precisions are fractions of 1."""

    key: str
    """Of what decides the result; the same settings on the same data have the same."""
    method: str
    title: str
    scheme: str
    seed: int
    map_c: float = math.nan
    map_o: float = math.nan
    map_frequent: float = math.nan
    """The mean of the most frequent classes."""
    ap: dict[str, float] = field(default_factory=dict)
    """Of the classes that [eval] names."""
    n_valid: int = 0
    """Classes that map_c is the mean of."""
    prior_spearman: float = math.nan
    """Of the estimated prior with the true shares, over all classes."""
    prior_sum: float = math.nan
    true_sum: float = math.nan
    images: int = 0
    """To train on."""
    steps: int = 0
    seconds: float = math.nan
    """Of the last session that trained it, without a first stage."""
    device: str = ""
    version: str = ""
    finished: str = ""

    @cached_property
    def numbers(self) -> dict[str, float]:
        """What is compared."""
        found = {name: getattr(self, name) for name in ("map_c", "map_o", "map_frequent")}
        found |= {f"{AP}{name}": value for name, value in self.ap.items()}
        return {**found, "prior_spearman": self.prior_spearman, "prior_sum": self.prior_sum}


_FIELDS = [entry for entry in fields(Row) if entry.name != "ap"]
_PLACE = [entry.name for entry in fields(Row)].index("ap")


def read_results(path: str | Path) -> list[Row]:
    """The rows of a table of results, or of the folder that has one; none where there is none."""
    path = Path(path)
    path = path / RESULTS if path.is_dir() else path
    if not path.exists():
        return []
    header, rows = read_rows(path)
    missing = [entry.name for entry in _FIELDS if entry.name not in header]
    if missing:
        what = f"has no column {missing[0]}: it is of another version, or no table of results"
        raise DataError(what, path=path, line=1, fix="move it away, or choose another --out")
    return [_row(path, line, cells) for line, cells in rows]


def write_results(path: str | Path, rows: Sequence[Row]) -> None:
    """Write a table of results in one step."""
    named = list(dict.fromkeys(name for row in rows for name in row.ap))
    before = [entry.name for entry in _FIELDS[:_PLACE]]
    after = [entry.name for entry in _FIELDS[_PLACE:]]
    columns = [*before, *(f"{AP}{name}" for name in named), *after]
    cells = (
        [
            *(getattr(row, name) for name in before),
            *(row.ap.get(name, math.nan) for name in named),
            *(getattr(row, name) for name in after),
        ]
        for row in rows
    )
    write_rows(path, columns, cells)


class Table:
    """The results of a folder: those of its cells, and beside them those of earlier settings.

    results.csv has the rows of the comparison as its file is now. Rows that do not belong to it are
    not lost: they are in results-other.csv, and come back when the settings do.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self.others = folder / RESULTS, folder / "results-other.csv"

    def rows(self) -> list[Row]:
        """All rows, those of earlier settings first."""
        return [*read_results(self.others), *read_results(self.path)]

    def replace(self, rows: Sequence[Row]) -> None:
        """Let the table have these rows; what else was there is put aside."""
        keys = {row.key for row in rows}
        others = [row for row in self.rows() if row.key not in keys]
        if others or self.others.exists():
            write_results(self.others, list({row.key: row for row in others}.values()))
        write_results(self.path, rows)

    def add(self, new: Iterable[Row]) -> None:
        """Put rows in; one of the same cell and method is replaced."""
        rows = {(row.key, row.method): row for row in read_results(self.path)}
        rows |= {(row.key, row.method): row for row in new}
        write_results(self.path, list(rows.values()))


def _row(path: Path, line: int, cells: dict[str, str]) -> Row:
    found: dict[str, Any] = {}
    for entry in _FIELDS:
        text = cells.get(entry.name)
        if text is None:
            raise DataError("is cut short", path=path, line=line, fix="remove the line")
        found[entry.name] = _value(path, line, entry.name, str(entry.type), text)
    names = [name for name in cells if name.startswith(AP)]
    values = [_value(path, line, name, "float", cells[name]) for name in names]
    return Row(**found, ap=dict(zip((name[len(AP) :] for name in names), values, strict=True)))


def _value(path: Path, line: int, name: str, kind: str, text: str) -> Any:
    try:
        return {"str": str, "int": int, "float": float}[kind](text)
    except ValueError:
        words = "a whole number" if kind == "int" else "a number"
        what = f"must be {words}, got {text!r}"
        raise DataError(what, path=path, line=line, key=name, fix="remove the line") from None
