"""What a run folder or a compare folder has to tell, as far as it can be read."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

from partlabel.classfile import read_rows
from partlabel.config import Config
from partlabel.errors import DataError
from partlabel.prior import Prior
from partlabel.report.wording import one_line


class Gap(NamedTuple):
    """Something the report does not show, and why."""

    what: str
    why: str


class Gaps(list[Gap]):
    """What could not be shown."""

    def add(self, what: str, why: str) -> None:
        """Note it; the same thing once."""
        gap = Gap(what, one_line(why, 400))
        if gap not in self:
            self.append(gap)

    def noting(self, what: str) -> _Noting:
        """Whatever goes wrong in here is a gap in the report, not the end of it."""
        return _Noting(self, what)


@dataclass(frozen=True)
class _Noting:
    gaps: Gaps
    what: str

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        # A damaged file can raise anything, and the rest is still good.
        if not isinstance(error, Exception):
            return False
        self.gaps.add(self.what, str(error) or type(error).__name__)
        return True


@dataclass(kw_only=True)
class Cell:
    """One training: a method on a scheme with a seed."""

    method: str
    title: str
    scheme: str = "given"
    seed: int = 0
    key: str = ""
    """In a table of results."""
    device: str = ""
    version: str = ""
    """Of partlabel, when it was trained."""
    numbers: dict[str, float] = field(default_factory=dict)
    """map_c, map_o, map_frequent, ap:NAME, ...: shares of 1, as they were written."""
    aps: dict[str, float] = field(default_factory=dict)
    """Average precision on the validation set, by class id."""
    names: dict[str, str] = field(default_factory=dict)
    """Class names by id, of the same table."""
    prior: Prior | None = None
    folder: Path | None = None
    """The run folder, where it is still there."""
    log: list[dict[str, Any]] = field(default_factory=list)
    finished: bool = True

    def logged(self, kind: str) -> list[dict[str, Any]]:
        """The lines of one kind in the log."""
        return [line for line in self.log if line.get("kind") == kind]


class Sweep(NamedTuple):
    """Methods that differ in one setting."""

    name: str
    title: str
    values: tuple[Any, ...]
    methods: tuple[str, ...]


@dataclass(kw_only=True)
class Material:
    """All that a report is made of."""

    kind: Literal["run", "compare"]
    folder: Path
    name: str
    cells: list[Cell]
    schemes: list[str] = field(default_factory=lambda: ["given"])
    baseline: str | None = None
    frequent: list[str] = field(default_factory=list)
    """Ids of the classes that count as frequent; none: a tenth of all."""
    sweeps: list[Sweep] = field(default_factory=list)
    truth: dict[str, float] = field(default_factory=dict)
    """Share of the training images that really have a class, by id."""
    config: Config | None = None
    """Of a run, or the file of a comparison without its [compare]."""
    settings: str = ""
    """The same as it was written."""
    environment: dict[str, Any] = field(default_factory=dict)
    failed: list[dict[str, str]] = field(default_factory=list)
    gaps: Gaps = field(default_factory=Gaps)

    @property
    def titles(self) -> dict[str, str]:
        """The methods in order, with what they are called."""
        return {cell.method: cell.title for cell in self.cells}

    @property
    def main_scheme(self) -> str:
        """The scheme of the figures that show one: the first that leaves labels out."""
        there = [scheme for scheme in self.schemes if any(c.scheme == scheme for c in self.cells)]
        partial = [scheme for scheme in there if scheme != "complete"]
        return (partial or there or ["given"])[0]

    @property
    def swept(self) -> set[str]:
        """Methods that are there for a sweep only."""
        return {method for sweep in self.sweeps for method in sweep.methods}

    def of(self, scheme: str, method: str | None = None) -> list[Cell]:
        """The cells of a scheme, or of a method in it."""
        return [c for c in self.cells if c.scheme == scheme and method in (None, c.method)]

    def values(self, scheme: str, method: str, number: str) -> dict[int, float]:
        """A number by seed, where it is known."""
        found = {c.seed: c.numbers.get(number, math.nan) for c in self.of(scheme, method)}
        return {seed: value for seed, value in found.items() if math.isfinite(value)}


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; torn ones are left out."""
    found = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue  # torn by a kill
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            found.append(line)
    return found


def read_json(path: Path) -> dict[str, Any]:
    """A json file that holds a table."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"is not json ({error})", path=path) from error
    if not isinstance(found, dict):
        raise DataError("is not a table", path=path)
    return found


def read_aps(path: Path) -> tuple[dict[str, float], dict[str, str]]:
    """Average precision and name by class id, from a table of classes."""
    header, rows = read_rows(path)
    if not {"class_id", "ap"} <= set(header):
        raise DataError(f"no such columns in {header}", path=path, fix="expected class_id and ap")
    aps = {row["class_id"]: as_number(row.get("ap")) for _, row in rows}
    return aps, {row["class_id"]: row.get("class_name") or row["class_id"] for _, row in rows}


def as_number(text: Any) -> float:
    """A number; NaN for what is none."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """A toml file: its text, and its tables."""
    text = path.read_text(encoding="utf-8")
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"is not toml ({error})", path=path) from error


def read_settings(path: Path, gaps: Gaps) -> tuple[str, Config | None]:
    """The settings of a run, or of a comparison without its own section; and their text."""
    with gaps.noting("The settings"):
        text, values = read_toml(there(path))
        values.pop("compare", None)
        config = None
        with gaps.noting("The settings, read as a run"):
            config = Config.from_dict(values, place=str(path), name=path.resolve().parent.name)
        return text, config
    return "", None


def there(path: Path) -> Path:
    """A file that must be there; its absence in words."""
    if not path.is_file():
        raise DataError("is not there", path=path.name)
    return path
