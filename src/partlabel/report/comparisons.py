"""Reads a compare folder for the report; what is damaged or missing is noted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from partlabel.classfile import read_rows
from partlabel.compare.cells import run_folder
from partlabel.compare.runkeys import key_in, with_key
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
    if not cells:
        with gaps.noting("What has begun"):
            cells = _begun(folder, gaps)
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
    bad = 0
    for _, row in rows:
        if len(row) < len(header) or not re.fullmatch(r"\d{1,18}", row["seed"]):
            bad += 1
            continue
        cells.append(_row(folder, row, gaps))
    _note_lost(folder, cells, gaps)
    if bad:
        gaps.add("Some results", f"{plural(bad, 'row')} of results.csv cannot be read")
    if not cells:
        gaps.add("The results", "no training is finished yet (results.csv has no rows)")
    return cells


def _row(folder: Path, row: dict[str, str], gaps: Gaps) -> Cell:
    cell = _cell(folder, row, gaps)
    cell.numbers = {k: as_number(v) for k, v in row.items() if k not in _TEXT}
    where, key = _name(cell), cell.key
    if re.fullmatch(r"[0-9a-f]{1,64}", key):
        with gaps.noting(f"Average precision per class of {where}"):
            cell.aps, cell.names = read_aps(there(folder / "per_class" / f"{key}.csv"))
        prior = folder / "priors" / f"{key}.csv"
        if prior.is_file():
            with gaps.noting(f"The prior of {where}"):
                cell.prior = Prior.read(prior)
    return cell


def _cell(folder: Path, row: dict[str, str], gaps: Gaps) -> Cell:
    """Whose row it is, with its run folder and log."""
    cell = Cell(
        method=row["method"],
        title=row.get("title") or row["method"],
        scheme=row["scheme"],
        seed=int(row["seed"]),
        key=row["key"],
        device=row.get("device") or "",
        version=row.get("version") or "",
    )
    # A folder may have been used again for other settings, and a method may have another name
    # than when it was trained; the key says whose run it is.
    own = run_folder(folder, cell.method, cell.scheme, cell.seed)
    if key_in(own) == cell.key:
        cell.folder = own
    else:
        cell.folder = next(with_key(folder / "runs", cell.key), None)
    if cell.folder is not None:
        with gaps.noting(f"Training curves of {_name(cell)}"):
            cell.log = read_log(there(cell.folder / "metrics.jsonl"))
    return cell


def _name(cell: Cell) -> str:
    return f"{cell.title}, {cell.scheme}, seed {cell.seed}"


def _note_lost(folder: Path, cells: list[Cell], gaps: Gaps) -> None:
    """Name the trainings whose run folder is not there, or has another run by now."""
    lost = [cell for cell in cells if cell.folder is None]
    taken = [c for c in lost if run_folder(folder, c.method, c.scheme, c.seed).is_dir()]
    for some, why in (
        ([cell for cell in lost if cell not in taken], "is gone"),
        (taken, "has another run by now"),
    ):
        if some:
            what = f"Curves and images of {plural(len(some), 'training')}"
            gaps.add(what, f"the run folder {why}: {_some([_name(cell) for cell in some])}")


def _some(names: list[str]) -> str:
    """The first of them, on one line."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return one_line("; ".join(names[:3])) + more


def _begun(folder: Path, gaps: Gaps) -> list[Cell]:
    """The cells of the file that have a log, where none is finished."""
    if not (folder / "cells.csv").is_file():
        return []
    header, rows = read_rows(folder / "cells.csv")
    if not {"key", "method", "scheme", "seed"} <= set(header):
        raise DataError(f"no such columns in {header}", path="cells.csv")
    good = [row for _, row in rows if re.fullmatch(r"\d{1,18}", row.get("seed") or "")]
    begun = []
    for cell in (_cell(folder, row, Gaps()) for row in good):
        if cell.folder is not None:
            cell.finished = False
            begun.append(cell)
    for cell in begun:
        steps = max((line["step"] for line in cell.log), default=0)
        gaps.add(f"The result of {_name(cell)}", f"not finished; it has come to step {steps:,}")
    return begun


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
    done = {(c.method, c.scheme, c.seed) for c in found.cells if c.finished}
    wanted = [(str(m), str(s), n) for m in [*methods, *swept] for s in schemes for n in seeds]
    lacking = [cell for cell in wanted if cell not in done]
    if lacking:
        some = _some([f"{m}, {s}, seed {n}" for m, s, n in lacking])
        what = f"{len(lacking)} of {plural(len(wanted), 'training')}"
        found.gaps.add(what, f"not finished or failed: {some}")


def _environment(found: Material) -> None:
    runs = [cell.folder / "environment.json" for cell in found.cells if cell.folder is not None]
    path = next((path for path in runs if path.is_file()), None)
    if path is None:
        why = "no run folder of the comparison is there any more"
        if runs:
            why = "no run folder has its environment.json"
        elif not found.cells:
            why = "no training is finished yet"
        found.gaps.add("The environment", why)
        return
    with found.gaps.noting("The environment"):
        found.environment = read_json(path)
