"""The table of methods: mean and spread over seeds, and the difference to the baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass

from partlabel.compare.results import Row
from partlabel.compare.statistics import Difference, Spread, differences, summarise
from partlabel.report.material import Material
from partlabel.report.wording import DASH, percent, plain, points, scheme_short, scheme_title

_NUMBERS = {"map_c": "mAP(C)", "map_o": "mAP(O)", "map_frequent": "Frequent classes"}


@dataclass(frozen=True)
class Number:
    """A cell of the table."""

    text: str
    spread: str = ""
    best: bool = False


@dataclass(frozen=True)
class Line:
    """A method."""

    title: str
    method: str
    baseline: bool
    seeds: int
    numbers: list[Number]
    difference: str
    interval: str
    clear: bool
    """Whether the interval leaves out zero."""


@dataclass(frozen=True)
class MethodTable:
    """The methods under one scheme."""

    scheme: str
    title: str
    columns: list[str]
    lines: list[Line]
    compared: bool
    """Whether there is a difference to show."""


@dataclass(frozen=True)
class Statistics:
    """Numbers over seeds, looked up by scheme, method and number."""

    spreads: dict[tuple[str, str, str], Spread]
    differences: dict[tuple[str, str, str], Difference]

    @classmethod
    def of(cls, material: Material) -> Statistics:
        """Over all cells of a report."""
        rows = [
            Row(
                key="",
                method=cell.method,
                title=cell.title,
                scheme=cell.scheme,
                seed=cell.seed,
                **{name: cell.numbers.get(name, math.nan) for name in _NUMBERS},  # type: ignore[arg-type]
                ap={k[3:]: v for k, v in cell.numbers.items() if k.startswith("ap:")},
            )
            for cell in material.cells
        ]
        found = differences(rows, material.baseline) if material.baseline is not None else []
        return cls(
            {(s.scheme, s.method, s.number): s for s in summarise(rows)},
            {(d.scheme, d.method, d.number): d for d in found},
        )

    def mean(self, scheme: str, method: str, number: str) -> float:
        """The mean over seeds; NaN where there is none."""
        found = self.spreads.get((scheme, method, number))
        return math.nan if found is None else found.mean


@dataclass(frozen=True)
class Overview:
    """mAP(C) of every method under every scheme."""

    schemes: list[str]
    lines: list[tuple[str, list[Number]]]


def method_tables(
    material: Material, statistics: Statistics, *, swept: bool = False
) -> list[MethodTable]:
    """A table for each scheme, the main one first; of the methods, or of those of sweeps."""
    main = material.main_scheme
    order = sorted(material.schemes, key=lambda scheme: scheme != main)
    every = [m for m in material.titles if (m in material.swept) == swept]
    tables = (_table(material, statistics, scheme, every) for scheme in order)
    return [table for table in tables if table.lines]


def overview(material: Material, statistics: Statistics) -> Overview | None:
    """One number of all methods and schemes, where there are several schemes."""
    methods = [m for m in material.titles if m not in material.swept]
    schemes = [s for s in material.schemes if any(material.of(s, m) for m in methods)]
    if len(schemes) < 2:
        return None
    best = {
        s: max(methods, key=lambda m: _or_low(statistics.mean(s, m, "map_c"))) for s in schemes
    } if len(methods) > 1 else {}  # fmt: skip
    lines = [
        (
            material.titles[m],
            [_number(statistics, (s, m, "map_c"), best.get(s) == m) for s in schemes],
        )
        for m in methods
    ]
    return Overview([scheme_short(plain(scheme)) for scheme in schemes], lines)


def _table(
    material: Material, statistics: Statistics, scheme: str, every: list[str]
) -> MethodTable:
    methods = [m for m in every if material.of(scheme, m)]
    named = [k for c in material.of(scheme) for k in c.numbers if k.startswith("ap:")]
    numbers = [*_NUMBERS, *dict.fromkeys(named)]
    numbers = [n for n in numbers if any((scheme, m, n) in statistics.spreads for m in methods)]
    best = {
        n: max(methods, key=lambda m: _or_low(statistics.mean(scheme, m, n))) for n in numbers
    } if len(methods) > 1 else {}  # fmt: skip
    lines = []
    for method in methods:
        change = statistics.differences.get((scheme, method, "map_c"))
        sure = change is not None and math.isfinite(change.low)
        lines.append(
            Line(
                title=material.titles[method],
                method=method,
                baseline=method == material.baseline,
                seeds=len(material.of(scheme, method)),
                numbers=[
                    _number(statistics, (scheme, method, n), best.get(n) == method) for n in numbers
                ],
                difference=points(change.mean) if change is not None else DASH,
                interval=f"{points(change.low)} to {points(change.high)}"
                if change is not None and sure
                else "",
                clear=change is not None and sure and change.low * change.high > 0,
            )
        )
    columns = [_NUMBERS.get(n, f"AP of {n[3:]}") for n in numbers]
    compared = any(line.difference != DASH for line in lines)
    return MethodTable(scheme, scheme_title(plain(scheme)), columns, lines, compared)


def _number(statistics: Statistics, key: tuple[str, str, str], best: bool) -> Number:
    found = statistics.spreads.get(key)
    if found is None:
        return Number(DASH)
    return Number(percent(found.mean), percent(found.sd) if found.n > 1 else "", best)


def _or_low(value: float) -> float:
    return value if math.isfinite(value) else -math.inf
