"""Figures of methods: how they train, over annotation schemes, and over a setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from partlabel.compare.cells import safe_name
from partlabel.report.drawing import HALF, Chart, Look, Studio, legend_above, looks, plain_log
from partlabel.report.material import Cell, Material, Sweep
from partlabel.report.wording import plain, scheme_short, shortened

MOST = 7
"""Methods in one figure; more lines cannot be told apart."""


class Mean(NamedTuple):
    """Of some seeds."""

    value: float
    spread: float
    """Standard deviation; 0 for one."""
    number: int


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and standard deviation (n - 1)."""
    good = [value for value in values if math.isfinite(value)]
    if not good:
        return Mean(math.nan, math.nan, 0)
    mean = sum(good) / len(good)
    if len(good) == 1:
        return Mean(mean, 0.0, 1)
    return Mean(mean, math.sqrt(sum((v - mean) ** 2 for v in good) / (len(good) - 1)), len(good))


def method_looks(material: Material) -> dict[str, Look]:
    """A look for each method, the same in all figures."""
    titles = material.titles
    return looks([m for m in titles if m not in material.swept] or list(titles))


def short_titles(material: Material) -> dict[str, str]:
    """Titles for where room is short: without what is in brackets, as long as they differ.

    Example: "CSL (likelihood and prior)" becomes "CSL".
    """
    titles = material.titles
    short = {method: title.partition(" (")[0].strip() or title for method, title in titles.items()}
    twice = {title for title in short.values() if list(short.values()).count(title) > 1}
    return {m: shortened(titles[m] if short[m] in twice else short[m], 22) for m in titles}


def draw_curves(studio: Studio, material: Material) -> list[Chart]:
    """Validation mAP over epochs, and the training loss."""
    found = {
        method: material.of(material.main_scheme, method)
        for method in list(method_looks(material))[:MOST]
    }
    found = {method: [c for c in cells if c.log] for method, cells in found.items()}
    charts = []
    if any(c.logged("eval") for cells in found.values() for c in cells):
        charts.append(_map_curves(studio, material, found))
    if any(c.logged("train") for cells in found.values() for c in cells):
        charts.append(_loss_curves(studio, material, found))
    return charts


def _map_curves(studio: Studio, material: Material, found: dict[str, list[Cell]]) -> Chart:
    rows: list[tuple[Any, ...]] = []
    with studio.style("curves-map"):
        draft = studio.draft(HALF)
        for method, look in method_looks(material).items():
            by_epoch: dict[int, list[float]] = {}
            for cell in found.get(method, []):
                for line in cell.logged("eval"):
                    value = line.get("map_c")
                    if isinstance(value, int | float) and isinstance(line.get("epoch"), int):
                        by_epoch.setdefault(line["epoch"] + 1, []).append(100 * value)
                        rows.append((method, cell.seed, line["epoch"] + 1, float(value)))
            if by_epoch:
                epochs = sorted(by_epoch)
                means = [mean_of(by_epoch[epoch]) for epoch in epochs]
                _line(draft.axes, epochs, means, look, _title(material, method))
        draft.axes.set(xlabel="Epoch", ylabel="Validation mAP(C) (%)")
        _whole_numbers(draft.axes)
        legend_above(draft.axes)
        columns = ("method", "seed", "epoch", "map_c")
        svg = studio.save(draft, "curves-map", columns, rows)
    seeds = max(len(cells) for cells in found.values())
    band = f" Mean of {seeds} seeds; the band is one standard deviation." if seeds > 1 else ""
    return Chart(
        name="curves-map", title="Validation over epochs", svg=svg, width=HALF,
        caption=f"mAP(C) of the moving average after each epoch.{band}",
        alt="Validation mAP over epochs, one line per method",
    )  # fmt: skip


def _loss_curves(studio: Studio, material: Material, found: dict[str, list[Cell]]) -> Chart:
    rows: list[tuple[Any, ...]] = []
    positive = True
    with studio.style("curves-loss"):
        draft = studio.draft(HALF)
        for method, look in method_looks(material).items():
            cells = [c for c in found.get(method, []) if c.logged("train")][:1]
            for cell in cells:
                lines = [line for line in cell.logged("train") if _is_number(line.get("loss"))]
                steps = [line["step"] for line in lines]
                losses = [line["loss"] for line in lines]
                positive = positive and all(loss > 0 for loss in losses)
                rows += [(method, cell.seed, s, v) for s, v in zip(steps, losses, strict=True)]
                draft.axes.plot(
                    steps, losses, color=look.colour, ls=look.line, label=_title(material, method),
                    marker=look.marker if len(lines) == 1 else None,  # one point has no line
                )  # fmt: skip
        draft.axes.set(xlabel="Training step", ylabel="Training loss (per image)")
        if rows and positive:
            draft.axes.set_yscale("log")
            plain_log(draft.axes.yaxis, minor=True)
        legend_above(draft.axes)
        svg = studio.save(draft, "curves-loss", ("method", "seed", "step", "loss"), rows)
    return Chart(
        name="curves-loss", title="Training loss", svg=svg, width=HALF,
        caption="Losses of different methods count different labels, so only their course can be "
        "compared, not their height.",
        alt="Training loss over steps, one line per method",
    )  # fmt: skip


def draw_schemes(studio: Studio, material: Material) -> list[Chart]:
    """MAP of the methods over N of fixed-per-class and p of random-per-annotation labels."""
    charts = []
    kinds = {
        "fpc": ("Fixed per class", "N, positives and negatives kept of each class", True),
        "rpa": ("Random per annotation", "p, share of the labels dropped", False),
    }
    for kind, (title, label, log) in kinds.items():
        found = sorted(
            (float(scheme.partition(":")[2]), scheme)
            for scheme in material.schemes
            if scheme.startswith(f"{kind}:") and _is_number(scheme.partition(":")[2])
        )
        if len(found) > 1:
            charts.append(_scheme_chart(studio, material, (kind, title, label, log), found))
    return charts


def _scheme_chart(
    studio: Studio,
    material: Material,
    about: tuple[str, str, str, bool],
    found: list[tuple[float, str]],
) -> Chart:
    kind, title, label, log = about
    name, rows = f"schemes-{kind}", []
    with studio.style(name):
        draft = studio.draft(HALF)
        for method, look in list(method_looks(material).items())[:MOST]:
            points = [(x, list(material.values(s, method, "map_c").values())) for x, s in found]
            points = [(x, values) for x, values in points if values]
            means = [mean_of([100 * value for value in values]) for _, values in points]
            rows += [(method, x, m.value / 100, m.spread / 100, m.number)
                     for (x, _), m in zip(points, means, strict=True)]  # fmt: skip
            if points:
                _bars(draft.axes, [x for x, _ in points], means, look, _title(material, method))
        if log:
            draft.axes.set_xscale("log")
        draft.axes.set_xticks([x for x, _ in found], [f"{x:g}" for x, _ in found])
        draft.axes.minorticks_off()
        draft.axes.set(xlabel=label, ylabel="Validation mAP(C) (%)")
        legend_above(draft.axes)
        svg = studio.save(draft, name, ("method", kind, "map_c", "sd", "seeds"), rows)
    return Chart(
        name=name, title=title, svg=svg, width=HALF,
        caption="Mean over seeds; bars are one standard deviation.",
        alt=f"mAP of each method over {label}",
    )  # fmt: skip


def draw_sweep(studio: Studio, material: Material, sweep: Sweep) -> Chart | None:
    """MAP over the values of a setting, a line per scheme."""
    numeric = all(_is_number(v) and not isinstance(v, bool) for v in sweep.values)
    places = [float(v) if numeric else i for i, v in enumerate(sweep.values)]
    name, rows = f"sweep-{safe_name(sweep.name)}", []
    schemes = material.schemes[:MOST]
    with studio.style(name):
        draft = studio.draft(HALF)
        for scheme, look in looks(schemes).items():
            means = [
                mean_of([100 * v for v in material.values(scheme, m, "map_c").values()])
                for m in sweep.methods
            ]
            there = [i for i, mean in enumerate(means) if mean.number]
            rows += [(scheme, sweep.values[i], means[i].value / 100, means[i].spread / 100,
                      means[i].number) for i in there]  # fmt: skip
            if there:
                xs, ys = [places[i] for i in there], [means[i] for i in there]
                _bars(draft.axes, xs, ys, look, scheme_short(plain(scheme)))
        if not rows:
            return None
        draft.axes.set_xticks(places, [shortened(v, 12) for v in sweep.values])
        draft.axes.set(xlabel=shortened(sweep.title, 48), ylabel="Validation mAP(C) (%)")
        legend_above(draft.axes)
        svg = studio.save(draft, name, ("scheme", "value", "map_c", "sd", "seeds"), rows)
    return Chart(
        name=name, title=sweep.title, svg=svg, width=HALF,
        caption="Mean over seeds; bars are one standard deviation.",
        alt=f"mAP over {sweep.title}",
    )  # fmt: skip


def _line(axes: Any, xs: Sequence[float], means: list[Mean], look: Look, label: str) -> None:
    values = [mean.value for mean in means]
    axes.plot(
        xs, values, color=look.colour, ls=look.line, marker=look.marker, label=label,
        markevery=max(len(xs) // 10, 1), markersize=4,
    )  # fmt: skip
    if any(mean.number > 1 for mean in means):
        low = [mean.value - mean.spread for mean in means]
        high = [mean.value + mean.spread for mean in means]
        axes.fill_between(xs, low, high, color=look.colour, alpha=0.16, lw=0)


def _bars(axes: Any, xs: Sequence[float], means: list[Mean], look: Look, label: str) -> None:
    axes.errorbar(
        xs, [mean.value for mean in means], [mean.spread for mean in means], color=look.colour,
        ls=look.line, marker=look.marker, label=label, capsize=2.5, elinewidth=0.9, markersize=5,
    )  # fmt: skip


def _title(material: Material, method: str) -> str:
    return short_titles(material)[method]


def _whole_numbers(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False
