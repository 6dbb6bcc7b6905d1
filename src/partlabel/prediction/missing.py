"""Labels that nobody gave and that are probably there, for people to look at."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

from partlabel.classfile import write_rows
from partlabel.errors import ClassMismatchError, UsageError
from partlabel.evaluate import collect
from partlabel.metrics import Thresholds, choose_thresholds
from partlabel.prediction.parts import (
    Outcome,
    Parts,
    SkippedFile,
    explained,
    put_together,
    skipped_of,
)
from partlabel.prediction.predict import Predictor, Scored, probabilities
from partlabel.prediction.predictions import ScoresAre, Work
from partlabel.store import LabelStore
from partlabel.tables import ClassTable, Rows

COLUMNS = ("image_id", "class_id", "class_name", "score", "threshold", "path")
_ROOM = 1 << 20  # labels kept beyond a limit, before they are sorted out
_AT_ONCE = 10_000


class Found(NamedTuple):
    """Labels that are probably there: three arrays of equal length."""

    rows: Rows
    classes: Rows
    logits: npt.NDArray[np.float32]

    def best(self, limit: int | None) -> Found:
        """Sorted, the highest score first, and only so many."""
        order = np.lexsort((self.classes, self.rows, -self.logits))[:limit]
        return Found(self.rows[order], self.classes[order], self.logits[order])


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which labels are looked for."""

    store: LabelStore
    thresholds: npt.NDArray[np.float64]
    """A logit for each class of the store; infinite where none is to be found."""
    columns: Rows | None
    """Where each class of the store is among the model's."""
    limit: int | None = None
    scores_are: ScoresAre = "probabilities"


def columns_of(store: LabelStore, predictor: Predictor, path: Path) -> Rows | None:
    """Where each class of a store is among the model's; refuses other classes."""
    if store.classes.ids == predictor.classes.ids:
        return None
    try:
        return store.classes.positions_in(predictor.classes)
    except ClassMismatchError as error:
        raise ClassMismatchError(f"{path} and {predictor.folder.path}: {error}") from error


def precise_thresholds(
    predictor: Predictor, *, precision: float, min_support: int = 10
) -> Thresholds:
    """The lowest threshold of each class that has a wanted precision on the run's validation set.

    That is the precision on what was annotated there, which is all that can be known.
    """
    path = predictor.folder.path / "predictions.parquet"
    if not path.is_file():
        what = "has no predictions.parquet (not finished, or no validation set)"
        raise UsageError(f"{predictor.folder.path}: {what}; say --thresholds FILE")
    data = predictor.config.data
    store = LabelStore.open(data.val or data.train)
    metric, _ = collect(path, store, common=True)
    return choose_thresholds(
        metric, store.classes, precision=precision, min_support=min_support, distributed=False
    )


def never_reached(thresholds: npt.NDArray[np.float64], classes: ClassTable) -> list[str]:
    """The names of classes of which nothing is to be found."""
    return [classes.names[i] for i in np.flatnonzero(np.isposinf(thresholds))]


def write_missing(work: Work, out: Path, wanted: Wanted) -> Outcome | None:
    """Find missing labels, by all processes, and write them as csv; None but on the main one."""

    def join(paths: list[Path], target: Path) -> None:
        whole = _joined([_loaded(path) for path in paths])
        write_rows(target, COLUMNS, _lines(whole.best(wanted.limit), wanted))

    with explained(out), Parts(out, work.processes) as parts:
        found, outcome = _find(work, wanted, SkippedFile(skipped_of(parts.own)))
        with parts.own.open("wb") as file:
            np.savez(file, **found._asdict())
        whole = put_together(parts, outcome, join)
    if whole is not None and wanted.limit is not None:
        whole.labels = min(whole.labels, wanted.limit)
    return whole


def print_missing(work: Work, file: TextIO, wanted: Wanted) -> Outcome:
    """Find missing labels, and write them to a stream as csv."""
    found, outcome = _find(work, wanted, SkippedFile(None))
    if not outcome.images:
        return outcome
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line in _lines(found.best(wanted.limit), wanted):
        writer.writerow([f"{v:.9g}" if isinstance(v, float) else v for v in line])
    return outcome


def write_none(out: Path | None, file: TextIO) -> None:
    """Write a table without rows."""
    if out is None:
        csv.writer(file, lineterminator="\n").writerow(COLUMNS)
    else:
        write_rows(out, COLUMNS, [])


def _find(work: Work, wanted: Wanted, skips: SkippedFile) -> tuple[Found, Outcome]:
    """What this process's share of the images has; only what passes is kept."""
    kept: list[Found] = [Found(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, "f4"))]
    outcome, count = Outcome(), 0
    for scored in work.scores(columns=wanted.columns):
        new = _passing(scored, wanted)
        kept.append(new)
        count += len(new.rows)
        if wanted.limit is not None and count > wanted.limit + _ROOM:
            kept = [_joined(kept).best(wanted.limit)]
            count = len(kept[0].rows)
        skips.add(scored.skipped)
        outcome.add(Outcome(len(scored.pictures), 0, len(scored.skipped), scored.skipped))
    skips.close()
    found = _joined(kept)
    if wanted.limit is not None:
        found = found.best(wanted.limit)
    outcome.labels = len(found.rows)
    return found, outcome


def _passing(scored: Scored, wanted: Wanted) -> Found:
    rows = np.array([picture.place for picture in scored.pictures], np.int64)
    passing = scored.logits >= wanted.thresholds
    known = wanted.store.batch(rows)
    passing[known.position, known.classes] = False
    position, classes = np.nonzero(passing)
    return Found(rows[position], classes, scored.logits[position, classes])


def _joined(parts: list[Found]) -> Found:
    rows, classes, logits = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Found(rows, classes, logits)


def _loaded(path: Path) -> Found:
    with np.load(path) as part:
        return Found(**part)


def _lines(found: Found, wanted: Wanted) -> Iterator[list[Any]]:
    images, classes = wanted.store.images, wanted.store.classes
    shown = probabilities if wanted.scores_are == "probabilities" else np.asarray
    thresholds = shown(wanted.thresholds.astype(np.float32)).tolist()
    for start in range(0, len(found.rows), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        rows, scores = found.rows[part], shown(found.logits[part]).tolist()
        which_of, paths = found.classes[part].tolist(), images.paths(rows)
        each = zip(rows.tolist(), which_of, scores, paths, strict=True)
        for row, which, score, path in each:
            ids = [images.show_id(row), classes.ids[which], classes.names[which]]
            yield [*ids, score, thresholds[which], path or ""]
