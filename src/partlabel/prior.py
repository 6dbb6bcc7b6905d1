"""How often each class really occurs, kept by class id: read, written, aligned, compared."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from partlabel.classfile import matched, read_rows, write_rows
from partlabel.errors import DataError
from partlabel.store import LabelStore
from partlabel.tables import ClassTable

if TYPE_CHECKING:
    from torch import Tensor

COLUMNS = ("class_id", "class_name", "prior", "method", "mean", "em", "positives", "negatives",
           "estimated_images", "deficiency")  # fmt: skip

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ClassPrior:
    """What is known of how often one class occurs."""

    class_id: str
    class_name: str
    prior: float
    """The estimate that is used, a share of the images."""
    method: str
    """How it was made: mean, em, running, calibrated, count or given."""
    mean: float = math.nan
    """Mean prediction of an Ignore-mode model."""
    em: float = math.nan
    """The same after correction for the share of positives the model was trained at."""
    positives: int = 0
    negatives: int = 0
    estimated_images: float = math.nan
    """Images that show the class, by the estimate."""

    @property
    def deficiency(self) -> float:
        """Estimated images for each annotated one: what the annotation lacks."""
        if self.positives:
            return self.estimated_images / self.positives
        return math.inf if self.estimated_images > 0 else math.nan


class Prior:
    """The prior of every class, keyed by class id.

    Example:
        >>> prior = Prior([ClassPrior(class_id="cat", class_name="Cat", prior=0.2, method="given")])
        >>> prior.align(ClassTable(["cat"])).tolist()
        [0.20000000298023224]
    """

    def __init__(self, classes: list[ClassPrior]) -> None:
        self.classes = {entry.class_id: entry for entry in classes}
        if len(self.classes) != len(classes):
            raise ValueError("a class is there twice")
        for entry in classes:
            if not 0 <= entry.prior <= 1:  # false for NaN too
                raise ValueError(
                    f"prior of {entry.class_id!r} must be in [0, 1], got {entry.prior}"
                )

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def values(self) -> Floats:
        """The priors, in order."""
        return np.array([entry.prior for entry in self.classes.values()])

    def aligned(self, classes: ClassTable) -> list[ClassPrior]:
        """The entry of each class of a table: by id, or all by name where a file has no ids."""
        return matched(self.classes, classes, what="the prior")

    def align(self, classes: ClassTable) -> Tensor:
        """The priors as a float32 tensor (C,) in the order of a class table."""
        import torch

        return torch.tensor([entry.prior for entry in self.aligned(classes)], dtype=torch.float32)

    def threshold(
        self,
        *,
        value: float | None = None,
        quantile: float | None = None,
        top_n: int | None = None,
    ) -> float:
        """The number for ``prior_threshold``: as it is, by share of classes, or for the n largest.

        An absolute value is fragile, since the level of a prior depends on how it was estimated.

        Example:
            >>> make = lambda i, p: ClassPrior(class_id=i, class_name=i, prior=p, method="given")
            >>> prior = Prior([make("a", 0.9), make("b", 0.5), make("c", 0.1)])
            >>> prior.threshold(top_n=1), prior.threshold(quantile=0.5)
            (0.5, 0.5)
        """
        given = [
            name
            for name, it in (("value", value), ("quantile", quantile), ("top_n", top_n))
            if it is not None
        ]
        if len(given) != 1:
            raise ValueError(
                f"give one of value, quantile and top_n, got {', '.join(given) or 'none'}"
            )
        # In float32, as the tensor of align() is: else a value could exceed itself.
        if value is not None:
            return float(np.float32(value))
        values = np.sort(self.values)[::-1]
        if quantile is not None:
            if not 0 <= quantile <= 1:
                raise ValueError(f"quantile must be between 0 and 1, got {quantile}")
            return float(np.float32(np.quantile(values, quantile)))
        if top_n is None or top_n < 0:
            raise ValueError(f"top_n must be at least 0, got {top_n}")
        return float(np.float32(values[top_n])) if top_n < len(values) else 0.0

    def write(self, path: str | Path) -> None:
        """Write as csv, in one step: a crash leaves what was there before."""
        rows = ([getattr(entry, name) for name in COLUMNS] for entry in self.classes.values())
        write_rows(path, COLUMNS, rows)

    @classmethod
    def read(cls, path: str | Path) -> Prior:
        """Read a csv: ours, or that of the paper's authors (``Classes,avg_pred``).

        Rows that cannot be read are left out with a warning; the published file ends in one.
        """
        header, rows = read_rows(path)
        id_column = next((name for name in ("class_id", "Classes") if name in header), None)
        value_column = next((name for name in ("prior", "avg_pred") if name in header), None)
        if id_column is None or value_column is None:
            fix = "expected class_id and prior, or Classes and avg_pred"
            raise DataError(f"no such columns in {header}", path=path, line=1, fix=fix)
        entries = [(line, _entry(row, id_column, value_column)) for line, row in rows]
        bad = [line for line, entry in entries if entry is None]
        if bad:
            warnings.warn(
                f"{path}: {len(bad)} rows left out, the first is line {bad[0]}", stacklevel=2
            )
        good = [entry for _, entry in entries if entry is not None]
        if not good:
            raise DataError("has no priors", path=path)
        try:
            return cls(good)
        except ValueError as error:
            raise DataError(str(error), path=path) from error


def count_prior(store: LabelStore) -> Prior:
    """The naive prior: annotated positives over images. Far too low where annotation is partial."""
    counts = store.counts()
    images = max(len(store), 1)
    columns = zip(
        store.classes.ids, store.classes.names, counts.positives, counts.negatives, strict=True
    )
    return Prior(
        [
            ClassPrior(
                class_id=i,
                class_name=name,
                prior=float(positives / images),
                method="count",
                positives=int(positives),
                negatives=int(negatives),
                estimated_images=float(positives),
            )
            for i, name, positives, negatives in columns
        ]
    )


def _entry(row: dict[str, str], id_column: str, value_column: str) -> ClassPrior | None:
    try:
        return ClassPrior(
            class_id=row[id_column],
            class_name=row.get("class_name", row[id_column]),
            prior=float(row[value_column]),
            method=row.get("method", "given"),
            mean=float(row.get("mean", "nan")),
            em=float(row.get("em", "nan")),
            positives=int(row.get("positives", "0")),
            negatives=int(row.get("negatives", "0")),
            estimated_images=float(row.get("estimated_images", "nan")),
        )
    except (KeyError, ValueError):
        return None
