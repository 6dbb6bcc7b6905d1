"""Figures of average precision per class: frequent classes, and differences of methods."""

from __future__ import annotations

import math

import numpy as np

from partlabel.report.classlines import ClassLine, by_frequency, frequent_ones
from partlabel.report.drawing import AS_POINTS, GROUND, HALF, INK, WIDE, Chart, Studio, legend_above
from partlabel.report.figures_methods import MOST, method_looks, short_titles
from partlabel.report.material import Material
from partlabel.report.wording import DASH, listed, plain, plural, shortened

_ROWS = 14
_BANDS = 5


def draw_frequent(studio: Studio, material: Material, lines: list[ClassLine]) -> Chart | None:
    """AP of each method on the frequent classes."""
    order = frequent_ones(material, [x for x in lines if x.aps])[:_ROWS]
    if not order:
        return None
    methods = list(method_looks(material).items())[:MOST]
    with studio.style("frequent-classes"):
        draft = studio.draft(HALF, max(264, 70 + 18 * len(order)))
        axes, places = draft.axes, np.arange(len(order))
        for number, (method, look) in enumerate(methods):
            values = [100 * x.aps.get(method, math.nan) for x in order]
            if np.isfinite(values).any():
                title = short_titles(material)[method]
                # A little apart, so that equal ones do not hide each other.
                shifted = places + (number - (len(methods) - 1) / 2) * 0.14
                axes.plot(values, shifted, label=title, ms=6, mew=0.6, mec=GROUND, **look.dots)
        spans = [[100 * x.aps[m] for m, _ in methods if m in x.aps] for x in order]
        for place, span in zip(places, spans, strict=True):
            if span:
                axes.hlines(place, min(span), max(span), color=INK, lw=0.5, alpha=0.4, zorder=1)
        axes.set_yticks(places, [shortened(x.name, 22) for x in order])
        axes.set(xlabel="AP (%)", ylabel="Class", ylim=(len(order) - 0.4, -0.6))
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        legend_above(axes)
        rows = [(x.class_id, x.name, x.frequency, *(x.aps.get(m, math.nan) for m, _ in methods))
                for x in order]  # fmt: skip
        columns = ("class_id", "class_name", "frequency", *(f"ap:{m}" for m, _ in methods))
        svg = studio.save(draft, "frequent-classes", columns, rows)
    return Chart(
        name="frequent-classes", title="Frequent classes", svg=svg, width=HALF,
        caption=f"Average precision on the {plural(len(order), 'most frequent class', 'most frequent classes')}, "  # noqa: E501
        "where unknown labels are present most often.",
        alt="Average precision of each method on the most frequent classes",
    )  # fmt: skip


def subject_of(material: Material, methods: list[str]) -> str | None:
    """The method that others are compared with: CSL, or the last with a prior."""
    if "csl" in methods:
        return "csl"
    with_prior = [m for m in methods if any(c.prior for c in material.of(material.main_scheme, m))]
    return with_prior[-1] if with_prior else None


def draw_differences(studio: Studio, material: Material, lines: list[ClassLine]) -> Chart | None:
    """AP of one method minus that of the primary modes, from frequent to rare."""
    looks_of = method_looks(material)
    there = [m for m in looks_of if any(m in x.aps for x in lines)]
    subject = subject_of(material, there)
    others = [m for m in ("negative", "ignore", "stage1") if m in there and m != subject]
    if subject is None or not others:
        return None
    order = [x for x in by_frequency(lines) if subject in x.aps]
    if len(order) < 3:
        return None
    title = short_titles(material)[subject]
    against = listed([short_titles(material)[method] for method in others])
    ranks = np.arange(1, len(order) + 1)
    with studio.style("class-differences"):
        draft = studio.draft(WIDE, 270)
        axes = draft.axes
        axes.axhline(0, color=INK, lw=0.9)
        columns: dict[str, list[float]] = {}
        for place, method in enumerate(others):
            values = [x.aps[subject] - x.aps.get(method, math.nan) for x in order]
            columns[f"minus_{method}"] = values
            shift = (place - (len(others) - 1) / 2) * 0.28 if len(order) <= 120 else 0.0
            label = f"{short_titles(material)[subject]} minus {short_titles(material)[method]}"
            look, height = looks_of[method], 100 * np.array(values)
            if len(order) <= 120:
                axes.vlines(ranks + shift, 0, height, color=look.colour, lw=1.1, alpha=0.75)
            axes.plot(ranks + shift, height, label=label, ms=4.4 if len(order) <= 120 else 2.5,
                      mew=0, rasterized=len(order) > AS_POINTS, **look.dots)  # fmt: skip
        axes.set(xlabel="Class, from the most frequent down", ylabel="Difference of AP (points)")
        if len(order) <= 60:
            axes.set_xticks(ranks, [shortened(x.name, 16) for x in order], rotation=55, ha="right",
                            rotation_mode="anchor")  # fmt: skip
            axes.tick_params(axis="x", length=2, labelsize=8)
        axes.set_xlim(0.3, len(order) + 0.7)
        axes.grid(visible=False, axis="x")
        legend_above(axes)
        names = ("rank", "class_id", "class_name", "frequency", *columns)
        rows = zip(ranks.tolist(), [x.class_id for x in order], [x.name for x in order],
                   [x.frequency for x in order], *columns.values(), strict=True)  # fmt: skip
        svg = studio.save(draft, "class-differences", names, rows)
    return Chart(
        name="class-differences", title="What changes for which class", svg=svg, width=WIDE,
        caption=f"Average precision of {plain(title)} minus that of {against}, per class, from "
        "the most frequent class on the left to the rarest. Above zero it does better.",
        alt="Difference of average precision per class, ordered by frequency",
    )  # fmt: skip


def draw_bands(studio: Studio, material: Material, lines: list[ClassLine]) -> Chart | None:
    """The mean AP of each method over fifths of the classes, from frequent to rare."""
    order = [x for x in by_frequency(lines) if x.aps]
    methods = list(method_looks(material).items())[:MOST]
    if len(order) < 2 * _BANDS:
        return None
    bands = [
        order[i * len(order) // _BANDS : (i + 1) * len(order) // _BANDS] for i in range(_BANDS)
    ]
    names = [f"{100 * b[-1].frequency:.2g}{DASH}{100 * b[0].frequency:.2g}" for b in bands]
    rows: list[tuple[str, str, float]] = []
    with studio.style("frequency-bands"):
        draft = studio.draft(HALF, 264)
        for method, look in methods:
            means = []
            for name, band in zip(names, bands, strict=True):
                values = [x.aps[method] for x in band if method in x.aps]
                means.append(sum(values) / len(values) if values else math.nan)
                rows.append((method, name, means[-1]))
            draft.axes.plot(range(_BANDS), [100 * mean for mean in means], color=look.colour,
                            ls=look.line, marker=look.marker, label=short_titles(material)[method],
                            ms=5)  # fmt: skip
        draft.axes.set_xticks(range(_BANDS), names)
        draft.axes.set(xlabel="Share of images that show the class (%)", ylabel="Mean AP (%)")
        legend_above(draft.axes)
        svg = studio.save(draft, "frequency-bands", ("method", "share_percent", "mean_ap"), rows)
    return Chart(
        name="frequency-bands", title="From frequent to rare classes", svg=svg, width=HALF,
        caption=f"Mean AP over fifths of the classes, the most frequent {len(bands[0]):,} on the "
        "left.",
        alt="Mean average precision of each method over five groups of classes by frequency",
    )  # fmt: skip
