"""A file of scores against a store: everything ``partlabel evaluate`` says, as numbers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from partlabel.errors import DataError, UsageError
from partlabel.labels import ABSENT, UNKNOWN
from partlabel.metrics import (
    AveragePrecision,
    Bootstrap,
    GroupResult,
    PrecisionRecall,
    Result,
    Thresholds,
)
from partlabel.metrics.average_precision import nothing_to_score, result_of
from partlabel.metrics.pairs import Pairs
from partlabel.scores import DenseScores, open_scores
from partlabel.scores.common import counted
from partlabel.scores.pairs import PairScores, ScoredPairs
from partlabel.store import LabelStore
from partlabel.tables import ClassTable

Ints = npt.NDArray[np.int64]


@dataclass(kw_only=True)
class Evaluation:
    """What was found; parts that were not asked for are None or empty."""

    classes: ClassTable
    images: int
    pairs: int
    result: Result
    left_out: list[str] = field(default_factory=list)
    named: dict[str, float] = field(default_factory=dict)
    groups: dict[str, GroupResult] = field(default_factory=dict)
    points: dict[str, PrecisionRecall] = field(default_factory=dict)
    """Precision, recall and F1, by what was predicted: ``threshold 0.5``, ``top 3``."""
    ece: float | None = None
    intervals: Bootstrap | None = None
    thresholds: Thresholds | None = None

    def as_dict(self) -> dict[str, Any]:
        """The numbers without the classes, for json."""
        result = self.result
        found: dict[str, Any] = {
            "images": self.images,
            "classes": len(self.classes),
            "pairs": self.pairs,
            "map_c": result.map_c,
            "map_o": result.map_o,
            "n_valid": result.n_valid,
            "no_label": result.no_label,
            "no_positive": result.no_positive,
            "no_negative": result.no_negative,
            "positives": int(result.positives.sum()),
            "negatives": int(result.negatives.sum()),
            "left_out": self.left_out,
            "named": self.named,
            "groups": {name: group._asdict() for name, group in self.groups.items()},
            "points": {
                name: {
                    key.rstrip("_"): getattr(point, key)
                    for key in ("cp", "cr", "cf1", "cf1_mean", "op", "or_", "of1")
                }
                for name, point in self.points.items()
            },
            "ece": self.ece,
        }
        if self.intervals is not None:
            found["map_c_interval"] = list(self.intervals.map_c)
            found["map_o_interval"] = list(self.intervals.map_o)
        return found

    def class_columns(self) -> tuple[list[str], list[list[Any]]]:
        """Header and rows of the table with one row per class."""
        columns: dict[str, Any] = {
            "class_id": self.classes.ids,
            "class_name": self.classes.names,
            "positives": self.result.positives.tolist(),
            "negatives": self.result.negatives.tolist(),
            "ap": self.result.per_class.tolist(),
        }
        if self.intervals is not None:
            columns["ap_low"] = self.intervals.low.tolist()
            columns["ap_high"] = self.intervals.high.tolist()
        for name, point in self.points.items():
            for key in ("precision", "recall", "f1"):
                columns[f"{key} at {name}"] = getattr(point, key).tolist()
        if self.thresholds is not None:
            columns["threshold"] = [repr(value) for value in self.thresholds.values.tolist()]
        return list(columns), [list(row) for row in zip(*columns.values(), strict=True)]


def collect(
    path: str | Path,
    store: LabelStore,
    *,
    split: str | None = None,
    ties: Literal["grouped", "reference"] = "grouped",
    policy: Literal["drop", "zero"] = "drop",
    top_k: int | None = None,
    image_ids: Path | None = None,
    common: bool = False,
) -> tuple[AveragePrecision, Evaluation]:
    """Read scores at the annotated pairs of a store or of one split of it, and score them."""
    if not len(store.classes):
        raise DataError("has no classes", path=store.path, fix="nothing to score")
    whole = None if split is None else store
    store = store if split is None else store.split(split)
    file = open_scores(path, store, image_ids=image_ids, common=common, whole=whole)
    metric = AveragePrecision(len(store.classes), ties=ties, policy=policy, top_k=top_k)
    if isinstance(file, PairScores):
        _fill_pairs(metric, file)
    else:
        _fill_dense(metric, file)
    if not len(metric):
        why = f" ({', '.join(file.left_out)})" if file.left_out else ""
        what = f"has no score of an annotated pair{why}"
        raise DataError(what, path=path, fix="nothing to score")
    pairs = metric.collect(distributed=False)
    left_out = list(file.left_out)
    if isinstance(file, PairScores):
        left_out += _compare_pairs(pairs, file, collected=len(metric))
    return metric, evaluation_of(metric, store.classes, path, left_out=left_out)


def evaluation_of(
    metric: AveragePrecision, classes: ClassTable, path: str | Path, *, left_out: list[str]
) -> Evaluation:
    """The average precisions of what is collected; refuses where there are none."""
    pairs = metric.collect(distributed=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said below, as an error
        result = result_of(pairs, metric.num_classes, ties=metric.ties, policy=metric.policy)
    if not np.minimum(result.positives, result.negatives).any():
        raise DataError(nothing_to_score(result), path=path, fix="nothing to score")
    return Evaluation(
        classes=classes,
        images=len(np.unique(_images(pairs))),
        pairs=len(pairs.scores),
        result=result,
        left_out=left_out,
    )


def _fill_dense(metric: AveragePrecision, file: DenseScores) -> None:
    for rows, values in file.stretches():
        states = file.store.dense(rows)
        if not file.has_class.all():
            states[:, ~file.has_class] = UNKNOWN
            values[:, ~file.has_class] = -np.inf  # not among the best of an image either
        metric.update(values, states, images=rows)


def _fill_pairs(metric: AveragePrecision, file: PairScores) -> None:
    if metric.top_k is not None:
        raise UsageError("--top-k needs the scores of all classes; this file has pairs")
    for part in file.stretches():
        states = _states(file.store, part)
        metric.update_pairs(part.values, part.classes, states, images=part.rows)


def _states(store: LabelStore, pairs: ScoredPairs) -> npt.NDArray[np.int8]:
    """The state of each pair."""
    rows, position = np.unique(pairs.rows, return_inverse=True)
    count = len(store.classes)
    where, classes, states = store.batch(rows)
    known = where * count + classes  # ascending: rows in order, classes in order within
    wanted = position * count + pairs.classes
    at = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    missing = ABSENT if store.complete else UNKNOWN
    if not len(known):
        return np.full(len(wanted), missing, np.int8)
    return np.where(known[at] == wanted, states[at], np.int8(missing))


def _images(pairs: Pairs) -> Ints:
    assert pairs.images is not None  # both ways of filling give them
    return pairs.images.numpy()


def _compare_pairs(pairs: Pairs, file: PairScores, *, collected: int) -> list[str]:
    """Refuse pairs that are there twice; refuse or note annotated pairs without a score."""
    if len(pairs.scores) < collected:
        image, which = _shown(file.store, _first_twice(file))
        what = f"the pair of image {image!r} and class {which!r} is there twice"
        again = counted(collected - len(pairs.scores), "row", "rows")
        raise DataError(what, path=file.path, fix=f"{again} too many")
    counts = file.store.counts()
    lacking = int(counts.positives.sum() + counts.negatives.sum()) - len(pairs.scores)
    if lacking and not file.common:
        image, which = _shown(file.store, _first_without_score(pairs, file.store))
        number = counted(lacking, "annotated pair", "annotated pairs")
        what = f"has no score for {number} (image {image!r}, class {which!r})"
        raise DataError(what, path=file.path, fix=file.lookup.or_common())
    without = counted(lacking, "annotated pair has no score", "annotated pairs have no score")
    return [without] if lacking else []


def _shown(store: LabelStore, pair: int) -> tuple[str, str]:
    """Image and class of a pair numbered row by row."""
    row, which = divmod(pair, len(store.classes))
    return store.images.show_id(row), store.classes.ids[which]


def _first_twice(file: PairScores) -> int:
    count = len(file.store.classes)
    numbers = [
        (part.rows * count + part.classes)[_states(file.store, part) != UNKNOWN]
        for part in file.stretches()
    ]
    known, times = np.unique(np.concatenate(numbers), return_counts=True)
    return int(known[times > 1][0])


def _first_without_score(pairs: Pairs, store: LabelStore) -> int:
    count = len(store.classes)
    scored = np.unique(_images(pairs) * count + pairs.classes.numpy())
    for start in range(0, len(store), 1024):
        rows = np.arange(start, min(start + 1024, len(store)))
        row, which = np.nonzero(store.dense(rows) != UNKNOWN)
        numbers = rows[row] * count + which
        missing = ~np.isin(numbers, scored)
        if missing.any():
            return int(numbers[missing][0])
    raise AssertionError("no such pair")
