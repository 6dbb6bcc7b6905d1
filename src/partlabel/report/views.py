"""Numbers as the template shows them: tiles, the table of classes, the gallery."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from partlabel.classfile import write_rows
from partlabel.report.classlines import ClassLine, by_frequency, frequent_ones
from partlabel.report.figures_methods import method_looks, short_titles
from partlabel.report.gallery import Gallery
from partlabel.report.material import Cell, Material
from partlabel.report.methodtable import Statistics
from partlabel.report.wording import NARROW, count, percent, plain, plural, scheme_title, share

_METHODS = 6
"""Columns of average precision in the table; all are in its csv."""
_LINES = 20_000
"""Rows in the page; more would make it heavy."""
_WITH_BARS = 2_000
_LACKING = 5.0
"""A class is called under-annotated where so many times more images show it."""


class Tile(NamedTuple):
    """A number at the top of the page."""

    name: str
    value: str
    unit: str = ""
    note: str = ""


def tiles_of(
    material: Material,
    statistics: Statistics,
    lines: list[ClassLine],
    facts: dict[str, Any] | None,
) -> list[Tile]:
    """The numbers at the top."""
    tiles = []
    scheme = material.main_scheme
    ranked = [m for m in material.titles if (scheme, m, "map_c") in statistics.spreads]
    if material.kind == "run":
        ranked = ranked[:1]
    if ranked:
        best = (statistics.ranked(scheme, ranked, "map_c") or ranked)[0]
        name = "Best mAP(C)" if statistics.best(scheme, ranked, "map_c") else "mAP(C)"
        title = short_titles(material)[best] if len(ranked) > 1 else "validation"
        tiles.append(Tile(name, percent(statistics.mean(scheme, best, "map_c")), "%", plain(title)))
    if facts is not None:
        known = share(facts["known_share"])
        tiles += [
            Tile("Labels known", known, "%", f"{facts['labels_per_image']:.1f} per image"),
            Tile("Training images", count(facts["images"])),
            Tile("Classes", count(facts["classes"])),
        ]
    elif lines:
        tiles.append(Tile("Classes", count(len(lines))))
    return tiles


def table_lead(material: Material) -> str:
    """What the table of methods shows."""
    seeds = max((len(material.of(s, m)) for s in material.schemes for m in material.titles),
                default=0)  # fmt: skip
    if material.kind == "run":
        return "On the validation set, in percent."
    text = "On the validation set, in percent; the best of each column is bold."
    if seeds > 1:
        text += (
            " Mean ± standard deviation over seeds. Differences are paired by seed, in points of "
            f"mAP(C), with their 95{NARROW}% interval; bold where it leaves out zero."
            " A method with fewer seeds than others shows its n, and is not among the best."
        )
    else:
        text += " One seed each: differences have no interval, and small ones mean little."
    return text


def class_view(material: Material, lines: list[ClassLine], figures: Path) -> dict[str, Any]:
    """The table of classes, and the same as csv."""
    order = by_frequency(lines)
    methods = [m for m in method_looks(material) if any(m in line.aps for line in lines)]
    _write(figures / "classes.csv", order, methods)
    shown, titles = methods[:_METHODS], short_titles(material)
    columns = [Column("Class", "", "Name and id")]
    optional = {
        "positives": Column("Present", "", "Training images where it is annotated present"),
        "negatives": Column("Absent", "", "Training images where it is verified absent"),
        "prior": Column("Estimated", "%", "Share of images that show it, by estimate"),
        "truth": Column("True", "%", "Share of training images that really show it"),
        "threshold": Column("Threshold", "", "Probability from which it is predicted"),
    }
    there = [key for key in optional if any(not math.isnan(getattr(x, key)) for x in order)]
    before = [key for key in there if key != "threshold"]
    columns += [optional[key] for key in before]
    columns += [
        Column("AP" if len(methods) == 1 else f"AP {plain(titles[m])}", "%", "Average precision")
        for m in shown
    ]
    columns += [optional[key] for key in there if key == "threshold"]
    bars = len(order) <= _WITH_BARS
    frequent = {x.class_id for x in frequent_ones(material, lines)}
    rows = []
    for line in order[:_LINES]:
        cells = [Value(_shown(key, getattr(line, key))) for key in before]
        for method in shown:
            ap = line.aps.get(method, math.nan)
            bar = f"{100 * ap:.0f}" if bars and math.isfinite(ap) else None
            cells.append(Value(percent(ap), bar))
        cells += [Value(_shown(key, line.threshold)) for key in there if key == "threshold"]
        rows.append(
            {
                "name": plain(line.name),
                "id": "" if line.class_id == line.name else plain(line.class_id),
                "tags": " ".join(_tags(line, frequent)),
                "cells": cells,
            }
        )
    used = {tag for line in order for tag in _tags(line, frequent)}
    return {
        "lead": _lead(material, order),
        "columns": columns,
        "rows": rows,
        "filters": [(tag, text) for tag, text in _FILTERS.items() if tag in used],
        "note": _note(len(order), methods),
    }


class Column(NamedTuple):
    """A heading."""

    title: str
    unit: str
    help: str


class Value(NamedTuple):
    """A cell; the bar is a percentage."""

    text: str
    bar: str | None = None


_FILTERS = {
    "f": "frequent classes",
    "u": f"under-annotated, {_LACKING:g} times or more",
    "p": "without a known positive",
    "n": "without a known negative",
    "a": "without an average precision",
}


def _tags(line: ClassLine, frequent: set[str]) -> list[str]:
    lacking = line.annotated > 0 and line.prior / line.annotated >= _LACKING
    found = {
        "f": line.class_id in frequent,
        "u": lacking or (line.annotated == 0 and line.prior > 0),
        "p": line.positives == 0,
        "n": line.negatives == 0,
        "a": not line.aps,
    }
    return [tag for tag, fits in found.items() if fits]


def _shown(key: str, value: float) -> str:
    if key in ("positives", "negatives"):
        return count(value)
    if key == "threshold":
        return "never" if value == math.inf else "\u2013" if math.isnan(value) else f"{value:.2f}"
    return share(value)


def _lead(material: Material, lines: list[ClassLine]) -> str:
    by = "truth" if any(math.isfinite(x.truth) for x in lines) else (
        "estimate" if any(math.isfinite(x.prior) for x in lines) else "annotation"
    )  # fmt: skip
    scheme = material.main_scheme
    where = "" if len(material.schemes) < 2 else f" {scheme_title(scheme)}."
    return f"{plural(len(lines), 'class', 'classes')}, by {by} the most frequent first.{where}"


def _note(number: int, methods: list[str]) -> str:
    text = "The same table is in figures/classes.csv"
    if number > _LINES:
        text += f", with all {number:,} classes; the page has the first {_LINES:,}"
    if len(methods) > _METHODS:
        text += f", with the other {plural(len(methods) - _METHODS, 'method')}"
    return text + "."


def _write(path: Path, lines: list[ClassLine], methods: list[str]) -> None:
    columns = ("class_id", "class_name", "positives", "negatives", "annotated", "prior", "truth",
               *(f"ap:{m}" for m in methods), "threshold")  # fmt: skip
    rows = (
        (x.class_id, x.name, x.positives, x.negatives, x.annotated, x.prior, x.truth,
         *(x.aps.get(m, math.nan) for m in methods), x.threshold)
        for x in lines
    )  # fmt: skip
    write_rows(path, columns, rows)


def gallery_view(found: Gallery, cell: Cell) -> dict[str, Any]:
    """The gallery, with what its signs mean."""
    key = []
    if found.top_k:
        key.append(
            (
                "likelihood",
                f"ignored: among the {found.top_k} most likely unknown labels of the image",
            )
        )
    if found.threshold is not None:
        text = f"ignored: a frequent class, prior above {share(found.threshold)} %"
        key.append(("prior", text))
    truth = any(group.present is not None for group in found.groups)
    lead = f"Training images as {cell.title} sees them, chosen to show many classes. "
    lead += (
        "A label is probably missing where it is unknown and the model's probability is above "
        + ("the class's threshold." if found.from_run else "one half.")
    )
    if found.soft:
        lead += " The prior weighs unknown labels here; it ignores none."
    groups = []
    for group in found.groups if found.selective else []:
        part = math.nan if group.present is None else group.present / max(group.labels, 1)
        groups.append(
            {
                "title": group.title,
                "labels": count(group.labels),
                "share": f"{percent(part)} %",
                "bar": "0" if math.isnan(part) else f"{100 * part:.1f}",
            }
        )
    return {
        "lead": plain(lead),
        "key": key,
        "truth": truth,
        "groups": groups,
        "groups_title": f"The unknown labels of {plural(found.images, 'training image')}",
        "cards": found.cards,
    }
