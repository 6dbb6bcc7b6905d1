"""The summary in words: a few sentences that follow from the numbers."""

from __future__ import annotations

import math
from typing import Any

from partlabel.agreement import spearman, top_overlap
from partlabel.report.classlines import ClassLine, frequent_ones, main_cell
from partlabel.report.figures_methods import short_titles
from partlabel.report.material import Cell, Material
from partlabel.report.methodtable import Statistics
from partlabel.report.wording import (
    NARROW,
    count,
    listed,
    percent,
    plural,
    points,
    scheme_phrase,
    scheme_title,
    share,
)


def sentences(
    material: Material,
    statistics: Statistics,
    lines: list[ClassLine],
    facts: dict[str, Any] | None,
) -> list[str]:
    """Two to five sentences."""
    parts = [
        *(_of_run(material) if material.kind == "run" else _of_methods(material, statistics)),
        *_frequent(material, statistics, lines),
        *_labels(facts, lines, _one_of_several(material, labels=True)),
        *_prior(lines, _one_of_several(material)),
    ]
    begun = [c for c in material.cells if not c.finished and material.kind == "compare"]
    if begun:
        names = [f"{c.title} ({scheme_title(c.scheme)}, seed {c.seed})" for c in begun[:4]]
        names += [f"{len(begun) - 4} more"] if len(begun) > 4 else []
        parts.insert(0, f"No training is finished yet; begun: {listed(names)}.")
    return parts or ["There are no results yet; what is there is shown below."]


def _one_of_several(material: Material, *, labels: bool = False) -> str:
    """Which seed a number is of that is not a mean over all of them."""
    scheme, cell = material.main_scheme, main_cell(material)
    same = labels and scheme in ("given", "complete")  # the same labels for every seed
    if cell is None or same or len({c.seed for c in material.of(scheme)}) < 2:
        return ""
    return f" (seed {cell.seed})"


def _of_run(material: Material) -> list[str]:
    cell = material.cells[0]
    value = cell.numbers.get("map_c", math.nan)
    if not math.isfinite(value):
        if cell.finished:
            return ["The training is finished; there was nothing to evaluate it on."]
        return ["The training has begun, and nothing has been evaluated yet."]
    classes = cell.numbers.get("n_valid", math.nan)
    over = f", over {plural(classes, 'class', 'classes')}" if math.isfinite(classes) else ""
    text = (
        f"The model reaches a validation mAP(C) of {percent(value)}{NARROW}%{_after(cell)}{over}."
    )
    if not cell.finished:
        text = text.replace("reaches", "has come to")
        text += " It is still in training."
    first = [c for c in material.cells[1:] if math.isfinite(c.numbers.get("map_c", math.nan))]
    if first and cell.finished:
        other = first[0].numbers["map_c"]
        more = points(value - other)
        which = _first_stage(material)
        after = _after(first[0]) if _after(first[0]) != _after(cell) else ""
        text += (
            f" The first stage, which {which}, had {percent(other)}{NARROW}%{after}:"
            f" a difference of {more} points."
        )
    return [text]


def _after(cell: Cell) -> str:
    """After how many epochs it was evaluated the last time."""
    found = [line.get("epoch") for line in cell.logged("eval")]
    epochs = [epoch + 1 for epoch in found if isinstance(epoch, int)]
    return f" after {plural(max(epochs), 'epoch')}" if epochs else ""


def _first_stage(material: Material) -> str:
    """What the first stage does."""
    stage = None if material.config is None else material.config.stage1()
    if stage is None or not stage.train.hold_out:
        return "ignores unknown labels"
    less = "was not shown some annotations"
    return less if stage.loss.name != "ce" else f"ignores unknown labels and {less}"


def _of_methods(material: Material, statistics: Statistics) -> list[str]:
    scheme = material.main_scheme
    ranked, fewer = _ranked(material, statistics, scheme)
    if not ranked:
        text = "No method has all the seeds yet, so none is called the best."
        return [text] if fewer else []
    best, title = ranked[0], short_titles(material)
    value = statistics.mean(scheme, best, "map_c")
    seeds = len(material.of(scheme, best))
    over = f", the mean of {seeds} seeds" if seeds > 1 else ""
    with_many = len(material.schemes) > 1
    where = scheme_phrase(scheme)
    lacking = ""
    if fewer:
        verbs = ("has", "is") if len(fewer) == 1 else ("have", "are")
        names = listed([title[method] for method in fewer])
        lacking = f" {names} {verbs[0]} fewer seeds and {verbs[1]} not ranked."
    if len(ranked) == 1:
        return [
            f"{where}, {title[best]} has a validation mAP(C) of {percent(value)}{NARROW}%{over}."
            + lacking
        ]
    text = (
        f"{where}, {title[best]} has the highest validation mAP(C): {percent(value)}{NARROW}%{over}"
    )
    text += f", {_against(material, statistics, scheme, best, ranked)}.{lacking}"
    return [text, *(_over_schemes(material, statistics) if with_many else [])]


def _against(
    material: Material, statistics: Statistics, scheme: str, best: str, ranked: list[str]
) -> str:
    """How far the best is above the baseline and those people ask about."""
    asked = ("ignore", "negative", "csl", material.baseline, ranked[1])
    others = [m for m in ranked[1:] if m in asked]
    others.sort(key=lambda m: m != material.baseline)
    parts: list[str] = []
    for method in others[:3]:
        gap = statistics.gap(scheme, best, method, "map_c")
        if gap is None:
            continue
        unit = "" if parts else " points"
        parts.append(f"{percent(gap.mean)}{unit} above {short_titles(material)[method]}")
        if math.isfinite(gap.low):
            doubt = ", which includes zero" if gap.low <= 0 <= gap.high else ""
            parts[-1] += f" (95{NARROW}% interval {points(gap.low)} to {points(gap.high)}{doubt})"
    return listed(parts)


def _over_schemes(material: Material, statistics: Statistics) -> list[str]:
    best: dict[str, list[str]] = {}
    for scheme in material.schemes:
        ranked, _ = _ranked(material, statistics, scheme)
        if len(ranked) > 1:
            best.setdefault(ranked[0], []).append(scheme)
    if not best:
        return []
    total = sum(map(len, best.values()))
    if len(best) == 1:
        return [f"The same method is best under all {total} annotation schemes."]
    titles = short_titles(material)
    parts = [
        f"{titles[method]} under {listed(some) if len(some) < 4 else len(some)}"
        for method, some in best.items()
    ]
    return [f"Which method is best depends on how labels were chosen: {listed(parts)}."]


def _ranked(material: Material, statistics: Statistics, scheme: str) -> tuple[list[str], list[str]]:
    """The methods with all seeds, the best first, and those with fewer.

    Variants of a sweep are only ranked among themselves.
    """
    there = [m for m in material.titles if (scheme, m, "map_c") in statistics.spreads]
    plain = [m for m in there if m not in material.swept]
    ranked = statistics.ranked(scheme, plain or there, "map_c")
    return ranked, [m for m in plain or there if m not in ranked]


def _frequent(material: Material, statistics: Statistics, lines: list[ClassLine]) -> list[str]:
    scheme = material.main_scheme
    ranked, _ = _ranked(material, statistics, scheme)
    known = [m for m in ranked if (scheme, m, "map_frequent") in statistics.spreads]
    if len(known) < 2:
        return []
    names = {"csl", "ignore", "negative", known[0]}
    shown = [m for m in known if m in names][:3]
    means = {m: percent(statistics.mean(scheme, m, "map_frequent")) for m in shown}
    parts = [f"{means[m]}{NARROW}% for {short_titles(material)[m]}" for m in shown]
    number = len(frequent_ones(material, lines))
    of = f"the {count(number)} most frequent classes" if number > 1 else "the frequent classes"
    return [f"On {of} the mean AP is {listed(parts)}."]


def _labels(facts: dict[str, Any] | None, lines: list[ClassLine], seed: str) -> list[str]:
    if facts is None:
        return [f"There are {plural(len(lines), 'class', 'classes')}."] if lines else []
    known = f"{share(facts['known_share'])}{NARROW}%"
    return [
        f"The training labels cover {plural(facts['images'], 'image')} and "
        f"{plural(facts['classes'], 'class', 'classes')}; {known} of all labels are known, "
        f"{facts['labels_per_image']:.1f} per image{seed}."
    ]


def _prior(lines: list[ClassLine], seed: str) -> list[str]:
    both = [x for x in lines if math.isfinite(x.prior) and math.isfinite(x.truth)]
    if len(both) < 5:
        return []
    truth, prior = [x.truth for x in both], [x.prior for x in both]
    rank = spearman(truth, prior)
    if not math.isfinite(rank):
        return []
    n = min(10, max(len(both) // 3, 1))
    same = top_overlap(truth, prior, n=n)
    return [
        f"The estimated prior orders the classes as the truth does with a rank correlation of "
        f"{rank:.2f}; {same} of the {n} most frequent classes are found{seed}."
    ]
