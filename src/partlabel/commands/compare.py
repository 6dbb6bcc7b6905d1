"""The command ``partlabel compare``."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from partlabel import terminal
from partlabel.commands.train import SetOption
from partlabel.errors import PartlabelError

if TYPE_CHECKING:
    from partlabel.compare import Comparison, Failure
    from partlabel.compare.statistics import Difference, Spread


def compare(
    file: Annotated[Path, typer.Argument(help="a compare file (toml)", metavar="FILE.toml")],
    *,
    sets: SetOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="the folder; default: outputs/NAME")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print summary and differences as json")
    ] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="print what would be trained, and what is done")
    ] = False,
    report: Annotated[bool, typer.Option("--report/--no-report", help="write report.html")] = True,
) -> None:
    """Compare methods, annotation schemes and seeds: train what is missing, print one table.

    Run it again to go on where it was interrupted; what is in the table is not trained again.
    """
    from partlabel.compare import Comparison

    comparison = Comparison.read(file, sets or (), out)
    if listed:
        _list(comparison, as_json=as_json)
        return
    failures = run_comparison(comparison)
    finish_comparison(comparison, failures, as_json=as_json, report=report)


def finish_comparison(
    comparison: Comparison,
    failures: list[Failure],
    *,
    as_json: bool = False,
    report: bool = True,
) -> None:
    """Print the tables, write the report; a run that failed is an error, after all that."""
    if as_json:
        terminal.json_text(_json(comparison, failures))
    else:
        show_comparison(comparison)
    if report and comparison.results():
        written = _write_report(comparison.folder)
        if not as_json:
            terminal.note(f"report: {written}")
    if failures:
        first = failures[0]
        place = comparison.folder / "failed.csv"
        what = f"{len(failures)} of {len(comparison.cells)} runs failed, see {place}"
        raise PartlabelError(f"{what}; the first: {first.cell.name}: {first.error}")


def run_comparison(comparison: Comparison) -> list[Failure]:
    """Train what is missing of a comparison, shown; a wish to stop ends it in peace."""
    from partlabel.commands.watching import TrainingProgress
    from partlabel.training.loop import Stopped

    with TrainingProgress() as watcher:
        try:
            return comparison.run(watcher)
        except Stopped:
            where = f"from the checkpoint in {comparison.folder}"
            terminal.aside(f"stopped; the same command goes on {where}")
            raise SystemExit(130) from None


def show_comparison(comparison: Comparison) -> None:
    """Print a table for each scheme: methods, their numbers, and how far from the baseline."""
    summary, differences = comparison.summary(), comparison.differences()
    for scheme in comparison.plan.schemes:
        spreads = [each for each in summary if each.scheme == str(scheme)]
        if spreads:
            _show_scheme(comparison, spreads, differences)


def _show_scheme(
    comparison: Comparison, spreads: list[Spread], differences: list[Difference]
) -> None:
    cells = {(each.method, each.number): each for each in spreads}
    distances = {(each.scheme, each.method, each.number): each for each in differences}
    baseline, scheme = comparison.plan.baseline, spreads[0].scheme
    numbers = {"map_c": "mAP(C)", "map_o": "mAP(O)", "map_frequent": "frequent"}
    numbers |= {f"ap:{name}": f"AP {name}" for name in comparison.plan.base.eval.classes}
    rows = []
    for method in dict.fromkeys(each.method for each in spreads):
        row = [method, *(_mean(cells.get((method, number))) for number in numbers)]
        distance = distances.get((scheme, method, "map_c"))
        rows.append([*row, "(baseline)" if method == baseline else _distance(distance)])
    seeds = max(each.n for each in spreads)
    counted = "1 seed" if seeds == 1 else f"{seeds} seeds, mean ± standard deviation"
    header = ["method", *numbers.values(), f"mAP(C) - {baseline}"]
    terminal.table(f"{scheme}: {counted}", header, rows)


def _mean(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    sd = "" if math.isnan(spread.sd) else f" ± {100 * spread.sd:.2f}"
    return f"{100 * spread.mean:.2f}{sd}"


def _distance(found: Difference | None) -> str:
    if found is None:
        return "-"
    text = f"{100 * found.mean:+.2f}"
    if math.isnan(found.low):
        return text
    return f"{text} ({100 * found.low:+.2f} to {100 * found.high:+.2f})"


def _list(comparison: Comparison, *, as_json: bool) -> None:
    done = {row.key for row in comparison.results()}
    if as_json:
        cells = [
            {"method": cell.method, "scheme": str(cell.scheme), "seed": cell.seed,
             "key": cell.key, "folder": str(cell.folder), "done": cell.key in done}
            for cell in comparison.cells
        ]  # fmt: skip
        terminal.json_text({"out": str(comparison.folder), "cells": cells})
        return
    rows = [
        [cell.method, str(cell.scheme), str(cell.seed), _state(cell.folder, cell.key in done)]
        for cell in comparison.cells
    ]
    left = sum(cell.key not in done for cell in comparison.cells)
    title = f"{comparison.folder}: {len(rows)} cells, {left} to train"
    terminal.table(title, ["method", "scheme", "seed", ""], rows)


def _state(folder: Path, done: bool) -> str:
    if done:
        return "done"
    return "begun" if (folder / "config.toml").is_file() else ""


def _json(comparison: Comparison, failures: list[Failure]) -> dict[str, Any]:
    return {
        "out": str(comparison.folder),
        "baseline": comparison.plan.baseline,
        "summary": [asdict(each) for each in comparison.summary()],
        "differences": [asdict(each) for each in comparison.differences()],
        "failed": [
            {"method": each.cell.method, "scheme": str(each.cell.scheme), "seed": each.cell.seed,
             "error": each.error}
            for each in failures
        ],
    }  # fmt: skip


def _write_report(folder: Path) -> Path:
    from partlabel.report import write_report

    return write_report(folder, say=terminal.aside)
