"""The labels of a comparison: what is trained and evaluated on, and what is known to be true."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from partlabel.agreement import spearman
from partlabel.classfile import read_rows, write_rows
from partlabel.compare.plan import Plan
from partlabel.compare.schemes import fingerprint
from partlabel.errors import DataError, suggest
from partlabel.prior import Prior
from partlabel.training.rundata import Labels, training_labels, validation_labels

PER_CLASS = ("class_id", "class_name", "positives", "negatives", "ap")


class CompareData:
    """Opens the stores that a compare file names, and refuses schemes that do not go with them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.train = training_labels(plan.base)
        self.val = self._validation()
        if not self.complete:
            for scheme in plan.schemes:
                if scheme.kind != "given":
                    what = f"{scheme} needs complete labels, and {self.train.path} has unknown ones"
                    raise plan.error("schemes", f"{what}; say given")
        known = dict.fromkeys([*self.val.store.classes.names, *self.val.store.classes.ids])
        for name in plan.base.eval.classes:
            if name not in known:
                what = f"no class {name!r}; {suggest(name, known)}"
                raise plan.base.error("eval", "classes", what=what)
        self._contents: dict[Path, str] = {}

    def _validation(self) -> Labels:
        found = validation_labels(self.plan.base)
        if found is None:
            what = "there is nothing to compare on: name a store, or a split in val_split"
            raise self.plan.base.error("data", "val", what=what)
        return found

    @property
    def complete(self) -> bool:
        """Whether all labels of the training images are known."""
        return self.train.store.complete

    @cached_property
    def fingerprints(self) -> list[str]:
        """What decides a result besides the settings: labels to train and to evaluate on."""
        return [fingerprint(labels.store) for labels in (self.train, self.val)]

    def content(self, path: Path) -> str:
        """A file by what is in it, so that it may lie elsewhere on another machine."""
        if path not in self._contents:
            try:
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                reason = error.strerror or str(error)
                raise DataError(f"cannot be read ({reason})", path=path) from error
            self._contents[path] = f"sha256:{digest[:16]}"
        return self._contents[path]

    @cached_property
    def truth(self) -> dict[str, float] | None:
        """How often each class occurs in the training images, where all is known."""
        if not self.complete:
            return None
        store = self.train.store
        shares = store.counts().positives / len(store)
        return dict(zip(store.classes.ids, shares.tolist(), strict=True))

    @cached_property
    def frequent(self) -> dict[str, float]:
        """The most frequent classes with their shares, most frequent first.

        By the truth where it is known, else by the validation labels where those are complete, else
        by the annotated positives.
        """
        store = self.train.store
        if self.truth is None and self.val.store.complete:
            store = self.val.store
        shares = store.counts().positives / len(store)
        count = self.plan.settings.frequent or max(1, len(shares) // 10)
        most = np.argsort(-shares, kind="stable")[:count]
        return {store.classes.ids[index]: float(shares[index]) for index in most}

    def write(self, folder: Path) -> None:
        """Write truth.csv, where the truth is known, and frequent.csv."""
        classes = self.train.store.classes
        names = dict(zip(classes.ids, classes.names, strict=True))
        for file, shares in (("truth.csv", self.truth), ("frequent.csv", self.frequent)):
            if shares is not None:
                rows = ((each, names.get(each, each), share) for each, share in shares.items())
                write_rows(folder / file, ("class_id", "class_name", "share"), rows)

    def agreement(self, prior: Prior | None) -> dict[str, float]:
        """How a prior agrees with the truth: prior_spearman, prior_sum, true_sum."""
        true_sum = math.nan if self.truth is None else math.fsum(self.truth.values())
        found = {"prior_spearman": math.nan, "prior_sum": math.nan, "true_sum": true_sum}
        if prior is None:
            return found
        entries = prior.aligned(self.train.store.classes)
        values = [entry.prior for entry in entries]
        found["prior_sum"] = math.fsum(values)
        if self.truth is not None:
            found["prior_spearman"] = spearman(list(self.truth.values()), values)
        return found

    def chosen(self, precision: Mapping[str, tuple[str, float]]) -> tuple[float, dict[str, float]]:
        """Of (name, AP) by class id: the mean of the frequent classes, and the AP of named ones."""
        values = [precision[each][1] for each in self.frequent if each in precision]
        valid = [value for value in values if math.isfinite(value)]
        by_name = dict(precision.values())
        by_id = {each: value for each, (_, value) in precision.items()}
        wanted = self.plan.base.eval.classes
        named = {name: by_id.get(name, by_name.get(name, math.nan)) for name in wanted}
        return (math.fsum(valid) / len(valid) if valid else math.nan), named


def read_per_class(path: Path) -> dict[str, tuple[str, float]]:
    """Name and average precision by class id, from a run's classes.csv or per_class/KEY.csv."""
    header, rows = read_rows(path)
    missing = [name for name in PER_CLASS if name not in header]
    if missing:
        raise DataError(f"has no column {missing[0]}", path=path, line=1, fix="remove it")
    try:
        return {cells["class_id"]: (cells["class_name"], float(cells["ap"])) for _, cells in rows}
    except (KeyError, ValueError) as error:
        raise DataError(f"is damaged ({error})", path=path, fix="remove it") from error


def copy_per_class(source: Path, target: Path) -> None:
    """Keep the table of classes that a run has left."""
    _, rows = read_rows(source)
    try:
        cells: list[Sequence[str]] = [[row[name] for name in PER_CLASS] for _, row in rows]
    except KeyError as error:
        fix = f"remove {source.parent}, and it is trained again"
        raise DataError(f"is damaged (a row has no {error})", path=source, fix=fix) from error
    target.parent.mkdir(parents=True, exist_ok=True)
    write_rows(target, PER_CLASS, cells)
