"""Draw the device times of benchmarks/losses.py --device cuda.

python benchmarks/plot_losses.py [--csv benchmarks/results.csv] [--device H200]
                                 [--out docs/images/losses.svg]

Takes the last row of each contender, shape and dtype; rows without bytes are of an older way of
measuring (caches warm, the host's pauses counted) and stay out.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

from partlabel.report.drawing import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    RED,
    Studio,
    plain_log,
)

# Of the csv: loss and mode; of the figure: name, colour, marker.
SHOWN = {
    ("copy of the logits", "copy"): ("copy of the logits", MUTED, "|"),
    ("selective", "fused"): ("selective, fused", RED, "o"),
    ("selective", "compiled"): ("torch.compile", GREEN, "D"),
    ("selective", "eager"): ("eager", BLUE, "s"),
    ("timm ASL", "eager"): ("timm's ASL (nothing ignored)", PURPLE, "^"),
    ("reference algorithm", "eager"): ("the paper code's algorithm", ORANGE, "v"),
}
FUSED, REFERENCE = ("selective", "fused"), ("reference algorithm", "eager")
Times = dict[tuple[str, str], dict[tuple[str, str], float]]


def read(path: Path, device: str) -> tuple[Times, str]:
    """Microseconds by (dtype, shape) and contender, and the device's name."""
    found: Times = {}
    name = ""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            key = row["loss"], row["mode"]
            if device in row["device"] and row["bytes"] and key in SHOWN:
                name = row["device"].split(",")[0]
                of_shape = found.setdefault((row["dtype"], row["shape"]), {})
                of_shape[key] = 1e3 * float(row["ms"])
    if not found:
        raise SystemExit(f"{path} has no such rows of a device called {device}")
    return found, name


def size_of(shape: str) -> int:
    images, classes = map(int, shape.split("x"))
    return images * classes


def pointed(marker: str) -> dict[str, Any]:
    bar = {"markersize": 10, "markeredgewidth": 2.5} if marker == "|" else {}
    return {"marker": marker, **bar}


def draw(axes: Any, dtype: str, shapes: list[str], times: Times) -> None:
    rows = [times.get((dtype, shape), {}) for shape in shapes]
    low = [min(here.values(), default=1.0) for here in rows]
    high = [max(here.values(), default=1.0) for here in rows]
    axes.hlines(range(len(rows)), low, high, linewidth=0.8, color=MUTED)
    for key, (_, colour, marker) in SHOWN.items():
        points = [(here[key], place) for place, here in enumerate(rows) if key in here]
        axes.plot(*zip(*points, strict=True), color=colour, ls="none", **pointed(marker))
    for place, here in enumerate(rows):
        if FUSED in here and REFERENCE in here:
            text = f"{here[FUSED]:.3g} µs, {here[REFERENCE] / here[FUSED]:.0f}x"
            spot = {"textcoords": "offset points", "xytext": (0, 6), "ha": "center"}
            axes.annotate(text, (here[FUSED], place), color=RED, fontsize=8, **spot)
    axes.set_title(dtype, loc="left")
    axes.set_xscale("log")
    everything = [us for here in times.values() for us in here.values()]
    axes.set_xlim(min(everything) / 1.5, max(everything) * 1.5)
    plain_log(axes.xaxis)
    axes.set_yticks(range(len(shapes)), shapes)
    axes.set_ylim(len(shapes) - 0.6, -0.7)
    axes.set_xlabel("µs, forward + backward")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--csv", type=Path, default=Path("benchmarks/results.csv"))
    parser.add_argument("--device", default="NVIDIA", help="part of the device's name")
    parser.add_argument("--out", type=Path, default=Path("docs/images/losses.svg"))
    options = parser.parse_args()
    times, device = read(options.csv, options.device)
    shapes = sorted({shape for _, shape in times}, key=size_of)
    dtypes = sorted({dtype for dtype, _ in times}, reverse=True)
    with Studio(options.out.parent).style("losses"):
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D

        figure = Figure(figsize=(800 / 72, (70 + 40 * len(shapes)) / 72), layout="constrained")
        panels = figure.subplots(1, len(dtypes), sharey=True, squeeze=False)[0]
        for axes, dtype in zip(panels, dtypes, strict=True):
            draw(axes, dtype, shapes, times)
        panels[0].set_ylabel(f"images x classes, {device}", color=INK)
        here = {key for of_shape in times.values() for key in of_shape}
        handles = [
            Line2D([], [], color=colour, ls="none", label=label, **pointed(marker))
            for key, (label, colour, marker) in SHOWN.items()
            if key in here
        ]
        figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
        figure.savefig(options.out, metadata={"Date": None, "Creator": None})
    print(f"{options.out}: {options.out.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
