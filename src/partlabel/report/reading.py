"""Reads a run folder or a compare folder for the report; what is damaged or missing is noted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from partlabel.errors import UsageError
from partlabel.prior import Prior
from partlabel.report.comparisons import read_comparison
from partlabel.report.material import (
    Cell,
    Gaps,
    Material,
    read_aps,
    read_json,
    read_log,
    read_settings,
    there,
)

_RUN_FILES = ("config.toml", "metrics.jsonl", "result.json", "prior.csv", "classes.csv")
_LOSSES = {
    "ce": "Cross-entropy",
    "selective": "Selective loss",
    "partial_asymmetric": "Partial asymmetric loss",
    "asymmetric": "Asymmetric loss",
    "auto": "Auto",
}


def read_material(folder: Path) -> Material:
    """Read a folder; refuses one that has nothing to report, or that cannot be read."""
    try:
        return _material(folder)
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise UsageError(f"{error.filename or folder}: {what}; see who may read it") from error


def _material(folder: Path) -> Material:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "there is no such folder"
        raise UsageError(f"{folder}: {what}; name a folder of partlabel train or compare")
    if (folder / "compare.toml").is_file() or (folder / "results.csv").is_file():
        return read_comparison(folder)
    if not any((folder / name).is_file() for name in _RUN_FILES):
        what = "has nothing to report (neither a run nor a comparison)"
        raise UsageError(f"{folder}: {what}; name a folder of partlabel train or compare")
    return _run(folder)


def _run(folder: Path) -> Material:
    gaps = Gaps()
    settings, config = read_settings(folder / "config.toml", gaps)
    name = config.name if config is not None else folder.resolve().name
    loss = config.loss.name if config is not None else "model"
    cell = _cell(folder, gaps, method=loss, title=_LOSSES.get(loss, loss.replace("_", " ")))
    if config is not None:
        cell.seed = config.train.seed
        if loss == "ce":
            mode = str(config.loss.params.get("unknown", "ignore"))
            cell.method, cell.title = mode, mode.capitalize()
    cells = [cell]
    if (folder / "stage1").is_dir():
        told = config is not None and config.needs_posterior
        title = "First stage" if told else "First stage (Ignore)"
        first = _cell(folder / "stage1", gaps, method="stage1", title=title, part="stage1/")
        first.seed, first.prior = cell.seed, None
        cells.append(first)
    if not cell.finished:
        step = max((line["step"] for line in cell.log), default=0)
        gaps.add("The final numbers", f"the run is not finished; it has come to step {step:,}")
    environment: dict[str, Any] = {}
    with gaps.noting("The environment"):
        environment = read_json(there(folder / "environment.json"))
    return Material(
        kind="run",
        folder=folder,
        name=name,
        cells=cells,
        config=config,
        settings=settings,
        environment=environment,
        gaps=gaps,
    )


def _cell(folder: Path, gaps: Gaps, *, method: str, title: str, part: str = "") -> Cell:
    """What one run has left."""
    cell = Cell(method=method, title=title, folder=folder)
    with gaps.noting(f"Training curves ({part}metrics.jsonl)"):
        cell.log = read_log(there(folder / "metrics.jsonl"))
    cell.finished = (folder / "result.json").is_file()
    if cell.finished:
        with gaps.noting(f"The result ({part}result.json)"):
            cell.numbers = _numbers(read_json(folder / "result.json"))
    elif evaluated := cell.logged("eval"):
        cell.numbers = _numbers(evaluated[-1])
    if (folder / "classes.csv").is_file():
        with gaps.noting(f"Average precision per class ({part}classes.csv)"):
            cell.aps, cell.names = read_aps(folder / "classes.csv")
    elif cell.finished and not part:
        gaps.add("Average precision per class", "the run has no validation set")
    if (folder / "prior.csv").is_file():
        with gaps.noting(f"The estimated prior ({part}prior.csv)"):
            cell.prior = Prior.read(folder / "prior.csv")
    return cell


def _numbers(found: dict[str, Any]) -> dict[str, float]:
    """The numbers of a result; the AP of a class is ``ap:NAME``, as in a table of results."""
    named = ((re.sub("^ap_", "ap:", key), value) for key, value in found.items())
    return {key: float(v) for key, v in named if isinstance(v, int | float)}
