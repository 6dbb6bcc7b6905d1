"""Cells trained one after the other; first stages and decoded images are shared between them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from partlabel.compare.cells import Cell
from partlabel.compare.data import CompareData, copy_per_class, read_per_class
from partlabel.compare.results import Row
from partlabel.compare.runkeys import claim, has_model_or, key_in, with_key
from partlabel.config import Config
from partlabel.errors import PartlabelError
from partlabel.prior import Prior
from partlabel.training.processes import Processes
from partlabel.training.runfolder import RunFolder
from partlabel.training.stages import Run
from partlabel.training.supplies import Decoded
from partlabel.training.watcher import Watcher


class CellRunner:
    """Trains cells; what one of them leaves is there for the next.

    Args:
        data: The labels of the comparison.
        out: Its folder.
        processes: This process, which is alone.
        watcher: Is told how far it is.
    """

    def __init__(
        self, data: CompareData, out: Path, *, processes: Processes, watcher: Watcher
    ) -> None:
        self.data, self.out, self.processes, self.watcher = data, out, processes, watcher
        self._decoded: Decoded = {}
        self._failed: dict[str, str] = {}

    def __call__(self, cell: Cell) -> Row:
        """Do what is left of a cell; a PartlabelError says why it cannot be done."""
        try:
            return self._run(cell)
        except PartlabelError as error:
            self._failed[cell.key] = str(error)
            raise

    def _run(self, cell: Cell) -> Row:
        if cell.scheme.simulated:
            cell.scheme.saved(self.data.train.store, cell.seed, cell.config.data.train)
        claim(cell.folder, cell.key, cell.config)
        run = self._made(cell.config)
        if cell.first is not None:
            self._prior(cell, run)
        before = run.folder.finished() is not None
        began = time.monotonic()
        result = run()
        seconds = float("nan") if before else time.monotonic() - began
        return self._row(cell, result, seconds)

    def _made(self, config: Config, first_of: Run | None = None) -> Run:
        return Run(
            config,
            processes=self.processes,
            watcher=self.watcher,
            first_of=first_of,
            decoded=self._decoded,
        )

    def _prior(self, cell: Cell, run: Run) -> None:
        """Estimate the prior of a cell, unless that was done."""
        target, settings = Path(cell.config.prior.source), cell.config.prior
        if target.is_file():
            return
        # By name of what decides it: the same model gives several priors.
        name = f"prior-{settings.use}-{settings.images or 'all'}.csv"
        first = self._first(cell, run, name)
        if not (first.path / name).is_file():
            run.prior_of_model(first).write(first.path / name)
        target.parent.mkdir(parents=True, exist_ok=True)
        Prior.read(first.path / name).write(target)

    def _first(self, cell: Cell, run: Run, prior: str) -> RunFolder:
        """The first stage of a cell: another cell, what was trained for others, or trained now."""
        first = cell.first
        assert first is not None  # or nobody would ask
        if first.key in self._failed:
            raise PartlabelError(f"its first stage failed: {self._failed[first.key]}")
        for there in with_key(self.out / "runs", first.key):
            if has_model_or(prior, there, first.key):
                return RunFolder(there)
        self.watcher.say("first stage: a model that ignores what is unknown, for the prior")
        name = f"{cell.scheme.file_name}-seed{cell.seed}-stage1"
        config = run.config.stage1().replaced(name=name, out=str(first.folder))
        claim(first.folder, first.key, config)
        (first.folder / "result.json").unlink(missing_ok=True)  # its checkpoints were removed
        try:
            self._made(config, first_of=run)()
        except PartlabelError as error:
            self._failed[first.key] = str(error)
            raise
        return RunFolder(first.folder)

    def _row(self, cell: Cell, result: dict[str, Any], seconds: float) -> Row:
        from partlabel import __version__

        per_class = self.out / "per_class" / f"{cell.key}.csv"
        copy_per_class(cell.folder / "classes.csv", per_class)
        prior, written = None, cell.folder / "prior.csv"
        if written.is_file():
            prior = Prior.read(written)
            (self.out / "priors").mkdir(exist_ok=True)
            prior.write(self.out / "priors" / f"{cell.key}.csv")
        frequent, named = self.data.chosen(read_per_class(per_class))
        return Row(
            key=cell.key,
            method=cell.method,
            title=cell.title,
            scheme=str(cell.scheme),
            seed=cell.seed,
            map_c=_number(result.get("map_c")),
            map_o=_number(result.get("map_o")),
            map_frequent=frequent,
            ap=named,
            n_valid=int(result.get("n_valid") or 0),
            **self.data.agreement(prior),
            images=int(result["images"]),
            steps=int(result["steps"]),
            seconds=seconds,
            device=_device(self.processes),
            version=__version__,
            finished=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        )


def tidy(done: Iterable[Cell], pending: Iterable[Cell], *, keep: str, first_seed: int) -> None:
    """Remove checkpoints that nobody needs any more.

    Args:
        done: Cells that are finished.
        pending: Cells that are not; their first stages stay.
        keep: ``all``, ``first`` (of the seeds) or ``none``.
        first_seed: Whose stay with ``first``.
    """
    if keep == "all":
        return
    needed: set[Path] = set()
    for cell in pending:
        needed.add(cell.folder)
        if cell.first is not None and not Path(cell.config.prior.source).is_file():
            needed.add(cell.first.folder)
            if cell.first.cell is not None:
                needed.add(cell.first.cell.folder)
    for cell in done:
        own = [] if keep == "first" and cell.seed == first_seed else [(cell.folder, cell.key)]
        stage = [] if cell.first is None else [(cell.first.folder, cell.first.key)]
        for folder, key in (*own, *stage):
            # By now it may be the folder of other settings, which are not done.
            if folder not in needed and key_in(folder) == key:
                shutil.rmtree(folder / "checkpoints", ignore_errors=True)
                shutil.rmtree(folder / "stage1" / "checkpoints", ignore_errors=True)


def _device(processes: Processes) -> str:
    import torch

    device = processes.device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
