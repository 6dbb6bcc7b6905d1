"""The command ``partlabel evaluate``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from partlabel import terminal
from partlabel.classfile import write_rows
from partlabel.errors import UsageError
from partlabel.scores.common import counted
from partlabel.store import LabelStore

if TYPE_CHECKING:
    from partlabel.evaluate import Evaluation
    from partlabel.metrics import AveragePrecision, Interval


def evaluate(
    *,
    scores: Annotated[
        Path | None, typer.Option("--scores", help="scores, dense or pairs: npy or parquet")
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", "-r", help="instead of scores: a run's folder (-r under torchrun)"),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option("--labels", help="the store with the labels; with --run its own, if left out"),
    ] = None,
    split: Annotated[str | None, typer.Option("--split", help="only this split")] = None,
    image_ids: Annotated[
        Path | None,
        typer.Option("--image-ids", help="for npy: text file with the image id of each row"),
    ] = None,
    common: Annotated[
        bool, typer.Option("--common", help="evaluate what scores and labels both have")
    ] = False,
    image_root: Annotated[
        Path | None, typer.Option("--image-root", help="with --run: where the images are")
    ] = None,
    image_kind: Annotated[
        Literal["folder", "tar", "parquet"] | None,
        typer.Option("--image-kind", help="with --run: what is there"),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="with --run: auto, cpu or cuda")
    ] = None,
    scores_are: Annotated[
        Literal["logits", "probabilities"], typer.Option("--scores-are", help="what the scores are")
    ] = "logits",
    ties: Annotated[
        Literal["grouped", "reference"],
        typer.Option("--ties", help="equal scores as one step, or as in the paper's code"),
    ] = "grouped",
    policy: Annotated[
        Literal["drop", "zero"],
        typer.Option("--policy", help="classes without positives: left out, or 0"),
    ] = "drop",
    class_: Annotated[
        list[str] | None, typer.Option("--class", help="show the AP of this class; repeat it")
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option("--groups", help="the training store, or a csv with class_id,group"),
    ] = None,
    parts: Annotated[
        int, typer.Option("--parts", min=1, help="groups of classes to make from a store")
    ] = 5,
    group_key: Annotated[
        Literal["annotations", "positives"],
        typer.Option("--group-key", help="what classes are sorted by"),
    ] = "annotations",
    threshold: Annotated[
        str, typer.Option("--threshold", help="a probability, or a csv of thresholds per class")
    ] = "0.5",
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=1, help="also predict the best k of each image")
    ] = None,
    choose: Annotated[
        Path | None,
        typer.Option("--choose-thresholds", help="choose a threshold per class; write this csv"),
    ] = None,
    precision: Annotated[
        float | None,
        typer.Option("--precision", help="wanted precision of the chosen thresholds; else best F1"),
    ] = None,
    min_support: Annotated[
        int, typer.Option("--min-support", min=1, help="positives and negatives a choice needs")
    ] = 10,
    samples: Annotated[
        int, typer.Option("--bootstrap", min=0, help="samples for confidence intervals, say 1000")
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="of the bootstrap")] = 0,
    per_class: Annotated[
        Path | None, typer.Option("--per-class", help="write this csv, one row per class")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="replace the csv files if they are there")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print json")] = False,
) -> None:
    """Score predictions, or the model of a run, on what was annotated."""
    if (scores is None) == (run is None) or (run is None and labels is None):
        raise UsageError("give --scores FILE with --labels STORE, or --run FOLDER")
    inputs = [scores, labels, image_ids, groups, run and run / "checkpoints"]
    inputs += [Path(threshold)] if os.path.isfile(threshold) else []
    _check_outputs([choose, per_class], inputs, overwrite=overwrite)
    if precision is not None and (choose is None or not 0 < precision <= 1):
        raise UsageError(
            "--precision is a share above 0, up to 1, and goes with --choose-thresholds"
        )
    from partlabel import metrics
    from partlabel.commands import evaluate_options as options
    from partlabel.evaluate import collect

    if run is not None:
        from partlabel.commands.evaluate_run import collect_run, labels_of_run

        labels, split = labels_of_run(run, labels, split)
    store = LabelStore.open(cast(Path, labels))
    at = options.threshold_of(threshold, store.classes, logits=scores_are == "logits")
    wanted = options.named_classes(class_ or [], store.classes)
    grouped = options.read_groups(groups, store, parts=parts, key=group_key) if groups else {}
    how: dict[str, Any] = {"split": split, "ties": ties, "policy": policy, "top_k": top_k}
    if run is not None:
        collected = collect_run(run, store, kind=image_kind, root=image_root, device=device, **how)
    else:
        collected = collect(cast(Path, scores), store, image_ids=image_ids, common=common, **how)
    if collected is None:  # not the process that prints
        return
    metric, found = collected
    found.named = {name: float(found.result.per_class[i]) for name, i in wanted.items()}
    found.groups = found.result.groups(grouped)
    _check_scale(cast(Path, scores or run), metric, scores_are)
    found.ece = metrics.calibration_error(metric, scores_are=scores_are).ece
    found.points[f"threshold {threshold}"] = metrics.precision_recall(metric, at)
    if top_k is not None:
        found.points[f"top {top_k}"] = metrics.precision_recall(metric, None, top_k=True)
    if samples:
        found.intervals = metrics.bootstrap(metric, samples=samples, seed=seed)
    if choose is not None:
        found.thresholds = metrics.choose_thresholds(
            metric, store.classes, precision=precision, min_support=min_support
        )
    _tell(f"{scores or run} against {labels}", found, choose, per_class, as_json=as_json)


def _tell(
    title: str, found: Evaluation, choose: Path | None, per_class: Path | None, *, as_json: bool
) -> None:
    """Write what was asked for, and show the rest."""
    if choose is not None and found.thresholds is not None:
        found.thresholds.write(choose)
    if per_class is not None:
        write_rows(per_class, *found.class_columns())
    if as_json:
        terminal.json_text(found.as_dict())
        return
    _show(title, found)
    for path in (choose, per_class):
        if path is not None:
            terminal.note(f"written: {path}")


def _check_scale(path: Path, metric: AveragePrecision, scores_are: str) -> None:
    """Refuse logits that are said to be probabilities; ask where it looks the other way round."""
    values = metric.collect(distributed=False).scores
    low, high = float(values.min()), float(values.max())
    inside = low >= 0 and high <= 1
    if scores_are == "probabilities" and not inside:
        what = f"scores from {low:.4g} to {high:.4g} are not probabilities"
        raise UsageError(f"{path}: {what}; say --scores-are logits")
    if scores_are == "logits" and inside:
        what = "all scores are in 0..1: say --scores-are probabilities?"
        terminal.warning(what, aside=True)


def _check_outputs(
    outputs: Sequence[Path | None], inputs: Sequence[Path | None], *, overwrite: bool
) -> None:
    """Say before the work what would go wrong after it."""
    paths = [path for path in outputs if path is not None]
    there = {_real(path): path for path in inputs if path is not None and path.exists()}
    for path in paths:
        if path.is_dir():
            raise UsageError(f"{path} is a folder; name a csv file to write")
        for place in (_real(path), *_real(path).parents):
            if place in there:
                raise UsageError(f"{path} would write over the input {there[place]}; name another")
        if not path.absolute().parent.is_dir():
            raise UsageError(f"{path}: there is no folder {path.absolute().parent}; make it first")
        if path.exists() and not overwrite:
            raise UsageError(f"{path} exists; choose another name or add --overwrite")
    if len({_real(path) for path in paths}) < len(paths):
        raise UsageError(f"{paths[0]} cannot be both csv files; choose another name for one")


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _show(title: str, found: Evaluation) -> None:
    result = found.result
    counts = (
        f"{counted(found.pairs, 'annotated pair', 'annotated pairs')} "
        f"({result.positives.sum():,} present, {result.negatives.sum():,} absent) "
        f"of {counted(found.images, 'image', 'images')}"
    )
    c, o = (found.intervals.map_c, found.intervals.map_o) if found.intervals else (None, None)
    rows = {
        "scored": counts,
        "mAP(C)": _percent(result.map_c, c)
        + f"  mean over {result.n_valid:,} of {_classes(len(found.classes))}",
        "mAP(O)": _percent(result.map_o, o) + "  weighted by positives",
    }
    reasons = {
        "any label": result.no_label,
        "a positive": result.no_positive,
        "a negative": result.no_negative,
    }
    if any(reasons.values()):
        name = "left out" if result.n_valid < len(found.classes) else "not left out"
        rows[name] = ", ".join(f"{_classes(n)} without {what}" for what, n in reasons.items() if n)
    rows |= {f"AP of {name}": _percent(value) for name, value in found.named.items()}
    rows |= {
        f"mAP of {name}": f"{_percent(group.map)}  {group.n_valid:,} of {_classes(group.classes)}"
        for name, group in found.groups.items()
    }
    for name, p in found.points.items():
        mean = f"(mean of the classes' F1 {_percent(p.cf1_mean)})"
        rows[f"{name}, classes"] = _three("C", p.cp, p.cr, p.cf1) + f"  {mean}"
        rows[f"{name}, pooled"] = _three("O", p.op, p.or_, p.of1)
    rows["calibration error"] = "" if found.ece is None else _percent(found.ece)
    terminal.rows(title, rows)
    for text in found.left_out:
        terminal.warning(f"left out: {text}")


def _classes(count: int) -> str:
    return counted(count, "class", "classes")


def _three(kind: str, precision: float, recall: float, f1: float) -> str:
    named = {"P": precision, "R": recall, "F1": f1}
    return "  ".join(f"{kind}{name} {_percent(value)}" for name, value in named.items())


def _percent(value: float, interval: Interval | None = None) -> str:
    if value != value:
        return "undefined"
    text = f"{100 * value:.2f}"
    return (
        text
        if interval is None
        else f"{text} ({_percent(interval.low)} to {_percent(interval.high)})"
    )
