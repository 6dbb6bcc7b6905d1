"""Puts the page together: what each part shows, in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from partlabel import __version__
from partlabel.report.classlines import ClassLine, Labels, class_lines, main_cell, read_labels
from partlabel.report.details import details_of
from partlabel.report.drawing import Studio
from partlabel.report.figures import ChartGroup, draw_all
from partlabel.report.figures_methods import short_titles
from partlabel.report.gallery import make_gallery
from partlabel.report.material import Cell, Material
from partlabel.report.methodtable import Statistics, method_tables, overview
from partlabel.report.narrative import sentences
from partlabel.report.views import class_view, gallery_view, table_lead, tiles_of
from partlabel.report.wording import listed, plain, plural, scheme_title

Say = Callable[[str], None]


def assemble(material: Material, figures: Path, *, gallery: int, say: Say) -> dict[str, Any]:
    """All that the template shows."""
    gaps = material.gaps
    cell = main_cell(material)
    labels: Labels | None = None
    if cell is not None:
        with gaps.noting("The training labels"):
            labels = read_labels(material, cell)
    lines: list[ClassLine] = []
    with gaps.noting("The table of classes"):
        lines = class_lines(material, cell, labels)
    _note_prior(material, cell)
    statistics = Statistics.of(material)
    say("drawing the figures")
    groups = draw_all(material, Studio(figures), lines)
    view = None
    if gallery > 0 and cell is not None:
        say("scoring images for the gallery")
        with gaps.noting("The gallery"):
            view = gallery_view(make_gallery(material, cell, gallery), cell)
    tables = method_tables(material, statistics)
    classes = class_view(material, lines, figures) if lines else None
    facts = None if labels is None else labels.facts
    return {
        "version": __version__,
        "kind": material.kind,
        "title": plain(material.name),
        "overline": "Comparison of methods" if material.kind == "compare" else "Training run",
        "subtitle": plain(_subtitle(material)),
        "navigation": _navigation(material, groups, classes=bool(classes), gallery=bool(view)),
        "tiles": tiles_of(material, statistics, lines, facts),
        "sentences": [plain(text) for text in sentences(material, statistics, lines, facts)],
        "warnings": [
            plain(text)
            for text in [*mixed(material), *([] if facts is None else facts["warnings"])]
        ],
        "gaps": gaps,
        "tables": tables[:1],
        "more_tables": tables[1:],
        "swept_tables": method_tables(material, statistics, swept=True),
        "overview": overview(material, statistics),
        "baseline": short_titles(material).get(material.baseline or "", ""),
        "table_lead": table_lead(material),
        "groups": groups,
        "classes": classes,
        "gallery": view,
        **details_of(material, figures),
    }


def mixed(material: Material) -> list[str]:
    """Warnings where the trainings of a comparison were not made alike."""
    found = []
    for what, values in (
        ("versions of partlabel", [cell.version for cell in material.cells]),
        ("devices", [cell.device for cell in material.cells]),
    ):
        known = sorted({value for value in values if value})
        if len(known) > 1:
            parts = listed([f"{value} ({plural(values.count(value), 'row')})" for value in known])
            found.append(
                f"The trainings were made with different {what}, {parts}: "
                "a part of the differences may come from that."
            )
    return found


def _note_prior(material: Material, cell: Cell | None) -> None:
    """Say why there is no prior, where there is none."""
    if any(c.prior is not None for c in material.cells):
        return
    config = material.config
    wanted = config is not None and (config.needs_prior or config.needs_posterior)
    if material.kind == "run" and config is not None and not wanted:
        why = f"the loss {config.loss.name} does not use one"
    elif cell is not None and not cell.finished:
        why = "the run has not come to it yet"
    else:
        why = "no training here has one"
    material.gaps.add("The estimated prior", why)


def _subtitle(material: Material) -> str:
    parts = []
    if material.kind == "compare":
        schemes = material.schemes
        seeds = len({cell.seed for cell in material.cells})
        parts = [
            plural(len(set(material.titles) - material.swept), "method"),
            *([plural(len(material.sweeps), "setting") + " varied"] if material.sweeps else []),
            scheme_title(schemes[0]) if len(schemes) == 1 else f"{len(schemes)} annotation schemes",
            plural(seeds, "seed"),
        ]
    elif material.config is not None:
        config = material.config
        parts = [
            f"{material.cells[0].title}",
            config.model.backbone,
            f"{config.images.size} px",
            plural(config.train.epochs, "epoch"),
        ]
    started = str(material.environment.get("started", ""))[:10]
    return " · ".join([*parts, started] if started else parts)


def _navigation(
    material: Material, groups: list[ChartGroup], *, classes: bool, gallery: bool
) -> list[tuple[str, str]]:
    table = any(cell.numbers for cell in material.cells)
    return [
        ("summary", "Summary"),
        *([("methods", "Methods" if material.kind == "compare" else "Result")] if table else []),
        *((group.anchor, group.short) for group in groups),
        *([("classes", "Classes")] if classes else []),
        *([("gallery", "Gallery")] if gallery else []),
        ("details", "Details"),
    ]
