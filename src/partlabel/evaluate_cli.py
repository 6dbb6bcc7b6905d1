"""The command ``partlabel evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from partlabel import terminal
from partlabel.classfile import write_rows
from partlabel.errors import UsageError
from partlabel.store import LabelStore

if TYPE_CHECKING:
    from partlabel.evaluate import Evaluation
    from partlabel.metrics import AveragePrecision, Interval


def evaluate(
    *,
    scores: Annotated[
        Path, typer.Option("--scores", help="scores, dense or pairs: npy or parquet")
    ],
    labels: Annotated[Path, typer.Option("--labels", help="the store with the labels")],
    split: Annotated[str | None, typer.Option("--split", help="only this split")] = None,
    image_ids: Annotated[
        Path | None,
        typer.Option("--image-ids", help="for npy: text file with the image id of each row"),
    ] = None,
    common: Annotated[
        bool, typer.Option("--common", help="evaluate what scores and labels both have")
    ] = False,
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
    """Score predictions on what was annotated: AP, thresholds, calibration."""
    _check_outputs([choose, per_class], overwrite=overwrite)
    if precision is not None and (choose is None or not 0 < precision <= 1):
        raise UsageError(
            "--precision is a share above 0, up to 1, and goes with --choose-thresholds"
        )
    from partlabel import evaluate as evaluating
    from partlabel import metrics

    whole = LabelStore.open(labels)
    store = whole if split is None else whole.split(split)
    at = evaluating.threshold_of(threshold, store.classes, logits=scores_are == "logits")
    wanted = evaluating.named_classes(class_ or [], store.classes)
    grouped = (
        {}
        if groups is None
        else evaluating.read_groups(groups, store.classes, parts=parts, key=group_key)
    )
    metric, found = evaluating.collect(
        scores,
        store,
        ties=ties,
        policy=policy,
        top_k=top_k,
        image_ids=image_ids,
        common=common,
    )
    found.named = {name: float(found.result.per_class[i]) for name, i in wanted.items()}
    found.groups = found.result.groups(grouped)
    _warn_of_probabilities(metric, scores_are)
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
        found.thresholds.write(choose)
    if per_class is not None:
        write_rows(per_class, *found.class_columns())
    if as_json:
        terminal.json_text(found.as_dict())
        return
    _show(f"{scores} against {labels}", found)
    for path in (choose, per_class):
        if path is not None:
            terminal.note(f"written: {path}")


def _warn_of_probabilities(metric: AveragePrecision, scores_are: str) -> None:
    values = metric.collect(distributed=False).scores
    if scores_are == "logits" and values.min() >= 0 and values.max() <= 1:
        what = "all scores are in 0..1: say --scores-are probabilities?"
        terminal.warning(what, aside=True)


def _check_outputs(paths: list[Path | None], *, overwrite: bool) -> None:
    """Say before the work what would go wrong after it."""
    for path in paths:
        if path is None:
            continue
        if not path.absolute().parent.is_dir():
            raise UsageError(f"{path}: there is no folder {path.absolute().parent}; make it first")
        if path.exists() and not overwrite:
            raise UsageError(f"{path} exists; choose another name or add --overwrite")


def _show(title: str, found: Evaluation) -> None:
    result = found.result
    counts = (
        f"{found.pairs:,} annotated pairs ({result.positives.sum():,} present, "
        f"{result.negatives.sum():,} absent) of {found.images:,} images"
    )
    c, o = (found.intervals.map_c, found.intervals.map_o) if found.intervals else (None, None)
    rows = {
        "scored": counts,
        "mAP(C)": _percent(result.map_c, c)
        + f"  mean over {result.n_valid:,} of {len(found.classes):,} classes",
        "mAP(O)": _percent(result.map_o, o) + "  weighted by positives",
    }
    reasons = {
        "any label": result.no_label,
        "a positive": result.no_positive,
        "a negative": result.no_negative,
    }
    if any(reasons.values()):
        name = "left out" if result.n_valid < len(found.classes) else "not left out"
        rows[name] = ", ".join(f"{n:,} classes without {what}" for what, n in reasons.items() if n)
    rows |= {f"AP of {name}": _percent(value) for name, value in found.named.items()}
    rows |= {
        f"mAP of {name}": f"{_percent(group.map)}  {group.n_valid:,} of {group.classes:,} classes"
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
