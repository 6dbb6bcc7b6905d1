"""The command ``partlabel train``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from partlabel import terminal
from partlabel.errors import UsageError

if TYPE_CHECKING:
    from partlabel.config import Config
    from partlabel.training.stages import Run

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="a setting in place of the file's: train.epochs=3; repeat it"),
]


def train(
    run: Annotated[Path, typer.Argument(help="a run file (toml)", metavar="RUN.toml")],
    *,
    sets: SetOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="the run folder; default: outputs/NAME")
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", help="a file of weights for the backbone, or none")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="remove what is in the run folder and start anew")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as json")] = False,
) -> None:
    """Train: estimate how frequent each class is, train with that, evaluate.

    Run it again to go on where it was interrupted. Under torchrun it uses all processes.
    """
    config = read_config(run, sets, out=out, weights=weights)
    with running(config) as (made, main):
        if fresh:
            if main:
                _remove(config.out)
            made.processes.wait()
        result = made()
    if main:
        _show(config.out, result, as_json=as_json)


@contextmanager
def running(config: Config) -> Iterator[tuple[Run, bool]]:
    """A run among its processes, shown by the main one; a wish to stop ends it in peace."""
    from partlabel.commands.watching import TrainingProgress
    from partlabel.training.loop import Stopped
    from partlabel.training.processes import processes
    from partlabel.training.stages import Run

    with (
        processes(config.train.device) as here,
        TrainingProgress(shown=here.main, processes=here.world) as watcher,
    ):
        try:
            yield Run(config, processes=here, watcher=watcher), here.main
        except Stopped:
            if here.main:
                where = f"from the checkpoint in {config.out}"
                terminal.note(f"stopped; the same command goes on {where}")
            raise SystemExit(130) from None


def read_config(
    run: Path, sets: list[str] | None, *, out: Path | None = None, weights: str | None = None
) -> Config:
    """Read a run file with the options of the command line in it."""
    from partlabel.config import Config

    more = list(sets or [])
    if out is not None:
        more.append(f"out={out}")
    if weights is not None:
        more.append(f"model.weights={weights}")
    return Config.read(run, sets=more)


def _remove(folder: Path) -> None:
    if not folder.exists():
        return
    if not (folder / "config.toml").is_file():
        raise UsageError(f"{folder}: is not a run folder, so --fresh does not remove it")
    shutil.rmtree(folder)


def _show(folder: Path, result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        terminal.json_text(result)
        return
    rows = {"run folder": str(folder), "steps": f"{result['steps']:,}"}
    for key, name in (("map_c", "mAP(C)"), ("map_o", "mAP(O)")):
        if result.get(key) is not None:
            rows[name] = f"{100 * result[key]:.2f}"
    for key, value in result.items():
        if key.startswith("ap_") and value is not None:
            rows[f"AP of {key[3:]}"] = f"{100 * value:.2f}"
    if result.get("best_map_c") is not None:
        rows["mAP(C), best epoch"] = f"{100 * result['best_map_c']:.2f}"
        rows["the same, plain weights too"] = f"{100 * result['reference_best']:.2f}"
    terminal.rows("trained", rows)
