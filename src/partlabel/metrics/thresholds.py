"""A threshold per class, chosen on partially labelled data and kept by class id."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partlabel.classfile import matched, read_rows, write_rows
from partlabel.errors import DataError
from partlabel.metrics.pairs import AnnotatedPairs, Pairs
from partlabel.metrics.ranking import rank
from partlabel.tables import ClassTable

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ClassThreshold:
    """The threshold of one class, and how it does on the pairs it was chosen on."""

    class_id: str
    class_name: str
    threshold: float
    """Predicted where the score is at least this; infinite where nothing is to be predicted."""
    method: str
    """How it was chosen: f1, precision, or pooled over all classes."""
    precision: float
    recall: float
    f1: float
    positives: int
    negatives: int


class Thresholds:
    """One threshold per class, keyed by class id."""

    def __init__(self, entries: list[ClassThreshold]) -> None:
        self.entries = entries
        self._by_id = {entry.class_id: entry for entry in entries}
        if len(self._by_id) != len(entries):
            raise ValueError("a class is there twice")
        for entry in entries:
            if entry.threshold != entry.threshold:
                raise ValueError(f"the threshold of {entry.class_id!r} is NaN")

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def values(self) -> Floats:
        """The thresholds, in order."""
        return np.array([entry.threshold for entry in self.entries])

    def align(self, classes: ClassTable) -> Floats:
        """The thresholds in the order of a class table."""
        aligned = matched(self._by_id, classes, what="the threshold file")
        return np.array([entry.threshold for entry in aligned])

    def write(self, path: str | Path) -> None:
        """Write as csv, in one step."""
        columns = [field.name for field in fields(ClassThreshold)]
        # repr: a threshold equals a score that occurs, and must do so after reading.
        rows = (
            [repr(v) if isinstance(v := getattr(entry, name), float) else v for name in columns]
            for entry in self.entries
        )
        write_rows(path, columns, rows)

    @classmethod
    def read(cls, path: str | Path) -> Thresholds:
        """Read a csv with at least ``class_id`` and ``threshold``."""
        header, rows = read_rows(path)
        if not {"class_id", "threshold"} <= set(header):
            fix = "expected class_id and threshold"
            raise DataError(f"no such columns in {header}", path=path, line=1, fix=fix)
        entries = []
        for line, row in rows:
            try:
                entries.append(_entry(row))
            except (KeyError, ValueError) as error:
                raise DataError(f"is not a threshold ({error})", path=path, line=line) from error
        try:
            return cls(entries)
        except ValueError as error:
            raise DataError(str(error), path=path) from error


class _Choice(NamedTuple):
    """For each class."""

    threshold: Floats
    precision: Floats
    recall: Floats
    f1: Floats


def choose_thresholds(
    metric: AnnotatedPairs,
    classes: ClassTable,
    *,
    precision: float | None = None,
    min_support: int = 10,
    distributed: bool = True,
) -> Thresholds:
    """Choose a threshold per class from annotated pairs.

    Args:
        metric: What collected the pairs, of data the model was not trained on.
        classes: Ids and names of the classes.
        precision: Wanted precision: the lowest threshold that has it. None: the best F1.
        min_support: Classes with fewer positives, or fewer negatives, get the threshold chosen
            over the pairs of all classes together.
        distributed: Gather from all processes where there are several.
    """
    if len(classes) != metric.num_classes:
        raise ValueError(f"{len(classes)} classes, but the metric has {metric.num_classes}")
    if precision is not None and not 0 < precision <= 1:
        raise ValueError(f"precision must be in (0, 1], got {precision}")
    pairs = metric.collect(distributed=distributed)
    own = _choose(pairs, metric.num_classes, precision)
    pooled = _choose(pairs._replace(classes=pairs.classes * 0), 1, precision)
    positive, which = pairs.positive.numpy(), pairs.classes.numpy()
    positives = np.bincount(which[positive], minlength=len(classes))
    negatives = np.bincount(which[~positive], minlength=len(classes))
    enough = np.minimum(positives, negatives) >= max(min_support, 1)
    method = "f1" if precision is None else "precision"
    return Thresholds(
        [
            ClassThreshold(
                class_id=classes.ids[c],
                class_name=classes.names[c],
                method=method if enough[c] else "pooled",
                positives=int(positives[c]),
                negatives=int(negatives[c]),
                **{
                    name: float((getattr(own, name)[c]) if enough[c] else getattr(pooled, name)[0])
                    for name in _Choice._fields
                },
            )
            for c in range(len(classes))
        ]
    )


def _choose(pairs: Pairs, count: int, wanted: float | None) -> _Choice:
    ranking = rank(pairs, count)
    classes, found = ranking.classes.numpy(), ranking.found.numpy()
    predicted, positives = ranking.rank.numpy(), ranking.positives.numpy()[classes]
    scores = pairs.scores.double().numpy()[ranking.order[ranking.ends].numpy()]
    precision, f1 = found / predicted, 2 * found / np.maximum(predicted + positives, 1)
    if wanted is None:
        best = np.zeros(count)
        np.maximum.at(best, classes, f1)
        good = np.flatnonzero((f1 == best[classes]) & (found > 0))
        _, first = np.unique(classes[good], return_index=True)  # equal F1: the highest threshold
        at = good[first]
    else:
        good = np.flatnonzero((precision >= wanted) & (found > 0))[::-1]
        _, last = np.unique(classes[good], return_index=True)  # the lowest threshold
        at = good[last]
    choice = _Choice(np.full(count, np.inf), *(np.zeros(count) for _ in range(3)))
    recall = found / np.maximum(positives, 1)
    for values, chosen in zip(choice, (scores, precision, recall, f1), strict=True):
        values[classes[at]] = chosen[at]
    return choice


def _entry(row: dict[str, str]) -> ClassThreshold:
    number = {
        name: float(row.get(name, "nan")) for name in ("threshold", "precision", "recall", "f1")
    }
    return ClassThreshold(
        class_id=row["class_id"],
        class_name=row.get("class_name", row["class_id"]),
        method=row.get("method", "given"),
        positives=int(row.get("positives", "0")),
        negatives=int(row.get("negatives", "0")),
        **number,
    )
