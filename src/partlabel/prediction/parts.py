"""What several processes write for one file, and how it becomes that file.

Each writes a part beside the file; the main process puts them together in order. It waits for the
others by looking for their files, so that no time limit of a collective can end a long work.
"""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from partlabel.errors import StoreError, UsageError
from partlabel.prediction.reading import Skipped
from partlabel.training.processes import Processes

_FIRST = 5  # of the images that cannot be read are shown
_LOOK = 0.2
_PATIENCE = 30.0  # a network disk may take a while to show a new file


@dataclass
class Outcome:
    """What became of the images."""

    images: int = 0
    labels: int = 0
    skipped: int = 0
    first: list[Skipped] = field(default_factory=list)
    """A few of those that could not be read."""

    def add(self, other: Outcome) -> None:
        """Those of another process."""
        self.images += other.images
        self.labels += other.labels
        self.skipped += other.skipped
        self.first = [*self.first, *other.first][:_FIRST]


class SkippedFile:
    """A csv of what could not be read; there is none where all could."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._file: TextIO | None = None

    def add(self, skipped: Sequence[Skipped]) -> None:
        """Write some more."""
        if not skipped or self.path is None:
            return
        if self._file is None:
            self._file = self.path.open("w", encoding="utf-8", newline="")
        csv.writer(self._file, lineterminator="\n").writerows(skipped)

    def close(self) -> None:
        """Close the file, if there is any."""
        if self._file is not None:
            self._file.close()


def skipped_beside(out: Path) -> Path:
    """Where the images that could not be read are listed: ``scores.skipped.csv``."""
    return out.with_suffix(".skipped.csv")


class Parts:
    """The parts of one file. Whatever happens, none is left in the end.

    Args:
        out: What they become.
        processes: Who writes them.
    """

    def __init__(self, out: Path, processes: Processes) -> None:
        self.out, self.processes = out, processes
        token = processes.from_main(os.getpid())
        self.paths = [
            out.with_name(f".{out.name}.{token}.part-{rank}") for rank in range(processes.world)
        ]
        self.own = self.paths[processes.rank]

    def __enter__(self) -> Parts:
        self.own.touch()
        self.processes.wait()
        until = time.monotonic() + _PATIENCE
        while self.processes.main and not all(path.exists() for path in self.paths):
            if time.monotonic() > until:
                what = "the main process does not see what others write here"
                raise UsageError(f"{self.out}: {what}; --out must be on a disk that all share")
            time.sleep(_LOOK)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The main process still needs what the others have done well.
        if self.processes.main or kind is not None:
            for path in self.paths if self.processes.main else [self.own]:
                for each in (path, _facts(path), skipped_of(path)):
                    each.unlink(missing_ok=True)

    def done(self, facts: dict[str, Any]) -> list[dict[str, Any]]:
        """Say that the own part is complete; for the main process, wait for all.

        Returns:
            The facts of all processes, in order; an empty list on those that are not the main one.
        """
        facts_path = _facts(self.own)
        temporary = facts_path.with_suffix(".tmp")
        temporary.write_text(json.dumps(facts), encoding="utf-8")
        temporary.replace(facts_path)
        if not self.processes.main:
            return []
        found = []
        for path in self.paths:
            while not _facts(path).exists():
                time.sleep(_LOOK)
            found.append(json.loads(_facts(path).read_text(encoding="utf-8")))
        return found


def skipped_of(part: Path) -> Path:
    """Where a process lists the images it could not read."""
    return part.with_name(f"{part.name}.skipped")


def _facts(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def put_together(
    parts: Parts, own: Outcome, join: Callable[[list[Path], Path], None]
) -> Outcome | None:
    """Let the parts of all processes become the file, and the lists of what was skipped one."""
    facts = parts.done(asdict(own))
    if not parts.processes.main:
        return None
    whole = Outcome()
    for each in facts:
        whole.add(Outcome(**{**each, "first": [Skipped(*one) for one in each["first"]]}))
    if not whole.images:
        return whole
    join(parts.paths, parts.out)
    beside = skipped_beside(parts.out)
    beside.unlink(missing_ok=True)
    lists = [path for path in map(skipped_of, parts.paths) if path.exists()]
    if lists:
        with beside.open("w", encoding="utf-8", newline="") as file:
            file.write("image,reason\n")
            for path in lists:
                file.write(path.read_text(encoding="utf-8"))
    return whole


@contextmanager
def explained(out: Path) -> Iterator[None]:
    """Say in one line that a file cannot be written."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{out}: cannot be written ({error.strerror or error})") from error
