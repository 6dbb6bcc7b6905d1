"""Figures of classes: how frequent they are by annotation, estimate and truth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partlabel.agreement import spearman_curve, top_overlap
from partlabel.report.classlines import ClassLine
from partlabel.report.drawing import (
    AS_POINTS,
    BLUE,
    GRID,
    HALF,
    MUTED,
    ORANGE,
    RED,
    Chart,
    Studio,
    legend_above,
    looks,
    plain_log,
)
from partlabel.report.figures_methods import short_titles
from partlabel.report.material import Material
from partlabel.report.wording import plain, scheme_short, shortened

TOP = 20
_JOINED = 80  # with more classes, lines between points are a thicket
_MOST_LINES = 6


def draw_frequency(studio: Studio, lines: list[ClassLine]) -> Chart | None:
    """Annotated share against the estimate, and against the truth, per class."""
    shown = [x for x in lines if math.isfinite(x.annotated) and math.isfinite(x.prior)]
    if not shown:
        return None
    known = [x for x in shown if math.isfinite(x.truth)]
    values = [v for x in shown for v in (x.annotated, x.prior, x.truth) if v > 0]
    floor = max(min(values, default=1e-4), 1e-6) * 0.7
    many = len(shown) > AS_POINTS
    size = 2.5 if many else 4.2
    with studio.style("frequency"):
        draft = studio.draft(HALF, 284)
        axes = draft.axes
        xs = np.maximum([x.annotated for x in shown], floor)
        ys = np.maximum([x.prior for x in shown], floor)
        ends = [floor, 1.0]
        axes.plot(100 * np.array(ends), 100 * np.array(ends), color=MUTED, lw=0.9, ls=(0, (2, 2)))
        if known:
            tx = np.maximum([x.annotated for x in known], floor)
            ty = np.maximum([x.truth for x in known], floor)
            if len(shown) <= _JOINED:
                py = np.maximum([x.prior for x in known], floor)
                axes.vlines(100 * tx, 100 * ty, 100 * py, color=GRID, lw=0.8)
            axes.plot(100 * tx, 100 * ty, color=ORANGE, marker="D", ls="none", mfc="none",
                      label="true share", ms=size, mew=1.1, rasterized=many)  # fmt: skip
        axes.plot(100 * xs, 100 * ys, color=BLUE, marker="o", ls="none", ms=size, mew=0, alpha=0.85,
                  label="estimated prior", rasterized=many)  # fmt: skip
        axes.set(xscale="log", yscale="log")
        plain_log(axes.xaxis)
        plain_log(axes.yaxis)
        axes.set(xlabel="Annotated present (% of training images)", ylabel="Share of images (%)")
        legend_above(axes, columns=2)
        rows = [(x.class_id, x.name, x.annotated, x.prior, x.truth) for x in shown]
        columns = ("class_id", "class_name", "annotated", "prior", "truth")
        svg = studio.save(draft, "frequency", columns, rows)
    return Chart(
        name="frequency", title="Annotated and estimated frequency", svg=svg, width=HALF,
        caption="Each class by the share of images where it is annotated present, and the share "
        "where it is estimated to be" + (" and really is" if known else "")
        + ". On the dotted line the annotation would tell the whole.",
        alt="Scatter of annotated share against estimated prior per class, both axes logarithmic",
    )  # fmt: skip


def draw_ranks(studio: Studio, lines: list[ClassLine]) -> Chart | None:
    """The share of each class, from the most frequent down."""
    order = sorted(lines, key=lambda x: (-x.frequency, x.class_id))
    if not any(math.isfinite(x.prior) for x in order) or len(order) < 3:
        return None
    ranks = np.arange(1, len(order) + 1)
    with studio.style("ranks"):
        draft = studio.draft(HALF, 284)
        axes = draft.axes
        series: tuple[tuple[str, str, dict[str, Any]], ...] = (
            ("annotated", "annotated", {"color": MUTED, "marker": "_", "ls": "none", "ms": 6}),
            ("truth", "true share", {"color": ORANGE, "lw": 1.8}),
            ("prior", "estimated prior", {"color": BLUE, "marker": "o", "ls": "none", "ms": 4,
                                          "mew": 0, "alpha": 0.9}),
        )  # fmt: skip
        for attribute, label, style in series:
            values = 100 * np.array([getattr(x, attribute) for x in order])
            values[values <= 0] = np.nan
            if np.isfinite(values).any():
                axes.plot(ranks, values, label=label, rasterized=len(order) > AS_POINTS, **style)
        axes.set_yscale("log")
        plain_log(axes.yaxis)
        if len(order) > 300:
            axes.set_xscale("log")
            plain_log(axes.xaxis)
        axes.set(xlabel="Class, from the most frequent down", ylabel="Share of images (%)")
        legend_above(axes)
        rows = [(n, x.class_id, x.name, x.annotated, x.prior, x.truth)
                for n, x in zip(ranks.tolist(), order, strict=True)]  # fmt: skip
        columns = ("rank", "class_id", "class_name", "annotated", "prior", "truth")
        svg = studio.save(draft, "ranks", columns, rows)
    by = "true" if any(math.isfinite(x.truth) for x in order) else "estimated"
    return Chart(
        name="ranks", title="From frequent to rare", svg=svg, width=HALF,
        caption=f"The same shares, with the classes in their {by} order. Where the annotation is "
        "flat it does not say which classes are frequent.",
        alt="Share of images per class, from the most frequent class down",
    )  # fmt: skip


def draw_spearman(studio: Studio, material: Material, lines: list[ClassLine]) -> Chart | None:
    """Spearman's correlation of each prior with the truth, over the most frequent n classes."""
    ids = [x.class_id for x in lines if math.isfinite(x.truth)]
    if len(ids) < 5:
        return None
    truth = [x.truth for x in lines if math.isfinite(x.truth)]
    found = _priors(material, ids)
    annotated = [x.annotated for x in lines if math.isfinite(x.truth)]
    if not found:
        return None
    rows: list[tuple[Any, ...]] = []
    with studio.style("spearman"):
        draft = studio.draft(HALF, 344)
        for (label, seeds), look in zip(found.items(), looks(found).values(), strict=True):
            curves = [spearman_curve(truth, values) for values in seeds]
            means = {n: float(np.mean([curve[n] for curve in curves])) for n in curves[0]}
            rows += [(label, n, value) for n, value in means.items()]
            style = {"color": BLUE} if len(found) == 1 else {"color": look.colour, "ls": look.line}
            draft.axes.plot(list(means), list(means.values()), label=shortened(label, 34), **style)
        if all(map(math.isfinite, annotated)):
            curve = spearman_curve(truth, annotated)
            rows += [("annotated share", n, value) for n, value in curve.items()]
            draft.axes.plot(list(curve), list(curve.values()), color=MUTED, ls=(0, (2, 2)),
                            label="annotated share")  # fmt: skip
        low = min((row[2] for row in rows if math.isfinite(row[2])), default=0)
        draft.axes.set(ylim=(min(0, low) - 0.03, 1.03))
        draft.axes.set(xlabel="n, the most frequent classes", ylabel="Spearman's rank correlation")
        legend_above(draft.axes, columns=2)
        svg = studio.save(draft, "spearman", ("prior", "n", "spearman"), rows)
    return Chart(
        name="spearman", title="Does the prior rank classes as the truth does?", svg=svg,
        width=HALF, alt="Spearman correlation of prior and truth over the n most frequent classes",
        caption="Rank correlation of estimate and truth over the n classes that are really the "
        "most frequent. 1 is the same order.",
    )  # fmt: skip


def _priors(material: Material, ids: list[str]) -> dict[str, list[list[float]]]:
    """The priors that differ, by what they are called; a list over seeds each."""
    found: dict[str, list[list[float]]] = {}
    several = len({c.scheme for c in material.cells if c.prior is not None}) > 1
    for scheme in material.schemes:
        seen: list[list[list[float]]] = []
        for method, title in short_titles(material).items():
            if method in material.swept:
                continue
            values = []
            for cell in material.of(scheme, method):
                known = {} if cell.prior is None else cell.prior.classes
                if all(i in known for i in ids):
                    values.append([known[i].prior for i in ids])
            if values and values not in seen and len(found) < _MOST_LINES:
                label = scheme_short(plain(scheme)) if several else "estimated prior"
                label = f"{label}, {title}" if label in found else label
                found[label] = values
                seen.append(values)
    return found


def draw_top(studio: Studio, lines: list[ClassLine]) -> Chart | None:
    """The classes with the largest estimate, and what is true of them."""
    order = sorted(
        (x for x in lines if math.isfinite(x.prior)), key=lambda x: (-x.prior, x.class_id)
    )[:TOP]
    if not order:
        return None
    has_truth = all(math.isfinite(x.truth) for x in lines)
    really = {
        x.class_id for x in sorted(lines, key=lambda x: (-x.truth, x.class_id))[: len(order)]
    } if has_truth else set()  # fmt: skip
    with studio.style("top-classes"):
        draft = studio.draft(HALF, 64 + 14 * len(order))
        axes, places = draft.axes, np.arange(len(order))
        priors = 100 * np.array([x.prior for x in order])
        axes.plot(priors, places, color=BLUE, marker="o", ls="none", label="estimated prior", ms=5,
                  zorder=3)  # fmt: skip
        if has_truth:
            truths = 100 * np.array([x.truth for x in order])
            axes.hlines(places, np.minimum(priors, truths), np.maximum(priors, truths), color=MUTED,
                        lw=1)  # fmt: skip
            axes.plot(truths, places, color=ORANGE, marker="D", ls="none", mfc="none", mew=1.3,
                      label="true share", ms=5, zorder=3)  # fmt: skip
        if all(math.isfinite(x.annotated) for x in order):
            axes.plot([100 * x.annotated for x in order], places, color=MUTED, marker="|",
                      ls="none", label="annotated", ms=7, mew=1.2)  # fmt: skip
        names = [shortened(x.name, 22) for x in order]
        axes.set_yticks(places, names)
        for label, line in zip(axes.get_yticklabels(), order, strict=True):
            if has_truth and line.class_id not in really:
                label.set_color(RED)
                label.set_fontstyle("italic")
        axes.set(xlabel="Share of images (%)", ylabel="Class")
        axes.set(ylim=(len(order) - 0.4, -0.6), xlim=(0, None))
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        legend_above(axes)
        rows = [(n + 1, x.class_id, x.name, x.prior, x.truth, x.annotated,
                 int(x.class_id in really) if has_truth else "")
                for n, x in enumerate(order)]  # fmt: skip
        columns = ("rank", "class_id", "class_name", "prior", "truth", "annotated", "really_top")
        svg = studio.save(draft, "top-classes", columns, rows)
    caption = f"The {len(order)} classes with the largest estimated prior."
    if has_truth:
        same = top_overlap([x.truth for x in lines], [x.prior for x in lines], n=len(order))
        caption += f" {same} of them are really among the {len(order)} most frequent"
        caption += "." if same == len(order) else "; the others are in italics."
    return Chart(
        name="top-classes", title="The most frequent classes by estimate", svg=svg, width=HALF,
        caption=caption, alt="Estimated, true and annotated share of the most frequent classes",
    )  # fmt: skip
