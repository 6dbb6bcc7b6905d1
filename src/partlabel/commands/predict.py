"""The command ``partlabel predict``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from partlabel import terminal
from partlabel.errors import DataError, UsageError

if TYPE_CHECKING:
    from partlabel.prediction.parts import Outcome
    from partlabel.prediction.predictions import Work

_SHOWN = 5
_OUT_HELP = "scores.parquet or scores.jsonl (missing.csv with --missing); default: print"
_THRESHOLDS_HELP = (
    "'run' (chosen on its validation set), a csv of logits per class, one probability for all, "
    "or 'none'; default: run for json lines without --top-k, else none"
)
_ARE_HELP = "default: logits in parquet, as partlabel evaluate reads them; else probabilities"


def predict(
    images: Annotated[
        list[Path] | None, typer.Argument(help="as --images, for many at once")
    ] = None,
    *,
    run: Annotated[Path, typer.Option("--run", "-r", help="the folder of a run")],
    images_option: Annotated[
        list[Path] | None,
        typer.Option("--images", help="a folder, an image file, or a store; repeat it"),
    ] = None,
    missing: Annotated[
        Path | None,
        typer.Option("--missing", help="find labels of this store that were not annotated"),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help=_OUT_HELP)] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=1, help="at most this many labels per image")
    ] = None,
    thresholds: Annotated[str | None, typer.Option("--thresholds", help=_THRESHOLDS_HELP)] = None,
    scores_are: Annotated[
        Literal["logits", "probabilities"] | None, typer.Option("--scores-are", help=_ARE_HELP)
    ] = None,
    precision: Annotated[
        float | None,
        typer.Option("--precision", help="with --missing: of what is found; default: 0.9"),
    ] = None,
    min_support: Annotated[
        int | None,
        typer.Option(
            "--min-support",
            min=1,
            help="with --missing: positives and negatives a threshold of its own needs; "
            "default: 10",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="with --missing: the best so many only")
    ] = None,
    split: Annotated[str | None, typer.Option("--split", help="of a store: only this")] = None,
    image_root: Annotated[
        Path | None, typer.Option("--image-root", help="of a store: where its images are")
    ] = None,
    image_kind: Annotated[
        Literal["folder", "tar", "parquet"] | None,
        typer.Option("--image-kind", help="of a store: what they are in"),
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=1, help="images at a time, in each process")
    ] = 64,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=0, help="processes that read images; default: automatic"),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:N")] = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="replace what is at --out")
    ] = False,
) -> None:
    """Score images with the model of a run, or find labels that are missing in a store.

    In parquet there are the scores of all classes (image_id, scores), or with --top-k or
    --thresholds those of labels (image_id, class_id, score); in json lines the labels of each
    image. Images that cannot be read are left out and listed in NAME.skipped.csv beside the output.
    Under torchrun (which takes --run for its own: say -r) each process takes its share; the result
    is one file, in the same order.
    """
    paths = [*(images_option or []), *(images or [])]
    if bool(paths) == (missing is not None):
        raise UsageError("give --images FOLDER|FILE|STORE, or --missing STORE")
    if missing is None:
        _refuse("--missing", precision=precision, limit=limit, min_support=min_support)
    else:
        _refuse("--images", top_k=top_k)
        _check_aim(precision, min_support, thresholds)
    _check_output(out, (".csv",) if missing else (".parquet", ".jsonl"), overwrite=overwrite)
    from partlabel.commands.progress import ImageProgress
    from partlabel.prediction.pictures import find_images, is_store, store_images
    from partlabel.prediction.predict import Predictor
    from partlabel.prediction.predictions import Work
    from partlabel.training.dataset import workers_for
    from partlabel.training.processes import processes
    from partlabel.training.runfolder import RunFolder

    config = RunFolder.existing(run).config  # before the model, which takes a while
    store = missing or next((path for path in paths if is_store(path)), None)
    if store is None:
        _refuse("a store", split=split, image_root=image_root, image_kind=image_kind)
    elif len(paths) > 1:
        raise UsageError(f"{store} is a store; name it alone")
    with processes(device) as here:
        if out is None and here.world > 1:
            raise UsageError("several processes need a file to write; say --out")
        pictures: Any = (
            find_images(paths)
            if store is None
            else store_images(config, store, split=split, kind=image_kind, root=image_root)
        )
        if len(set(here.gather(len(pictures)))) > 1:
            raise UsageError("the processes do not find the same images; are all on one disk?")
        # Lines on a terminal and a bar would be drawn over each other.
        shown = here.main and not (out is None and sys.stdout.isatty())
        with ImageProgress(len(pictures), processes=here.world, shown=shown) as progress:
            work = Work(
                predictor=Predictor.open(run, device=here.device, say=terminal.aside),
                pictures=pictures,
                processes=here,
                batch_size=batch_size,
                workers=workers_for(here, workers),
                progress=progress.advance,
            )
            if missing is None:
                outcome = _predict(work, out, top_k, thresholds, scores_are)
            else:
                aim = (precision or 0.9, min_support or 10, limit)
                outcome = _missing(work, missing, out, thresholds, scores_are, aim)
    if outcome is not None:
        _show_skipped(outcome, out)


def _predict(
    work: Work, out: Path | None, top_k: int | None, thresholds: str | None, scores_are: Any
) -> Outcome | None:
    from partlabel.prediction.predictions import Form, print_labels, write_predictions
    from partlabel.prediction.thresholding import thresholds_of

    table = out is not None and out.suffix == ".parquet"
    if thresholds is None:
        thresholds = "none" if table or top_k is not None else "run"
    classes, columns = _class_order(work)
    at = thresholds_of(
        thresholds, work.predictor, classes, instead=None if table else 0.5, say=_aside
    )
    form = Form(
        classes=classes,
        columns=columns,
        scores_are=scores_are or ("logits" if table else "probabilities"),
        dense=table and top_k is None and at is None,
        thresholds=at,
        top_k=top_k,
    )
    if out is None:
        return print_labels(work, sys.stdout, form)
    outcome = write_predictions(work, out, form)
    if outcome is not None and outcome.images:
        what = f"{outcome.labels:,} labels"
        if form.dense:
            what = f"scores of {len(classes):,} classes"
        terminal.note(f"{out}: {outcome.images:,} images, {what} ({form.scores_are})")
    return outcome


def _missing(
    work: Work,
    path: Path,
    out: Path | None,
    thresholds: str | None,
    scores_are: Any,
    aim: tuple[float, int, int | None],
) -> Outcome | None:
    from partlabel.prediction.missing import (
        Wanted,
        columns_of,
        never_reached,
        precise_thresholds,
        print_missing,
        write_missing,
        write_none,
    )
    from partlabel.prediction.thresholding import thresholds_of

    precision, min_support, limit = aim
    predictor, store = work.predictor, work.pictures.store  # type: ignore[attr-defined]
    columns = columns_of(store, predictor, path)
    if store.complete:
        if work.processes.main:
            what = f"{path} is complete: every label is known, so none is missing"
            terminal.err.print(what, markup=False)
            write_none(out, sys.stdout)
        return None
    values: Any
    if thresholds is None:
        chosen = precise_thresholds(predictor, precision=precision, min_support=min_support)
        values = chosen.align(store.classes)
    else:
        values = thresholds_of(thresholds, predictor, store.classes, say=_aside)
        if values is None:
            raise UsageError("--missing needs thresholds; leave --thresholds none out")
    never = never_reached(values, store.classes)
    if work.processes.main and never:
        names = ", ".join(never[:_SHOWN]) + (", ..." if len(never) > _SHOWN else "")
        why = f"never reach a precision of {precision:g}" if thresholds is None else "are ruled out"
        _aside(f"{len(never):,} of {len(values):,} classes {why}, so nothing of them: {names}")
    wanted = Wanted(
        store=store,
        thresholds=values,
        columns=columns,
        limit=limit,
        scores_are=scores_are or "probabilities",
    )
    if out is None:
        return print_missing(work, sys.stdout, wanted)
    outcome = write_missing(work, out, wanted)
    if outcome is not None and outcome.images:
        what = f"{outcome.labels:,} labels are probably missing"
        terminal.note(f"{out}: {what} in {outcome.images:,} images")
    return outcome


def _show_skipped(outcome: Outcome, out: Path | None) -> None:
    if not outcome.skipped:
        return
    if not outcome.images:
        first = f"{outcome.first[0].key}: {outcome.first[0].reason}"
        raise DataError(f"none of {outcome.skipped:,} images can be read ({first})")
    listed = "" if out is None else f"; {out.with_suffix('.skipped.csv')} lists them"
    _aside(f"{outcome.skipped:,} images cannot be read and are left out{listed}")
    for one in outcome.first:
        terminal.err.print(f"  {one.key}: {one.reason}", markup=False)


def _aside(text: str) -> None:
    terminal.warning(text, aside=True)


def _class_order(work: Work) -> tuple[Any, Any]:
    """Classes in the order of a store, so that ``partlabel evaluate`` can read the scores."""
    classes, store = work.predictor.classes, getattr(work.pictures, "store", None)
    if store is None or store.classes.ids == classes.ids:
        return classes, None
    if set(store.classes.ids) != set(classes.ids):
        if work.processes.main:
            what = "the store has other classes than the model; the scores are of the model's"
            terminal.warning(what, aside=True)
        return classes, None
    return store.classes, store.classes.positions_in(classes)


def _refuse(goes_with: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"--{name.replace('_', '-')} goes with {goes_with}")


def _check_aim(precision: float | None, min_support: int | None, thresholds: str | None) -> None:
    if thresholds is not None:
        _refuse("--missing without --thresholds", precision=precision, min_support=min_support)
    if precision is not None and not 0 < precision <= 1:
        raise UsageError(f"--precision is a share above 0, up to 1, got {precision}")


def _check_output(path: Path | None, suffixes: tuple[str, ...], *, overwrite: bool) -> None:
    """Say before the work what would go wrong after it."""
    if path is None:
        return
    if path.suffix not in suffixes:
        raise UsageError(f"{path}: must end in {' or '.join(suffixes)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.absolute().parent}; make it first")
    if path.is_dir() or (path.exists() and not overwrite):
        raise UsageError(f"{path} exists; choose another --out or add --overwrite")
