"""A comparison: its cells, what of them is done, and all that is written about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import tomli_w
import torch

from partlabel.classfile import write_rows
from partlabel.compare.cells import Cell, CellMaker
from partlabel.compare.data import CompareData, read_per_class
from partlabel.compare.plan import Plan
from partlabel.compare.reading import read_plan
from partlabel.compare.results import Row, Table
from partlabel.compare.runkeys import refuse_other
from partlabel.compare.running import CellRunner, tidy
from partlabel.compare.statistics import (
    Difference,
    Spread,
    differences,
    summarise,
    write_differences,
    write_summary,
)
from partlabel.errors import PartlabelError, StoreError, UsageError
from partlabel.folder import locked
from partlabel.training.loop import Stopped
from partlabel.training.processes import processes
from partlabel.training.watcher import Silent, Watcher

FAILED = "failed.csv"


@dataclass(frozen=True)
class Failure:
    """A cell that could not be trained."""

    cell: Cell
    error: str


class Comparison:
    """Methods x schemes x seeds of one compare file, in one folder.

    Args:
        plan: The file, read and checked.
        folder: Where everything is kept.
    """

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder

    @classmethod
    def read(
        cls, path: str | Path, sets: Iterable[str] = (), out: str | Path | None = None
    ) -> Comparison:
        """Read and check a compare file; no data is looked at yet.

        Args:
            path: The file.
            sets: What ``--set`` says, of [compare] too: ``compare.seeds=[0]``.
            out: The folder; default is what the file says, or outputs/NAME.
        """
        plan = read_plan(path, sets)
        return cls(plan, plan.base.out if out is None else Path(out))

    @cached_property
    def data(self) -> CompareData:
        """The labels."""
        return CompareData(self.plan)

    @cached_property
    def cells(self) -> list[Cell]:
        """One for each method, scheme and seed, in the order in which they are trained."""
        return CellMaker(self.plan, self.data, self.folder).cells

    @cached_property
    def _table(self) -> Table:
        return Table(self.folder)

    def results(self) -> list[Row]:
        """The rows of those cells that are finished, by scheme, method and seed.

        Rows of other settings or data are left out.
        """
        there = {row.key: row for row in self._table.rows()}
        found = [self._as(cell, there[cell.key]) for cell in self.cells if cell.key in there]
        schemes, methods = [str(each) for each in self.plan.schemes], list(self.plan.methods)
        seeds = self.plan.settings.seeds

        def place(row: Row) -> tuple[int, int, int]:
            return schemes.index(row.scheme), methods.index(row.method), seeds.index(row.seed)

        return sorted(found, key=place)

    def _as(self, cell: Cell, row: Row) -> Row:
        """A row for a cell with its key: perhaps by another name, with other classes to show."""
        made = replace(row, method=cell.method, title=cell.title)
        kept = self.folder / "per_class" / f"{cell.key}.csv"
        if not kept.is_file():
            return made
        frequent, named = self.data.chosen(read_per_class(kept))
        return replace(made, map_frequent=frequent, ap=named)

    def run(self, watcher: Watcher | None = None) -> list[Failure]:
        """Train what is missing; gives the cells that failed.

        A run that is asked to stop raises :class:`partlabel.training.loop.Stopped`; calling it
        again goes on from there.
        """
        watcher = watcher or Silent()
        with processes(self.plan.base.train.device) as here:
            if here.world > 1:
                raise UsageError("compare trains in one process; start it without torchrun")
            _ = self.cells  # what is wrong with the file or the data shows before a folder is made
            with self._alone():
                self._begin()
                runner = CellRunner(self.data, self.folder, processes=here, watcher=watcher)
                try:
                    return self._run(runner, watcher)
                finally:
                    self._table.replace(self.results())  # in order
                    self._write_statistics()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse a second process: both would train the same cells into the same folders."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / ".lock").open("w") as file:
                if not locked(file):
                    what = "another process works on this comparison"
                    raise UsageError(f"{self.folder}: {what}; wait for it, or choose another --out")
                yield
        except OSError as error:
            reason = error.strerror or str(error)
            what = f"cannot be written ({reason}); choose another --out"
            raise StoreError(f"{self.folder}: {what}") from error

    def _begin(self) -> None:
        """Find out that everything can be written, and write what is known before."""
        folder = self.folder
        if (folder / "config.toml").is_file():
            raise UsageError(f"{folder}: is the folder of a run; choose another --out")
        done = {row.key for row in self.results()}
        for cell in self.cells:
            if cell.key not in done:
                refuse_other(cell.folder, cell.key, cell.config, runs=folder / "runs")
        text = tomli_w.dumps({**self.plan.values, "out": str(folder)})
        temporary = folder / ".compare.toml.tmp"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(folder / "compare.toml")
        for name in ("per_class", "priors", "stores"):
            (folder / name).mkdir(exist_ok=True)
        self.data.write(folder)
        columns = ("key", "method", "title", "scheme", "seed", "folder")
        rows = [
            (c.key, c.method, c.title, c.scheme, c.seed, c.folder.relative_to(folder).as_posix())
            for c in self.cells
        ]
        write_rows(folder / "cells.csv", columns, rows)
        (folder / FAILED).unlink(missing_ok=True)
        self._table.replace(self.results())

    def _run(self, runner: CellRunner, watcher: Watcher) -> list[Failure]:
        failures: list[Failure] = []
        done = {row.key for row in self.results()}
        tried: set[str] = set()
        for number, cell in enumerate(self.cells, 1):
            if cell.key in done | tried:
                continue
            if watcher.stopping():
                raise Stopped
            watcher.say(f"{number} of {len(self.cells)}: {cell.name}")
            tried.add(cell.key)
            try:
                row = runner(cell)
            except (PartlabelError, torch.OutOfMemoryError) as error:
                watcher.say(f"warning: {cell.name}: failed: {error}")
                failures.append(Failure(cell, str(error)))
                self._write_failures(failures)
                continue
            # For every method that comes to the same settings.
            same = [self._as(each, row) for each in self.cells if each.key == cell.key]
            self._table.add(same)
            done.add(cell.key)
            self._tidy(done)
        self._tidy(done)
        return failures

    def _tidy(self, done: set[str]) -> None:
        settings = self.plan.settings
        finished = [cell for cell in self.cells if cell.key in done]
        pending = [cell for cell in self.cells if cell.key not in done]
        tidy(finished, pending, keep=settings.keep, first_seed=settings.seeds[0])

    def _write_failures(self, failures: list[Failure]) -> None:
        columns = ("key", "method", "scheme", "seed", "error")
        rows = [(f.cell.key, f.cell.method, f.cell.scheme, f.cell.seed, f.error) for f in failures]
        write_rows(self.folder / FAILED, columns, rows)

    def summary(self) -> list[Spread]:
        """Mean and spread over seeds of each number."""
        return summarise(self.results())

    def differences(self) -> list[Difference]:
        """Differences to the baseline, paired by seed."""
        return differences(self.results(), self.plan.baseline)

    def _write_statistics(self) -> None:
        write_summary(self.folder / "summary.csv", self.summary())
        write_differences(self.folder / "differences.csv", self.differences())
