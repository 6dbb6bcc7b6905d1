"""A file of scores against a store: everything ``partlabel evaluate`` says, as numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from partlabel.classfile import read_rows
from partlabel.errors import DataError, UsageError, suggest
from partlabel.labels import ABSENT, PRESENT, UNKNOWN
from partlabel.metrics import (
    AveragePrecision,
    Bootstrap,
    GroupResult,
    PrecisionRecall,
    Result,
    Thresholds,
    cut_in_groups,
)
from partlabel.metrics.average_precision import nothing_to_score
from partlabel.scores import DenseScores, PairScores, ScoredPairs, open_scores
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
            columns["threshold"] = self.thresholds.values.tolist()
        return list(columns), [list(row) for row in zip(*columns.values(), strict=True)]


def collect(
    path: str | Path,
    store: LabelStore,
    *,
    ties: Literal["grouped", "reference"] = "grouped",
    policy: Literal["drop", "zero"] = "drop",
    top_k: int | None = None,
    image_ids: Path | None = None,
    common: bool = False,
) -> tuple[AveragePrecision, Evaluation]:
    """Read scores at the annotated pairs of a store, and score them."""
    file = open_scores(path, store, image_ids=image_ids, common=common)
    metric = AveragePrecision(len(store.classes), ties=ties, policy=policy, top_k=top_k)
    if isinstance(file, PairScores):
        images = _fill_pairs(metric, file)
    else:
        images = _fill_dense(metric, file)
    if not len(metric):
        raise DataError("has no score of an annotated pair", path=path, fix="nothing to score")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said below, as an error
        result = metric.compute(distributed=False)
    if not np.minimum(result.positives, result.negatives).any():
        raise DataError(nothing_to_score(result), path=path, fix="nothing to score")
    found = Evaluation(
        classes=store.classes,
        images=images,
        pairs=int(result.positives.sum() + result.negatives.sum()),
        result=result,
        left_out=file.left_out,
    )
    return metric, found


def _fill_dense(metric: AveragePrecision, file: DenseScores) -> int:
    images = 0
    for rows, values in file.stretches():
        states = file.store.dense(rows)
        if not file.has_class.all():
            states[:, ~file.has_class] = UNKNOWN
            values[:, ~file.has_class] = -np.inf  # not among the best of an image either
        metric.update(values, states, images=rows)
        images += len(rows)
    return images


def _fill_pairs(metric: AveragePrecision, file: PairScores) -> int:
    if metric.top_k is not None:
        raise UsageError("--top-k needs the scores of all classes; this file has pairs")
    seen = np.zeros(len(file.store), bool)
    for part in file.stretches():
        states = _states(file.store, part)
        known = states != UNKNOWN
        rows = part.rows[known]
        metric.update_pairs(part.values[known], part.classes[known], states[known], images=rows)
        seen[rows] = True
    _compare_pairs(metric, file)
    return int(seen.sum())


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


def _compare_pairs(metric: AveragePrecision, file: PairScores) -> None:
    """Refuse pairs that are there twice, and annotated pairs without a score."""
    pairs = metric.collect(distributed=False)
    if len(pairs.scores) < len(metric):
        again = len(metric) - len(pairs.scores)
        raise DataError(f"{again:,} pairs of image and class are there twice", path=file.path)
    counts = file.store.counts()
    lacking = int(counts.positives.sum() + counts.negatives.sum()) - len(pairs.scores)
    if lacking and file.common:
        file.left_out.append(f"{lacking:,} annotated pairs have no score")
    elif lacking:
        image, which = _first_without_score(pairs, file.store)
        what = f"has no score for {lacking:,} annotated pairs (image {image!r}, class {which!r})"
        raise DataError(what, path=file.path, fix="--common evaluates what both have")


def _first_without_score(pairs: Any, store: LabelStore) -> tuple[str, str]:
    count = len(store.classes)
    scored = np.unique(pairs.images.numpy() * count + pairs.classes.numpy())
    for stretch in store.chunks(1 << 20):
        rows = np.arange(stretch.start, stretch.stop)
        for start in range(0, len(rows), 1024):
            part = rows[start : start + 1024]
            states = store.dense(part)
            row, which = np.nonzero((states == PRESENT) | (states == ABSENT))
            missing = ~np.isin(part[row] * count + which, scored)
            if missing.any():
                first = int(np.argmax(missing))
                return store.images.show_id(int(part[row[first]])), store.classes.ids[which[first]]
    raise AssertionError("no such pair")


def named_classes(names: list[str], classes: ClassTable) -> dict[str, int]:
    """Class ids or names, as people write them, into class indices."""
    found = {}
    lower = {name.lower(): i for i, name in reversed(list(enumerate(classes.names)))}
    for name in names:
        index = classes.index.get(name, lower.get(name.lower()))
        if index is None:
            raise UsageError(f"no class {name!r}; {suggest(name, (*classes.names, *classes.ids))}")
        found[name] = index
    return found


def read_groups(path: Path, classes: ClassTable, *, parts: int, key: str) -> dict[str, Ints]:
    """Groups of classes: from the annotations of a store, or from a csv ``class_id,group``."""
    if path.is_dir():
        store = LabelStore.open(path)
        counts = store.counts()
        order = classes.positions_in(store.classes)
        number = counts.positives if key == "positives" else counts.positives + counts.negatives
        return cut_in_groups(number[order], parts)
    header, rows = read_rows(path)
    if not {"class_id", "group"} <= set(header):
        raise DataError(f"no such columns in {header}", path=path, fix="expected class_id, group")
    groups: dict[str, list[int]] = {}
    for line, row in enumerate(rows, 2):
        index = classes.index.get(row.get("class_id", ""))
        if index is None:
            wrong = row.get("class_id", "")
            fix = suggest(wrong, classes.ids)
            raise DataError(f"no class {wrong!r}", path=path, line=line, fix=fix)
        groups.setdefault(row.get("group", ""), []).append(index)
    return {name: np.array(members) for name, members in groups.items()}


def threshold_of(text: str, classes: ClassTable, *, logits: bool) -> float | npt.NDArray[Any]:
    """A threshold from the command line: a probability, or a file of thresholds."""
    try:
        value = float(text)
    except ValueError:
        return Thresholds.read(text).align(classes)
    if not 0 <= value <= 1:
        raise UsageError(f"--threshold is a probability or a file, got {value}")
    if not logits:
        return value
    if value in (0, 1):
        return math.inf if value else -math.inf
    return math.log(value) - math.log1p(-value)
