"""The validation set of a run: models scored on it, and what is written about the last one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from partlabel.config import Config
from partlabel.errors import suggest
from partlabel.metrics import AveragePrecision, bootstrap, choose_thresholds
from partlabel.model import Classifier
from partlabel.training.dataset import Skipped
from partlabel.training.rundata import Part
from partlabel.training.runfolder import RunFolder
from partlabel.training.scoring import Seen, chosen_precision, score
from partlabel.training.supplies import Supplies
from partlabel.training.writing import write_class_table, write_pairs


@dataclass(frozen=True)
class Validation:
    """Scores models on the validation set of a run; every process must take part."""

    config: Config
    part: Part
    supplies: Supplies
    folder: RunFolder
    _warned: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._named()  # a class that does not exist shows now, not after the first epoch

    def __call__(self, models: dict[str, Classifier]) -> dict[str, dict[str, Any]]:
        """For each model the numbers that are logged."""
        return {name: self.numbers(metric) for name, metric in self.score(models).items()}

    def score(self, models: dict[str, Classifier]) -> dict[str, AveragePrecision]:
        """Score models; each image is read once."""
        settings, processes = self.config.eval, self.supplies.processes
        count = len(self.part.store.classes)
        skipped: list[Skipped] = []
        metrics = score(
            models,
            self.part,
            self.supplies.of(self.config, self.part, training=False).listed,
            processes=processes,
            precision=chosen_precision(self.config.train.precision, processes.device),
            make_metric=lambda: AveragePrecision(count, ties=settings.ties, policy=settings.policy),
            seen_by=Seen(
                self.supplies.counting("evaluation", len(self.part.store)), skipped.extend
            ),
        )
        self.supplies.report(skipped, self.part, self.folder, "skipped-val.csv")
        return metrics

    def numbers(self, metric: AveragePrecision) -> dict[str, Any]:
        """What is logged about one model."""
        with self._warnings():
            result = metric.compute()
        found: dict[str, Any] = {
            "map_c": result.map_c,
            "map_o": result.map_o,
            "n_valid": result.n_valid,
        }
        for name, index in self._named().items():
            found[f"ap_{name}"] = float(result.per_class[index])
        return found

    @contextmanager
    def _warnings(self) -> Iterator[None]:
        """Say what we warn of, once."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            yield
        for text in {str(warning.message) for warning in said} - self._warned:
            what = f"warning: {self.part.name}, which is evaluated on: {text}"
            cure = "for numbers evaluate on more images: import --val 0.3, or data.val=OTHER.labels"
            self.supplies.watcher.say(f"{what}; {cure}")
            self._warned.add(text)

    def _named(self) -> dict[str, int]:
        """The classes whose AP is wanted, by id or name."""
        classes = self.part.store.classes
        known = {name: i for i, name in enumerate(classes.names)} | dict(classes.index)
        for name in self.config.eval.classes:
            if name not in known:
                what = f"no class {name!r}; {suggest(name, known)}"
                raise self.config.error("eval", "classes", what=what)
        return {name: known[name] for name in self.config.eval.classes}

    def write(self, metric: AveragePrecision) -> dict[str, Any]:
        """Write predictions, thresholds and the table of classes; gives intervals, if wanted."""
        found: dict[str, Any] = {}
        samples = self.config.eval.bootstrap
        if samples:
            sure = bootstrap(metric, samples=samples, seed=self.config.train.seed)
            found = {"map_c_interval": list(sure.map_c), "map_o_interval": list(sure.map_o)}
        with self._warnings():
            store, pairs, result = self.part.store, metric.collect(), metric.compute()
            thresholds = choose_thresholds(metric, store.classes)
        folder = self.folder.path
        if self.supplies.processes.main:
            write_pairs(folder / "predictions.parquet", pairs, store)
            thresholds.write(folder / "thresholds.csv")
            write_class_table(folder / "classes.csv", result, store)
        return found
