"""The commands of ``partlabel prior``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from partlabel import terminal
from partlabel.agreement import spearman, spearman_curve, top_overlap
from partlabel.commands.train import SetOption, read_config, running
from partlabel.errors import UsageError
from partlabel.prior import Prior, count_prior
from partlabel.scores import read_scores
from partlabel.store import LabelStore
from partlabel.tables import ClassTable

if TYPE_CHECKING:
    from partlabel.estimate import LogitHistogram

app = typer.Typer(
    help="Estimate how often each class really occurs, and compare estimates.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

JsonOption = Annotated[bool, typer.Option("--json", help="print json")]


@app.command()
def estimate(
    run_file: Annotated[
        Path | None,
        typer.Argument(help="a run file: train its first stage and estimate", metavar="[RUN.toml]"),
    ] = None,
    *,
    scores: Annotated[
        Path | None, typer.Option("--scores", help="scores of an Ignore-mode model, npy or parquet")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option("--labels", help="the store it was trained on, with --scores")
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", "-r", help="the folder of a run in Ignore mode")
    ] = None,
    sets: SetOption = None,
    scores_are: Annotated[
        Literal["logits", "probabilities"], typer.Option("--scores-are", help="what the scores are")
    ] = "logits",
    use: Annotated[
        Literal["mean", "em", "calibrated"] | None,
        typer.Option(
            "--use",
            help="mean prediction (default), corrected by EM, or calibrated by annotations that "
            "the model was not shown",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="the csv to write")] = Path("prior.csv"),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="replace what is at --out")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Estimate the prior from saved scores, from a run's model, or by training one."""
    given = [name for name in (run_file, scores, run) if name is not None]
    if len(given) != 1 or (scores is None) != (labels is None):
        raise UsageError("give one of RUN.toml, --run FOLDER, or --scores FILE with --labels STORE")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"{out}: there is no folder {out.absolute().parent}; make it first")
    if out.exists() and not overwrite:
        raise UsageError(f"{out} exists; choose another --out or add --overwrite")
    with _warnings_shown():
        if scores is not None and labels is not None:
            if use == "calibrated":
                what = "--use calibrated needs a model that was not shown some annotations"
                raise UsageError(f"{what}; give RUN.toml, or --run FOLDER, instead of --scores")
            prior: Prior | None = _from_scores(
                scores, LabelStore.open(labels), scores_are, use or "mean"
            )
        else:
            prior = _by_training(run_file, run, sets, use)
    if prior is None:  # not the process that writes
        return
    prior.write(out)
    _show(prior, out, as_json=as_json)


def _show(prior: Prior, out: Path, *, as_json: bool) -> None:
    entries = list(prior.classes.values())
    total = float(prior.values.sum())
    if as_json:
        terminal.json_text({"out": str(out), "sum": total, "classes": len(prior)})
        return
    terminal.note(f"{out}: {len(prior)} classes, sum of priors {total:.2f}")
    worst = sorted(entries, key=lambda entry: -entry.deficiency)[:10]
    terminal.note("most under-annotated: images estimated (annotated)")
    for entry in worst:
        terminal.note(f"  {entry.class_name}: {entry.estimated_images:,.0f} ({entry.positives:,})")


def _from_scores(
    path: Path, store: LabelStore, scores_are: str, use: Literal["mean", "em"]
) -> Prior:
    from partlabel.estimate import estimate_prior

    seen = _histogram(path, store, scores_are)
    return estimate_prior(seen, store.classes, store.counts(), images=len(store), use=use)


def _by_training(
    run_file: Path | None, run: Path | None, sets: list[str] | None, use: str | None
) -> Prior | None:
    """The prior by the first stage of a run file, or by the model in a run's folder."""
    from partlabel.training.runfolder import RunFolder

    if run_file is not None:
        config = read_config(run_file, [*(sets or []), *([f"prior.use={use}"] if use else [])])
        if config.needs_posterior and use is None:  # that is how such a run estimates it
            config = config.replaced(prior={"use": "calibrated"})
    elif sets:
        raise UsageError("--set goes with a run file")
    else:
        config = RunFolder.existing(run or Path()).config.replaced(prior={"use": use})
    with running(config) as (made, main):
        prior = made.estimated() if run is None else made.prior_of_model(RunFolder(run))
    return prior if main else None


def _histogram(path: Path, store: LabelStore, kind: str) -> LogitHistogram:
    """Read scores into a histogram of logits."""
    import torch

    from partlabel.estimate import LogitHistogram

    seen = LogitHistogram(len(store.classes))
    low, high = np.inf, -np.inf
    for _, values in read_scores(path, store):
        low, high = min(low, values.min()), max(high, values.max())
        if kind == "probabilities":
            if low < 0 or high > 1:
                raise UsageError(f"{path}: has scores outside 0..1; say --scores-are logits")
            values = np.log(np.maximum(values, 1e-30)) - np.log(np.maximum(1 - values, 1e-30))
        seen.update(torch.from_numpy(values.astype(np.float64)))
    if not seen.images:
        raise UsageError(f"{path}: has no images")
    if kind == "logits" and low >= 0 and high <= 1:
        warnings.warn("all scores are in 0..1: say --scores-are probabilities?", stacklevel=2)
    return seen


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="a prior csv", metavar="A")],
    second: Annotated[Path, typer.Argument(help="a prior csv, or a store", metavar="B")],
    as_json: JsonOption = False,
) -> None:
    """Compare a prior with another, or with the frequencies in a store."""
    with _warnings_shown():
        one = Prior.read(first)
        if second.is_dir():
            store = LabelStore.open(second)
            two, classes = count_prior(store), store.classes
            if not store.complete:
                what = f"{second} is not complete: its counts are of what was annotated"
                warnings.warn(what, stacklevel=1)
        else:
            two = Prior.read(second)
            names = [entry.class_name for entry in two.classes.values()]
            classes = ClassTable(two.classes, names)
    found = _compared(one, two, classes)
    if as_json:
        terminal.json_text(found)
        return
    sums = " and ".join(f"{total:.2f}" for total in found["sums"])
    terminal.note(f"{found['classes']} classes; sums of priors {sums}")
    terminal.note(f"Spearman {found['spearman']:.3f}")
    curve = ", ".join(f"{n}: {value:.2f}" for n, value in found["spearman_top"].items())
    terminal.note(f"Spearman over the n most frequent of B: {curve}")
    terminal.note(f"of the 10 most frequent {found['top_10_overlap']} agree")
    terminal.note(f"mean absolute error {found['mean_absolute_error']:.4f}")


def _compared(first: Prior, second: Prior, classes: ClassTable) -> dict[str, Any]:
    """How an estimated prior agrees with another, or with known frequencies."""
    a = np.array([entry.prior for entry in first.aligned(classes)])
    b = np.array([entry.prior for entry in second.aligned(classes)])
    tops = sorted({n for n in (5, 10, 20, 30, 40, 50, 100, 200, 500, 1000, len(a)) if n <= len(a)})
    return {
        "classes": len(a),
        "spearman": spearman(b, a),
        "spearman_top": spearman_curve(b, a, top=tops),
        "top_10_overlap": top_overlap(b, a, 10),
        "mean_absolute_error": float(np.abs(a - b).mean()),
        "sums": [float(a.sum()), float(b.sum())],
    }


class _warnings_shown(warnings.catch_warnings):  # noqa: N801  # used as a statement
    """Print warnings as ours instead of Python's."""

    def __enter__(self) -> Any:
        entered = super().__enter__()
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: terminal.warning(str(message), aside=True)
        return entered
