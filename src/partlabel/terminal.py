"""What people see in a terminal: progress, tables, one-line errors."""

from __future__ import annotations

import json
import sys
import time
from types import TracebackType
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

_SECONDS_BETWEEN_LINES = 5.0
_MOST_LETTERS = 40  # of a cell


def progress_bar(*columns: ProgressColumn) -> Progress | None:
    """A bar with these columns between name and time left; None where there is no terminal."""
    if not err.is_terminal:
        return None
    name, left = TextColumn("{task.description}", markup=False), TimeRemainingColumn()
    bar = Progress(name, BarColumn(), *columns, left, console=err, transient=True)
    bar.start()
    return bar


class _RowRate(ProgressColumn):
    def render(self, task: Task) -> Text:
        seconds = task.elapsed or 0
        rows = task.fields["rows"]
        return Text(f"{rows / seconds:>10,.0f} rows/s" if seconds and rows else "")


class ReadingProgress:
    """How far the reading of files is: a bar in a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._name = ""
        self._total = self._read = self._rows = 0
        self._began = self._said = time.monotonic()

    def __enter__(self) -> ReadingProgress:
        self._bar = progress_bar(TextColumn("{task.percentage:>3.0f}%"), _RowRate())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, name: str, total: int) -> None:
        """Begin a file."""
        self._name, self._total, self._read, self._rows = name, total, 0, 0
        self._began = self._said = time.monotonic()
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(name, total=max(total, 1), rows=0)

    def advance(self, *, read: int = 0, rows: int = 0) -> None:
        """Go on."""
        self._read += read
        self._rows += rows
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._read, rows=self._rows)
            return
        now = time.monotonic()
        if now - self._said >= _SECONDS_BETWEEN_LINES:
            self._said = now
            seconds = now - self._began
            left = seconds * (self._total - self._read) / max(self._read, 1)
            err.print(
                f"{self._name}: {self._read / max(self._total, 1):.0%}, "
                f"{self._rows / seconds:,.0f} rows/s, {left:.0f} s left",
                markup=False,
            )


def error(text: str) -> None:
    """Print one line that says what went wrong."""
    line = " ".join(text.split())
    err.print(Text.assemble(("error: ", "bold red"), line))


def help_text(text: str) -> None:
    """Print help where something was left out."""
    err.print(Text(text))


def note(text: str) -> None:
    """Print a line of information about what was done."""
    out.print(Text(text))


def warning(text: str, *, aside: bool = False) -> None:
    """Print a line about something to look at; ``aside`` keeps it out of the result."""
    (err if aside else out).print(Text.assemble(("warning: ", "yellow"), text))


def aside(text: str) -> None:
    """Print a line beside the result."""
    err.print(Text(text))


def rows(title: str, lines: dict[str, str]) -> None:
    """Print names and what they are, one below the other."""
    table = Table(
        title=escape(title), title_style="bold", show_header=False, box=None, padding=(0, 2)
    )
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines.items():
        table.add_row(Text(name), Text(value))
    out.print(table)


def table(title: str, header: list[str], lines: list[list[str]]) -> None:
    """Print a table: the first column to the left, numbers to the right, never wrapped."""
    whole = [[_short(text) for text in row] for row in (header, *lines)]
    widths = [max(cell_len(row[i]) for row in whole) for i in range(len(header))]
    out.print(Text(title, style="bold"))
    for number, row in enumerate(whole):
        gaps = [" " * (width - cell_len(text)) for width, text in zip(widths, row, strict=True)]
        first = f"  {row[0]}{gaps[0]}"
        rest = "".join(f"  {gap}{text}" for gap, text in zip(gaps[1:], row[1:], strict=True))
        out.print(Text((first + rest).rstrip(), style="" if number else "cyan"))


def _short(text: str) -> str:
    """On one line, without what a terminal would take for a command."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return plain if len(plain) <= _MOST_LETTERS else plain[: _MOST_LETTERS - 1] + "…"


def json_text(found: dict[str, Any]) -> None:
    """Print json, for programs; it has no NaN, that is null."""
    sys.stdout.write(json.dumps(_without_nan(found), indent=2) + "\n")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and value != value else value


def summary(path: str, found: dict[str, Any]) -> None:
    """Print what is in a store."""
    pairs = found["images"] * found["classes"]
    splits = ", ".join(f"{name or '(none)'} {count:,}" for name, count in found["splits"].items())
    lines = {
        "images": f"{found['images']:,}"
        + (f"  ({splits})" if set(found["splits"]) != {""} else ""),
        "classes": f"{found['classes']:,}",
        "positives": f"{found['positives']:,}  ({found['positives_per_image']:.2f} per image)",
        "negatives": f"{found['negatives']:,}"
        + ("  (all that is not listed)" if found["complete"] else ""),
        "unknown": f"{found['unknown']:,}",
        "known share": f"{found['known_share']:.4%} of {pairs:,} labels",
        "labels per image": f"{found['labels_per_image']:.2f}",
        "images without label": f"{found['images_without_label']:,}",
        "classes without positive": f"{found['classes_without_positive']:,}",
        "classes without negative": f"{found['classes_without_negative']:,}",
        "conflicts, duplicates": f"{found['conflicts']:,}, {found['duplicates']:,}",
        "most annotated": _classes(found["most_annotated"]),
        "least annotated": _classes(found["least_annotated"]),
        "on disk": size(found["bytes_on_disk"])
        + f"  (dense int8 would be {size(found['bytes_dense'])})",
    }
    rows(path, lines)
    for text in found["warnings"]:
        warning(text)
    for text in found["notes"]:
        note(f"note: {text}")
    _recommendation(found["recommendation"])


def _recommendation(found: dict[str, Any]) -> None:
    """Print what to train with, and why."""
    lines = {"annotated": found["annotation"], "loss": found["loss"]}
    if found["one_training"]:
        lines["in one training"] = found["one_training"]
    lines |= {"why" if not i else " " * i: text for i, text in enumerate(found["why"])}
    rows(f"recommended ({found['more']})", lines)


def _classes(entries: list[dict[str, Any]]) -> str:
    return ", ".join(f"{e['name']} (+{e['positives']:,} -{e['negatives']:,})" for e in entries)


def size(count: int) -> str:
    """Bytes as people read them.

    Example:
        >>> size(80 * 2**30), size(5)
        ('80.00 GiB', '5 B')
    """
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    raise AssertionError
