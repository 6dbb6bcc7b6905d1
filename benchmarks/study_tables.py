"""Tables and figures of a study from the rows of its runs, as Markdown and small SVG.

    python benchmarks/study_tables.py docs/results/auto.csv --against ignore negative
    python benchmarks/study_tables.py docs/results/fpc.csv --figure docs/images/coco-fpc.svg

A table for each number: methods below each other, schemes side by side, mean and standard deviation
over the seeds. `--against` adds differences to the best of some methods, paired by seed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from partlabel.compare.results import Row, read_results
from partlabel.compare.statistics import student_t

NAMES = {
    "map_c": "mAP(C)",
    "map_o": "mAP(O)",
    "prior_spearman": "Spearman of the prior",
    "prior_sum": "sum of the prior",
}
PLAIN = ("prior_spearman", "prior_sum")  # all else are fractions, shown in points
CONFIDENCE = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--numbers", nargs="+", default=["map_c", "map_o", "ap:person"])
    parser.add_argument("--methods", nargs="+", help="only these, in this order")
    parser.add_argument("--against", nargs="+", default=[], help="differences to the best of these")
    parser.add_argument("--figure", type=Path, help="an SVG of the first number over the schemes")
    options = parser.parse_args()
    rows = [row for table in options.tables for row in read_results(table)]
    if options.methods:
        rows = [row for name in options.methods for row in rows if row.method == name]
    for number in options.numbers:
        print(f"**{NAMES.get(number, number.replace('ap:', 'AP of '))}**\n")
        print(means(rows, number), "\n")
        if options.against and number not in PLAIN:
            print(differences(rows, number, options.against), "\n")
    print(cost(rows))
    if options.figure:
        draw(rows, options.numbers[0], options.figure)


def means(rows: Sequence[Row], number: str) -> str:
    """Mean and standard deviation; the best of each scheme is bold."""
    scale = 1 if number in PLAIN else 100

    def cell(method: str, scheme: str) -> str:
        values = values_of(rows, method, scheme, number)
        if not values:
            return ""
        text = f"{scale * mean(values):.{2 if scale == 1 else 1}f}"
        if len(values) > 1:
            text += f" ± {scale * deviation(values):.{2 if scale == 1 else 1}f}"
        if number in PLAIN:
            return text
        others = [values_of(rows, each, scheme, number) for each in methods_of(rows)]
        best = max(mean(other) for other in others if other)
        return f"**{text}**" if mean(values) >= best else text

    return table(rows, methods_of(rows), cell)


def differences(rows: Sequence[Row], number: str, against: Sequence[str]) -> str:
    """To the best of some methods in each scheme, by their means; with intervals of Student's t."""

    def cell(method: str, scheme: str) -> str:
        there = {name: by_seed(rows, name, scheme, number) for name in against}
        there = {name: values for name, values in there.items() if values}
        if not there:
            return ""
        best = max(there, key=lambda name: mean(list(there[name].values())))
        own = by_seed(rows, method, scheme, number)
        both = [100 * (own[seed] - there[best][seed]) for seed in own if seed in there[best]]
        if not both:
            return ""
        text = f"{mean(both):+.1f}"
        if len(both) > 1:
            half = student_t(CONFIDENCE, len(both) - 1) * deviation(both) / math.sqrt(len(both))
            text += f" ({mean(both) - half:+.1f} to {mean(both) + half:+.1f})"
        return f"{text} {best}"

    title = f"minus the better of {', '.join(against)}"
    return table(rows, [name for name in methods_of(rows) if name not in against], cell, title)


def cost(rows: Sequence[Row]) -> str:
    """How many runs there are, of which seeds, where they ran and how long they took."""
    seeds = ", ".join(map(str, sorted({row.seed for row in rows})))
    seconds = [row.seconds for row in rows if math.isfinite(row.seconds)]
    devices = ", ".join(sorted({row.device for row in rows}))
    total = f"{sum(seconds) / 60:.0f} minutes of training" if seconds else ""
    return f"{len(rows)} runs, seeds {seeds}; {devices}; {total}, several runs at a time"


def table(
    rows: Sequence[Row],
    methods: Sequence[str],
    cell: Callable[[str, str], str],
    title: str = "method",
) -> str:
    """Markdown with a line for each method and a column for each scheme."""
    schemes = schemes_of(rows)
    titles = {row.method: row.title for row in rows}
    lines = [["", *[""] * len(schemes)], ["---"] * (len(schemes) + 1)]
    lines[0] = [title, *[shown(scheme) for scheme in schemes]]
    lines += [[titles[name], *[cell(name, scheme) for scheme in schemes]] for name in methods]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(rows: Sequence[Row], number: str, path: Path) -> None:
    """Lines over the schemes, one for each method, in text that stays text."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "partlabel", "font.size": 9}
    schemes = schemes_of(rows)
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for i, method in enumerate(methods_of(rows)):
        found = [(x, values_of(rows, method, each, number)) for x, each in enumerate(schemes)]
        found = [(x, values) for x, values in found if values]
        title = next(row.title for row in rows if row.method == method)
        axes.errorbar(
            [x for x, _ in found],
            [100 * mean(values) for _, values in found],
            [100 * deviation(values) for _, values in found],
            label=title,
            color=f"C{i % 10}",
            marker="osD^vP*X"[i % 8],
            linestyle=("-", "--", ":")[i // 8 % 3],
            linewidth=2.2 if method == "auto" else 1.1,
            markersize=4,
            capsize=2,
            elinewidth=0.7,
        )
    axes.set_xticks(range(len(schemes)), [shown(scheme) for scheme in schemes])
    axes.set_ylabel(f"{NAMES.get(number, number)}, percent")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", linewidth=0.4)
    axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def shown(scheme: str) -> str:
    """A scheme as people read it."""
    kind, _, value = scheme.partition(":")
    return {"fpc": f"FPC {value}", "rpa": f"RPA {value}"}.get(kind, scheme)


def schemes_of(rows: Sequence[Row]) -> list[str]:
    """By kind and value."""
    names = {row.scheme for row in rows}
    return sorted(names, key=lambda s: (s.partition(":")[0], float(s.partition(":")[2] or 0)))


def methods_of(rows: Sequence[Row]) -> list[str]:
    """In the order of the rows."""
    return list(dict.fromkeys(row.method for row in rows))


def by_seed(rows: Sequence[Row], method: str, scheme: str, number: str) -> dict[int, float]:
    """The finite values of a number."""
    found = {
        row.seed: row.numbers.get(number, math.nan)
        for row in rows
        if (row.method, row.scheme) == (method, scheme)
    }
    return {seed: value for seed, value in found.items() if math.isfinite(value)}


def values_of(rows: Sequence[Row], method: str, scheme: str, number: str) -> list[float]:
    """The finite values of a number, whatever their seeds."""
    return list(by_seed(rows, method, scheme, number).values())


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """With n - 1; 0 of one value."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


if __name__ == "__main__":
    main()
