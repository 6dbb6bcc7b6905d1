"""The table of methods: mean and spread over seeds, and the difference to the baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

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
    seeds: str = ""
    """How many it is the mean of, where others have more."""


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
    rows: list[Row] = field(default_factory=list)

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
            rows,
        )

    def mean(self, scheme: str, method: str, number: str) -> float:
        """The mean over seeds; NaN where there is none."""
        found = self.spreads.get((scheme, method, number))
        return math.nan if found is None else found.mean

    def gap(self, scheme: str, method: str, other: str, number: str) -> Difference | None:
        """How far one method is above another, over the seeds that both have."""
        some = [r for r in self.rows if r.scheme == scheme and r.method in (method, other)]
        found = (d for d in differences(some, other) if d.number == number)
        return next(found, None)

    def ranked(self, scheme: str, methods: list[str], number: str) -> list[str]:
        """Those that have a number for every seed that any of them has, the best first.

        Means over different seeds are not compared: a seed decides which labels are known.
        """
        seeds: dict[str, set[int]] = {method: set() for method in methods}
        for row in self.rows:
            value = row.numbers.get(number, math.nan)
            if row.scheme == scheme and row.method in seeds and math.isfinite(value):
                seeds[row.method].add(row.seed)
        every = set().union(*seeds.values())
        there = [method for method in methods if every and seeds[method] == every]
        return sorted(there, key=lambda method: -self.mean(scheme, method, number))

    def best(self, scheme: str, methods: list[str], number: str) -> str | None:
        """The first of those, where there are others to compare with."""
        found = self.ranked(scheme, methods, number)
        return found[0] if len(found) > 1 else None

    def most_seeds(self, scheme: str, methods: list[str], number: str) -> int:
        """Of the one with the most."""
        found = (self.spreads.get((scheme, method, number)) for method in methods)
        return max((spread.n for spread in found if spread is not None), default=0)


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
    lines = [
        (material.titles[m], [_number(statistics, (s, m, "map_c"), methods) for s in schemes])
        for m in methods
    ]
    return Overview([scheme_short(plain(scheme)) for scheme in schemes], lines)


def _table(
    material: Material, statistics: Statistics, scheme: str, every: list[str]
) -> MethodTable:
    methods = [m for m in every if any(c.finished or c.numbers for c in material.of(scheme, m))]
    named = [k for c in material.of(scheme) for k in c.numbers if k.startswith("ap:")]
    numbers = [*_NUMBERS, *dict.fromkeys(named)]
    numbers = [n for n in numbers if any((scheme, m, n) in statistics.spreads for m in methods)]
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
                numbers=[_number(statistics, (scheme, method, n), methods) for n in numbers],
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


def _number(statistics: Statistics, key: tuple[str, str, str], methods: list[str]) -> Number:
    """A mean over seeds, beside those of the other methods."""
    found = statistics.spreads.get(key)
    if found is None:
        return Number(DASH)
    scheme, method, number = key
    fewer = found.n < statistics.most_seeds(scheme, methods, number)
    return Number(
        text=percent(found.mean),
        spread=percent(found.sd) if found.n > 1 else "",
        best=statistics.best(scheme, methods, number) == method,
        seeds=f"n = {found.n}" if fewer else "",
    )
