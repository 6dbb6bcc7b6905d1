"""One line per class: how it is annotated, how frequent it is, and how well each method does."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from partlabel.compare.methods import METHODS
from partlabel.config import Config
from partlabel.errors import UsageError
from partlabel.metrics import Thresholds
from partlabel.report.material import Cell, Material
from partlabel.store import LabelStore
from partlabel.summary import summarise
from partlabel.training.rundata import training_labels


@dataclass(frozen=True, kw_only=True)
class ClassLine:
    """What is known of a class; NaN is what is not."""

    class_id: str
    name: str
    positives: float = math.nan
    negatives: float = math.nan
    annotated: float = math.nan
    """Images where it is annotated present, as a share of the training images."""
    prior: float = math.nan
    truth: float = math.nan
    aps: dict[str, float] = field(default_factory=dict)
    """Average precision by method, the mean over seeds."""
    threshold: float = math.nan
    """Probability from which it is predicted; infinite: never."""

    @property
    def frequency(self) -> float:
        """The best that is known of how often it occurs."""
        known = (self.truth, self.prior, self.annotated)
        return next((value for value in known if math.isfinite(value)), 0.0)


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The training labels of the main cell."""

    store: LabelStore
    facts: dict[str, Any]
    config: Config


def main_cell(material: Material) -> Cell | None:
    """The training the details are of: CSL or one with a prior, main scheme, first seed."""
    if material.kind == "run":
        return material.cells[0]
    cells = sorted(material.of(material.main_scheme), key=lambda cell: cell.seed)
    seeds = [cell for cell in cells if cell.seed == cells[0].seed]
    wanted = [cell for cell in seeds if cell.method == "csl"] or [
        cell for cell in seeds if cell.prior is not None
    ]
    return next(iter(wanted or seeds), None)


def cell_config(material: Material, cell: Cell) -> Config | None:
    """The settings of one training."""
    if material.kind == "run":
        return material.config
    if cell.folder is None or not (cell.folder / "config.toml").is_file():
        return None
    return Config.read(cell.folder / "config.toml")


def losses_with_prior(material: Material) -> set[str]:
    """The losses of the trainings that have a prior, as far as that is known."""
    found = set()
    for cell in (cell for cell in material.cells if cell.prior is not None):
        if material.kind == "compare" and cell.method in METHODS:
            found.add(METHODS[cell.method].loss)
        else:
            with material.gaps.noting(f"The settings of {cell.title}"):
                config = cell_config(material, cell)
                found |= set() if config is None else {config.loss.name}
    return found


def read_labels(material: Material, cell: Cell) -> Labels:
    """Open the labels that a training learnt from."""
    config = cell_config(material, cell)
    if config is None:
        lost = "is gone" if cell.folder is None else "has no config.toml"
        raise UsageError(f"the run folder of {cell.title} {lost}, and with it where its labels are")
    store = training_labels(config).store
    return Labels(store=store, facts=summarise(store), config=config)


def class_lines(material: Material, cell: Cell | None, labels: Labels | None) -> list[ClassLine]:
    """A line per class of the main scheme, in the order of the labels."""
    scheme = material.main_scheme
    cells = material.of(scheme)
    names: dict[str, str] = {}
    if labels is not None:
        names = dict(zip(labels.store.classes.ids, labels.store.classes.names, strict=True))
    for each in cells:
        names = {**each.names, **names}
    prior = _prior(cells, cell)
    names = {**{i: entry[1] for i, entry in prior.items()}, **names}
    counts = _counts(labels)
    thresholds: dict[str, float] = {}
    if cell is not None:
        with material.gaps.noting("Thresholds"):
            thresholds = _thresholds(cell)
    truth = material.truth
    if not truth and labels is not None and labels.store.complete:
        truth = {i: line[2] for i, line in counts.items()}
    nothing = (math.nan, math.nan, math.nan)
    lines = []
    for class_id, name in names.items():
        positives, negatives, annotated = counts.get(class_id, nothing)
        lines.append(
            ClassLine(
                class_id=class_id,
                name=name,
                positives=positives,
                negatives=negatives,
                annotated=annotated,
                prior=prior.get(class_id, (math.nan, ""))[0],
                truth=truth.get(class_id, math.nan),
                aps=_aps(cells, class_id),
                threshold=thresholds.get(class_id, math.nan),
            )
        )
    return lines


def _prior(cells: list[Cell], cell: Cell | None) -> dict[str, tuple[float, str]]:
    """The prior of the main cell, or of the first that has one."""
    with_prior = [c for c in ([cell] if cell is not None else []) + cells if c.prior is not None]
    if not with_prior or with_prior[0].prior is None:
        return {}
    return {i: (e.prior, e.class_name) for i, e in with_prior[0].prior.classes.items()}


def _counts(labels: Labels | None) -> dict[str, tuple[float, float, float]]:
    if labels is None:
        return {}
    counts, images = labels.store.counts(), max(len(labels.store), 1)
    columns = (labels.store.classes.ids, counts.positives.tolist(), counts.negatives.tolist())
    return {i: (p, n, p / images) for i, p, n in zip(*columns, strict=True)}


def _aps(cells: list[Cell], class_id: str) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for cell in cells:
        value = cell.aps.get(class_id, math.nan)
        if math.isfinite(value):
            found.setdefault(cell.method, []).append(value)
    return {method: sum(values) / len(values) for method, values in found.items()}


def _thresholds(cell: Cell) -> dict[str, float]:
    path = None if cell.folder is None else cell.folder / "thresholds.csv"
    if path is None or not path.is_file():
        return {}
    found = Thresholds.read(path)
    with np.errstate(over="ignore"):
        values = np.where(np.isposinf(found.values), np.inf, 1 / (1 + np.exp(-found.values)))
    return dict(zip((entry.class_id for entry in found.entries), values.tolist(), strict=True))


def by_frequency(lines: list[ClassLine]) -> list[ClassLine]:
    """The most frequent first."""
    return sorted(lines, key=lambda line: (-line.frequency, line.class_id))


def frequent_ones(material: Material, lines: list[ClassLine]) -> list[ClassLine]:
    """The classes that count as frequent: those of the comparison, or the first tenth."""
    order = by_frequency(lines)
    if material.frequent:
        return [line for line in order if line.class_id in material.frequent]
    return order[: max(1, len(order) // 10)]
