"""The command ``partlabel demo``."""

from __future__ import annotations

import json
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from partlabel import terminal
from partlabel.commands.compare import finish_comparison, run_comparison
from partlabel.commands.train import SetOption
from partlabel.errors import UsageError

if TYPE_CHECKING:
    from partlabel.compare import Row
    from partlabel.demo import DemoData


_IMAGES = 6_000


def demo(
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="the folder; default: outputs/demo, or demo-SEED"),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**63 - 1, help="of pictures, labels and trainings")
    ] = 0,
    images: Annotated[
        int, typer.Option("--images", min=64, help="pictures to train on; fewer are faster")
    ] = _IMAGES,
    sets: SetOption = None,
) -> None:
    """See what the paper is about, in a few minutes on a laptop: no data, no GPU needed.

    Draws pictures with complete labels, hides 97 % of them, trains with the rest in three ways
    (unknown labels ignored, taken as absent, or decided one by one), and writes a report. Run it
    again to go on where it was interrupted.
    """
    from partlabel.compare import Comparison

    usual = (f"-{seed}" if seed else "") + (f"-of-{images}" if images != _IMAGES else "")
    folder = (out or Path("outputs") / f"demo{usual}").expanduser()
    data = _data(folder, seed=seed, images=images)
    per_class = max(images // 60, 2)  # so that 3 % of the labels are known
    with as_file(files("partlabel.demo") / "demo.toml") as settings:
        places = {"data.train": data.store, "images.root": data.images}
        paths = [f"{key}={json.dumps(str(place))}" for key, place in places.items()]
        drawn = [f"compare.seeds=[{seed}]", f'compare.schemes=["fpc:{per_class}"]']
        comparison = Comparison.read(settings, [*paths, *drawn, "name=demo", *(sets or [])], folder)
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
    if (folder / "runs").is_dir():
        what = "has a demo with other pictures"
        raise UsageError(f"{folder}: {what}; choose another --out, or remove it")
    terminal.aside(f"drawing {wanted['train'] + wanted['val']:,} pictures")
    with ImageProgress(wanted["train"] + wanted["val"], what="drawing") as bar:
        return write_demo(folder, **wanted, progress=bar.advance)


def meaning(rows: list[Row]) -> str | None:
    """What the table means, in two sentences that follow from its numbers.

    None where not all three methods are there, or several schemes.
    """
    from partlabel.compare.statistics import summarise

    found = [each for each in summarise(rows) if each.number in ("map_c", "map_frequent")]
    mean = {(each.method, each.number): 100 * each.mean for each in found if each.mean == each.mean}
    three = {"ignore", "negative", "csl"}
    whole = all((method, "map_c") in mean and (method, "map_frequent") in mean for method in three)
    if not whole or len({row.scheme for row in rows}) > 1:
        return None
    gains = [mean["csl", "map_c"] - mean[other, "map_c"] for other in ("ignore", "negative")]
    first = (
        "Deciding label by label (CSL) "
        f"{_against(gains[0])} ignoring what is unknown and {_against(gains[1])} calling it absent,"
        " in mAP over all classes."
    )
    usual = mean["ignore", "map_frequent"]
    costs = [mean[method, "map_frequent"] - usual for method in ("negative", "csl")]
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
