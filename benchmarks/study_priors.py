"""How well priors agree with the truth: of the models and the estimates that a comparison left.

    python benchmarks/study_priors.py outputs/priors/parts/priors/* --labels train.labels \
        --out docs/results/priors-agreement.csv

Takes folders of comparisons that kept their runs (`keep = "all"`). Models that were trained to
ignore unknown labels, or to take them as absent, are asked for a prior (`partlabel prior
estimate`), as it is and corrected by EM; other methods have left one. Prints Spearman's correlation
over the n most frequent classes, how many of the ten most frequent are found, and sums, as means
over the seeds.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from partlabel.compare import Row, read_results
from partlabel.prior import Prior

ASKED = {"ignore": "Ignore model", "negative": "Negative model"}
USES = {"mean": "mean prediction", "em": "corrected by EM"}
SPEARMAN, TOP = "spearman over ", "top 10 found"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, help="of comparisons")
    parser.add_argument("--labels", type=Path, required=True, help="the complete labels")
    parser.add_argument("--out", type=Path, help="a csv with a line for each prior")
    options = parser.parse_args()
    found = [line for folder in options.folders for line in lines(folder, options.labels)]
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(found[0]))
            writer.writeheader()
            writer.writerows(found)
    print(table(found))


def lines(folder: Path, labels: Path) -> Iterator[dict[str, Any]]:
    """The priors of one comparison, and how well they agree."""
    for row in read_results(folder):
        for title, path in priors(folder, row):
            what = {"scheme": row.scheme, "seed": row.seed, "prior": title}
            yield {**what, **agreement(path, labels)}


def priors(folder: Path, row: Row) -> Iterator[tuple[str, Path]]:
    """What each is called, and its file."""
    run = folder / "runs" / row.method / row.scheme.replace(":", "-") / f"seed{row.seed}"
    if row.method in ASKED and not run.is_dir():  # a row that was brought from elsewhere
        print(f"{run} is not here", file=sys.stderr)
        return
    for use, words in USES.items() if row.method in ASKED else ():
        path = run / f"asked-{use}.csv"
        if not path.exists():
            partlabel("prior", "estimate", "--run", run, "--use", use, "--out", path)
        yield f"{ASKED[row.method]}, {words}", path
    left = folder / "priors" / f"{row.key}.csv"
    if row.method not in ASKED and left.exists():
        yield f"of {row.title}", left


def agreement(path: Path, labels: Path) -> dict[str, Any]:
    """The numbers of a prior."""
    found = json.loads(partlabel("prior", "compare", path, labels, "--json"))
    entries = Prior.read(path).classes.values()
    first = sorted(entries, key=lambda entry: -entry.prior)[:10]
    return {
        **{f"{SPEARMAN}{n}": value for n, value in found["spearman_top"].items()},
        TOP: found["top_10_overlap"],
        "sum": found["sums"][0],
        "true sum": found["sums"][1],
        "mean absolute error": found["mean_absolute_error"],
        "top 10": "; ".join(entry.class_name for entry in first),
    }


def partlabel(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "partlabel", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def table(found: Sequence[dict[str, Any]]) -> str:
    """Markdown with a line for each scheme and kind of prior."""
    numbers = [name for name in found[0] if name.startswith(SPEARMAN)]
    numbers += [TOP, "sum", "mean absolute error"]
    titles = ["labels", "prior", *(name.replace(SPEARMAN, "top ") for name in numbers)]
    kinds = dict.fromkeys((line["scheme"], line["prior"]) for line in found)
    text = [titles, ["---"] * len(titles)]
    for scheme, prior in sorted(kinds):
        same = [line for line in found if (line["scheme"], line["prior"]) == (scheme, prior)]
        values = (fmean([line[name] for line in same]) for name in numbers)
        text.append([scheme, prior, *(f"{value:.2f}" for value in values)])
    return "\n".join(f"| {' | '.join(line)} |" for line in text)


if __name__ == "__main__":
    main()
