"""The command ``partlabel demo``."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from partlabel import terminal
from partlabel.commands.compare import finish_comparison, run_comparison
from partlabel.commands.train import SetOption

if TYPE_CHECKING:
    from partlabel.compare import Row
    from partlabel.demo import DemoData


def demo(
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="the folder; default: outputs/demo, or demo-SEED"),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="of pictures, labels and trainings")
    ] = 0,
    images: Annotated[
        int, typer.Option("--images", min=64, help="pictures to train on; fewer are faster")
    ] = 6_000,
    sets: SetOption = None,
) -> None:
    """See what the paper is about, in a few minutes on a laptop: no data, no GPU needed.

    Draws pictures with complete labels, hides 97 % of them, trains with the rest in three ways
    (unknown labels ignored, taken as absent, or decided one by one), and writes a report. Run it
    again to go on where it was interrupted.
    """
    from partlabel.compare import Comparison

    folder = out or Path("outputs") / (f"demo-{seed}" if seed else "demo")
    data = _data(folder, seed=seed, images=images)
    with as_file(files("partlabel.demo") / "demo.toml") as settings:
        paths = [f"data.train={data.store}", f"images.root={data.images}"]
        comparison = Comparison.read(
            settings, [*paths, f"compare.seeds=[{seed}]", "name=demo", *(sets or [])], folder
        )
    failures = run_comparison(comparison)
    finish_comparison(comparison, failures)
    text = meaning(comparison.results())
    if text:
        terminal.note(text)


def _data(folder: Path, *, seed: int, images: int) -> DemoData:
    """Draw the pictures, unless they are there."""
    from partlabel.commands.progress import ImageProgress
    from partlabel.demo import found_demo, write_demo

    wanted = {"seed": seed, "train": images, "val": max(images // 2, 64)}
    there = found_demo(folder, **wanted)
    if there is not None:
        return there
    terminal.aside(f"drawing {wanted['train'] + wanted['val']:,} pictures")
    with ImageProgress(wanted["train"] + wanted["val"], what="drawing") as bar:
        return write_demo(folder, **wanted, progress=bar.advance)


def meaning(rows: list[Row]) -> str | None:
    """What the table means, in two sentences that follow from its numbers.

    None where not all three methods are there.
    """
    by_name = {row.method: row for row in rows}
    if not {"ignore", "negative", "csl"} <= by_name.keys():
        return None
    ignore, negative, csl = (by_name[name] for name in ("ignore", "negative", "csl"))
    gains = [100 * (csl.map_c - other.map_c) for other in (ignore, negative)]
    first = (
        "Deciding label by label (CSL) "
        f"{_against(gains[0])} ignoring what is unknown and {_against(gains[1])} calling it absent,"
        " in mAP over all classes."
    )
    costs = [100 * (row.map_frequent - ignore.map_frequent) for row in (negative, csl)]
    second = (
        "On the most frequent classes, where an unknown label is mostly a present one, calling it "
        f"absent {_costs(costs[0])} against ignoring it, and CSL {_costs(costs[1])}."
    )
    return f"{first} {second}"


def _against(points: float) -> str:
    if abs(points) < 0.05:
        return "equals"
    return f"is {abs(points):.1f} points {'better' if points > 0 else 'worse'} than"


def _costs(points: float) -> str:
    if abs(points) < 0.05:
        return "changes nothing"
    return f"{'gains' if points > 0 else 'costs'} {abs(points):.1f} points"
