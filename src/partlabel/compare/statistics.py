"""Numbers over seeds: mean and spread, and paired differences to a baseline with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from partlabel.classfile import write_rows
from partlabel.compare.results import Row

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """One number of one method over its seeds."""

    scheme: str
    method: str
    title: str
    number: str
    """map_c, map_o, map_frequent, ap:NAME, prior_spearman or prior_sum."""
    n: int
    """Seeds that have it."""
    mean: float
    sd: float
    """With n - 1; NaN for one seed."""


@dataclass(frozen=True)
class Difference:
    """How far one number of a method is from the baseline's, seed by seed."""

    scheme: str
    method: str
    title: str
    baseline: str
    number: str
    n: int
    """Seeds that both have."""
    mean: float
    low: float
    """Of the interval by Student's t; NaN for one seed."""
    high: float


def summarise(rows: Iterable[Row]) -> list[Spread]:
    """Mean and standard deviation of each number, for each scheme and method, in their order."""
    found = []
    for (scheme, method), some in _grouped(rows).items():
        for number in _numbers(some.values()):
            values = [row.numbers[number] for row in some.values() if number in row.numbers]
            values = [value for value in values if math.isfinite(value)]
            if values:
                title = next(iter(some.values())).title
                mean, sd = _mean(values), _deviation(values)
                found.append(Spread(scheme, method, title, number, len(values), mean, sd))
    return found


def differences(rows: Iterable[Row], baseline: str) -> list[Difference]:
    """Differences to the baseline, paired by seed, with 95 % intervals."""
    grouped, found = _grouped(rows), []
    for (scheme, method), some in grouped.items():
        base = grouped.get((scheme, baseline), {})
        if method == baseline or not base:
            continue
        title = next(iter(some.values())).title
        for number in _numbers(some.values()):
            pairs = [
                (row.numbers.get(number, math.nan), base[seed].numbers.get(number, math.nan))
                for seed, row in some.items()
                if seed in base
            ]
            values = [one - other for one, other in pairs if math.isfinite(one - other)]
            if values:
                mean, half = _mean(values), _half_width(values)
                found.append(
                    Difference(
                        scheme, method, title, baseline, number,
                        len(values), mean, mean - half, mean + half,
                    )
                )  # fmt: skip
    return found


def student_t(probability: float, freedom: int) -> float:
    """The value that Student's t stays within, plus or minus, with a probability.

    The distribution for a whole number of degrees of freedom is a finite sum in the angle whose
    tangent is t / sqrt(freedom) (Abramowitz and Stegun 26.7.3 and 26.7.4); it is inverted by
    halving.

    Example:
        >>> round(student_t(0.95, 2), 4), round(student_t(0.95, 30), 4)
        (4.3027, 2.0423)
    """
    if freedom < 1 or not 0 <= probability < 1:
        raise ValueError(f"no such quantile: probability {probability}, freedom {freedom}")
    low, high = 0.0, math.pi / 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < probability else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """The probability of |t| below sqrt(freedom) * tan(angle)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for step in range(2 + odd, freedom, 2):
        term *= cosine * cosine * (step - 1) / step
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def write_summary(path: Path, found: Sequence[Spread]) -> None:
    """Write as csv: one row for each scheme, method and number."""
    columns = ("scheme", "method", "title", "number", "n", "mean", "sd")
    write_rows(path, columns, ([getattr(each, name) for name in columns] for each in found))


def write_differences(path: Path, found: Sequence[Difference]) -> None:
    """Write as csv: one row for each scheme, method and number."""
    columns = ("scheme", "method", "title", "baseline", "number", "n", "mean", "low", "high")
    write_rows(path, columns, ([getattr(each, name) for name in columns] for each in found))


def _grouped(rows: Iterable[Row]) -> dict[tuple[str, str], dict[int, Row]]:
    """Rows by scheme and method, and by seed within; of a seed that is there twice the last."""
    found: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        found.setdefault((row.scheme, row.method), {})[row.seed] = row
    return found


def _numbers(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(number for row in rows for number in row.numbers))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    if len(values) < 2:
        return math.nan
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _half_width(values: Sequence[float]) -> float:
    if len(values) < 2:
        return math.nan
    quantile = student_t(CONFIDENCE, len(values) - 1)
    return quantile * _deviation(values) / math.sqrt(len(values))
