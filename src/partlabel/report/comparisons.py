"""Reads a compare folder for the report; what is damaged or missing is noted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from partlabel.classfile import read_rows
from partlabel.compare.cells import run_folder
from partlabel.compare.schemes import Scheme
from partlabel.errors import DataError
from partlabel.prior import Prior
from partlabel.report.material import (
    Cell,
    Gaps,
    Material,
    Sweep,
    as_number,
    read_aps,
    read_json,
    read_log,
    read_settings,
    read_toml,
    there,
)
from partlabel.report.wording import one_line, plural

_TEXT = {"key", "method", "title", "scheme", "seed", "device", "version", "finished"}


def read_comparison(folder: Path) -> Material:
    """What is in a compare folder."""
    gaps = Gaps()
    settings, config = read_settings(folder / "compare.toml", gaps)
    compare: dict[str, Any] = {}
    with gaps.noting("The settings of the comparison"):
        compare = dict(read_toml(folder / "compare.toml")[1].get("compare") or {})
    if isinstance(compare.get("schemes"), list):
        compare["schemes"] = [_scheme(text) for text in compare["schemes"]]
    cells: list[Cell] = []
    with gaps.noting("The results"):
        cells = _results(folder, gaps)
    sweeps = _sweeps(compare)
    _in_order(cells, compare, sweeps)
    found = Material(
        kind="compare",
        folder=folder,
        name=config.name if config is not None else folder.resolve().name,
        cells=cells,
        schemes=_known_order([c.scheme for c in cells], compare.get("schemes")),
        baseline=_baseline(compare, cells),
        sweeps=sweeps,
        config=config,
        settings=settings,
        gaps=gaps,
    )
    if (folder / "truth.csv").is_file():
        with gaps.noting("True frequencies"):
            found.truth = _shares(folder / "truth.csv")
    if (folder / "frequent.csv").is_file():
        with gaps.noting("Which classes are frequent"):
            found.frequent = list(_shares(folder / "frequent.csv"))
    if (folder / "failed.csv").is_file():
        with gaps.noting("What failed"):
            found.failed = [row for _, row in read_rows(folder / "failed.csv")[1]]
    for row in found.failed:
        cell = f"{row.get('method')}, {row.get('scheme')}, seed {row.get('seed')}"
        gaps.add(f"A training that failed: {cell}", row.get("error", ""))
    _note_unfinished(found, compare)
    _environment(found)
    return found


def _results(folder: Path, gaps: Gaps) -> list[Cell]:
    header, rows = read_rows(there(folder / "results.csv"))
    lacking = {"key", "method", "scheme", "seed"} - set(header)
    if lacking:
        fix = "it is damaged, or of another version of partlabel"
        raise DataError(f"has no column {min(lacking)}", path=folder / "results.csv", fix=fix)
    cells: list[Cell] = []
    by_key: dict[str, list[Cell]] = {}
    bad = 0
    for _, row in rows:
        if len(row) < len(header) or not re.fullmatch(r"\d{1,18}", row["seed"]):
            bad += 1
            continue
        cells.append(_row(folder, row, gaps))
        by_key.setdefault(row["key"], []).append(cells[-1])
    _share_folders(by_key)
    if bad:
        gaps.add("Some results", f"{plural(bad, 'row')} of results.csv cannot be read")
    if not cells:
        gaps.add("The results", "no training is finished yet (results.csv has no rows)")
    return cells


def _row(folder: Path, row: dict[str, str], gaps: Gaps) -> Cell:
    cell = Cell(
        method=row["method"],
        title=row.get("title") or row["method"],
        scheme=row["scheme"],
        seed=int(row["seed"]),
        numbers={k: as_number(v) for k, v in row.items() if k not in _TEXT},
    )
    where = f"{cell.title}, {cell.scheme}, seed {cell.seed}"
    key = row["key"]
    if re.fullmatch(r"[0-9a-f]{1,64}", key):
        with gaps.noting(f"Average precision per class of {where}"):
            cell.aps, cell.names = read_aps(there(folder / "per_class" / f"{key}.csv"))
        prior = folder / "priors" / f"{key}.csv"
        if prior.is_file():
            with gaps.noting(f"The prior of {where}"):
                cell.prior = Prior.read(prior)
    run = run_folder(folder, cell.method, cell.scheme, cell.seed)
    if run.is_dir():
        cell.folder = run
        with gaps.noting(f"Training curves of {where}"):
            cell.log = read_log(there(run / "metrics.jsonl"))
    return cell


def _share_folders(cells: dict[str, list[Cell]]) -> None:
    """Methods with the same settings are trained once: give all of them what that one has."""
    for same in cells.values():
        trained = next((cell for cell in same if cell.folder is not None), None)
        for cell in same:
            if trained is not None and cell.folder is None:
                cell.folder, cell.log = trained.folder, trained.log


def _scheme(text: Any) -> str:
    """A scheme as it is written in a table of results."""
    try:
        return str(Scheme.read(str(text)))
    except ValueError:
        return str(text)


def _sweeps(compare: dict[str, Any]) -> list[Sweep]:
    found = []
    tables = compare.get("sweep")
    for name, table in (tables if isinstance(tables, dict) else {}).items():
        values = table.get("values") if isinstance(table, dict) else None
        if not isinstance(values, list):
            continue
        title = str(table.get("title") or table.get("key") or name)
        methods = tuple(f"{name}={_value_text(value)}" for value in values)
        found.append(Sweep(str(name), title, tuple(values), methods))
    return found


def _value_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _in_order(cells: list[Cell], compare: dict[str, Any], sweeps: list[Sweep]) -> None:
    """Order cells as the file has the methods, then as they were trained."""
    swept = [method for sweep in sweeps for method in sweep.methods]
    given = compare.get("methods")
    order = _known_order(
        [cell.method for cell in cells], [*(given if isinstance(given, list) else []), *swept]
    )
    cells.sort(key=lambda cell: (order.index(cell.method), cell.seed))


def _known_order(known: list[str], wanted: Any) -> list[str]:
    """Those that are there: first in the order of a file, then the others."""
    first = [str(each) for each in wanted] if isinstance(wanted, list) else []
    return list(dict.fromkeys([*(name for name in first if name in known), *known]))


def _baseline(compare: dict[str, Any], cells: list[Cell]) -> str | None:
    named = compare.get("baseline")
    methods = list(dict.fromkeys(cell.method for cell in cells))
    return named if named in methods else next(iter(methods), None)


def _shares(path: Path) -> dict[str, float]:
    header, rows = read_rows(path)
    if not {"class_id", "share"} <= set(header):
        fix = "expected class_id and share"
        raise DataError(f"no such columns in {header}", path=path.name, fix=fix)
    return {row["class_id"]: as_number(row.get("share")) for _, row in rows}


def _note_unfinished(found: Material, compare: dict[str, Any]) -> None:
    """Say how many of the trainings of the file are there."""
    methods, schemes = compare.get("methods"), compare.get("schemes", ["given"])
    seeds = compare.get("seeds", [0])
    methods = [] if methods is None else methods  # a file may have sweeps alone
    if not (isinstance(methods, list) and isinstance(schemes, list) and isinstance(seeds, list)):
        return
    swept = [method for sweep in found.sweeps for method in sweep.methods]
    done = {(c.method, c.scheme, c.seed) for c in found.cells}
    wanted = [(str(m), str(s), n) for m in [*methods, *swept] for s in schemes for n in seeds]
    lacking = [cell for cell in wanted if cell not in done]
    if lacking:
        some = "; ".join(f"{m}, {s}, seed {n}" for m, s, n in lacking[:3])
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        what = f"{len(lacking)} of {plural(len(wanted), 'training')}"
        found.gaps.add(what, f"not finished or failed: {one_line(some)}{more}")


def _environment(found: Material) -> None:
    runs = [cell.folder / "environment.json" for cell in found.cells if cell.folder is not None]
    path = next((path for path in runs if path.is_file()), None)
    if path is None:
        found.gaps.add("The environment", "no run folder of the comparison is there any more")
        return
    with found.gaps.noting("The environment"):
        found.environment = read_json(path)
