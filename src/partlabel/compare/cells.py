"""Cells: one method with one scheme and one seed, known by what decides their result."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from partlabel.compare.data import CompareData
from partlabel.compare.plan import Plan
from partlabel.compare.schemes import Scheme
from partlabel.config import Config

_ELSEWHERE = ("images.root", "images.val_root")
"""Settings that say where things are on this machine."""
_WORDS = ("estimate", "online", "none", "pretrained")  # anything else is a path


@dataclass(frozen=True)
class First:
    """The first stage of a cell: an Ignore run that its prior is estimated by."""

    key: str
    folder: Path
    """Where it is trained if no cell is the same run."""
    cell: Cell | None
    """The cell that is the same run."""


@dataclass(frozen=True)
class Cell:
    """One method, scheme and seed."""

    method: str
    title: str
    scheme: Scheme
    seed: int
    key: str
    """Sixteen digits of what decides the result; the name of the method is not among it."""
    config: Config
    """As it is trained: with the labels of the scheme, and the prior as a file."""
    first: First | None = None

    @property
    def folder(self) -> Path:
        """The run folder; cells with the same key share one."""
        return self.config.out

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.method}, {self.scheme}, seed {self.seed}"


def run_folder(out: Path, method: str, scheme: str, seed: int) -> Path:
    """Where a cell's run is kept.

    Example:
        >>> run_folder(Path("out"), "k=5", "fpc:100", 0).as_posix()
        'out/runs/k=5/fpc-100/seed0'
    """
    return out / "runs" / safe_name(method) / scheme.replace(":", "-") / f"seed{seed}"


def safe_name(name: str) -> str:
    """A name as part of a path on any system; names that differ stay different.

    Example:
        >>> safe_name("csl_big"), safe_name("weights=a/b.pth")
        ('csl_big', 'weights=a-b.pth-e958c3')
    """
    clean = re.sub(r"[^A-Za-z0-9_.=+-]", "-", name)[:80]
    if clean == name and not clean.startswith("."):
        return clean
    return f"{clean.lstrip('.')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


class CellMaker:
    """Makes the cells of a plan for the data that it names.

    Args:
        plan: The compare file.
        data: Its labels.
        out: The folder of the comparison.
    """

    def __init__(self, plan: Plan, data: CompareData, out: Path) -> None:
        self.plan, self.data, self.out = plan, data, out

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells in the order in which they are run: first stages before who needs them."""
        found = []
        for seed in self.plan.settings.seeds:
            for scheme in self.plan.schemes:
                found += self._of(scheme, seed)
        return found

    def _of(self, scheme: Scheme, seed: int) -> list[Cell]:
        made: dict[str, Cell] = {}
        wanted: dict[str, tuple[Config, str]] = {}
        for method in self.plan.methods.values():
            own = self.plan.configs[method.name].replaced(train={"seed": seed})
            wanted[method.name] = own, self.key(own, scheme, seed)
        stages = {self._first_key(config, scheme, seed) for config, _ in wanted.values()}
        order = sorted(wanted, key=lambda name: wanted[name][1] not in stages)
        for name in order:
            config, key = wanted[name]
            same = next((cell for cell in made.values() if cell.key == key), None)
            folder = run_folder(self.out, name, str(scheme), seed) if same is None else same.folder
            first = self._first(config, scheme, seed, made)
            config = self._here(config, scheme, seed, folder)
            if first is not None:
                config = config.replaced(prior={"source": str(self.prior_file(key))})
            title = self.plan.methods[name].title
            made[name] = Cell(name, title, scheme, seed, key, config, first)
        # In the order of the file but for first stages, whose checkpoints others need.
        return list(made.values())

    def prior_file(self, key: str) -> Path:
        """Where the prior of a cell is kept."""
        return self.out / "priors" / f"{key}.csv"

    def _here(self, config: Config, scheme: Scheme, seed: int, folder: Path) -> Config:
        """The settings with paths of this machine."""
        cache = config.images.cache or self.out / "cache"
        more: dict[str, Any] = {}
        if scheme.simulated:
            more["data"] = {
                "train": str(self.store_file(scheme, seed)),
                "split": self.data.train.split,
                "val": str(self.data.val.path),
                "val_split": self.data.val.split,
            }
        name = "-".join(folder.parts[-3:])
        return config.replaced(name=name, out=str(folder), images={"cache": str(cache)}, **more)

    def store_file(self, scheme: Scheme, seed: int) -> Path:
        """Where the labels that a scheme leaves are kept."""
        return self.out / "stores" / f"{scheme.file_name}-seed{seed}.labels"

    def _first_key(self, config: Config, scheme: Scheme, seed: int) -> str | None:
        if not config.needs_prior or config.prior.source != "estimate":
            return None
        sample = config.prior.sample
        key = self.key(config.stage1(), scheme, seed)
        return key if sample is None else f"{key}-sample{sample}"

    def _first(
        self, config: Config, scheme: Scheme, seed: int, made: dict[str, Cell]
    ) -> First | None:
        key = self._first_key(config, scheme, seed)
        if key is None:
            return None
        same = next((cell for cell in made.values() if cell.key == key), None)
        folder = run_folder(self.out, "stage1", str(scheme), seed) / key
        return First(key, folder, same)

    def key(self, config: Config, scheme: Scheme, seed: int) -> str:
        """Sixteen digits of what decides the result, the same on any machine."""
        flat: dict[str, Any] = {
            key: int(value) if isinstance(value, float) and value.is_integer() else value
            for key, value in config.flat().items()
            if not key.startswith("data.") and key not in _ELSEWHERE
        }
        for name in ("prior.source", "model.weights"):
            if flat[name] not in _WORDS:
                flat[name] = self.data.content(Path(flat[name]))
        flat |= {"scheme": str(scheme), "seed": seed, "labels": self.data.fingerprints}
        return hashlib.sha256(json.dumps(flat, sort_keys=True).encode()).hexdigest()[:16]
