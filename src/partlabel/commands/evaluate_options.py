"""What options of ``partlabel evaluate`` name: classes, groups of classes, thresholds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from partlabel.classfile import read_rows
from partlabel.errors import ClassMismatchError, DataError, UsageError, suggest
from partlabel.metrics import Thresholds, cut_in_groups
from partlabel.store import LabelStore
from partlabel.tables import ClassTable

Ints = npt.NDArray[np.int64]
_LISTED = 12


def named_classes(names: list[str], classes: ClassTable) -> dict[str, int]:
    """Class ids or names, as people write them, into class indices."""
    return {name: _class_index(name, classes) for name in names}


def _class_index(text: str, classes: ClassTable) -> int:
    """By id, else by name, else by either in whatever case; refuses to choose among several."""
    if text in classes.index:
        return classes.index[text]
    both = list(enumerate(zip(classes.ids, classes.names, strict=True)))
    lower = text.casefold()
    found = [i for i, (_, name) in both if name == text]
    found = found or [i for i, pair in both if lower in (pair[0].casefold(), pair[1].casefold())]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"no class {text!r}; {suggest(text, (*classes.names, *classes.ids))}")
    ids = ", ".join(classes.ids[i] for i in found[:_LISTED])
    more = ", ..." if len(found) > _LISTED else ""
    raise UsageError(
        f"--class {text}: {len(found):,} classes are called so; say one of {ids}{more}"
    )


def read_groups(path: Path, store: LabelStore, *, parts: int, key: str) -> dict[str, Ints]:
    """Groups of classes: by the annotations of another store, or by a csv ``class_id,group``."""
    if not path.is_dir():
        return _groups_of_csv(path, store.classes)
    other = LabelStore.open(path)
    if "train" in other.images.split_counts:  # what counts is what was trained on
        other = other.split("train")
    try:
        order = store.classes.positions_in(other.classes)
    except ClassMismatchError as error:
        raise ClassMismatchError(f"{store.path} and {path}: {error}") from error
    counts = other.counts()
    number = counts.positives if key == "positives" else counts.positives + counts.negatives
    return cut_in_groups(number[order], parts)


def _groups_of_csv(path: Path, classes: ClassTable) -> dict[str, Ints]:
    header, rows = read_rows(path)
    if not {"class_id", "group"} <= set(header):
        raise DataError(f"no such columns in {header}", path=path, fix="expected class_id, group")
    if not rows:
        raise DataError("has no rows", path=path, fix="one per class: class_id, group")
    groups: dict[str, list[int]] = {}
    seen: set[str] = set()
    for line, row in rows:
        name, group = row.get("class_id", ""), row.get("group", "").strip()
        if name not in classes.index:
            fix = suggest(name, classes.ids)
            raise DataError(f"no class {name!r}", path=path, line=line, fix=fix)
        if name in seen:
            raise DataError(f"class {name!r} is there twice", path=path, line=line, fix="drop one")
        if not group:
            what = f"class {name!r} has no group"
            raise DataError(what, path=path, line=line, fix="name one or drop the row")
        seen.add(name)
        groups.setdefault(group, []).append(classes.index[name])
    return {group: np.array(members) for group, members in groups.items()}


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
