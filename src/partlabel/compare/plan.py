"""What is compared: a run file, and which methods, schemes and seeds it is trained with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from partlabel.compare.methods import Values
from partlabel.compare.schemes import Scheme
from partlabel.config import Config
from partlabel.config.kinds import within
from partlabel.config.schema import KeyPath
from partlabel.config.settings import Count, Scalar
from partlabel.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """[compare]: what is compared."""

    methods: tuple[str, ...] = ()
    """Built in, or defined in the file; those of sweeps come of themselves."""
    schemes: tuple[str, ...] = ("given",)
    """given, complete, fpc:N, rpa:P, single-positive, drop-positives:P."""
    seeds: tuple[Annotated[int, within(at_least=0)], ...] = (0,)
    """Of the labels that are left, and of the training."""
    baseline: str | None = None
    """The method that the others are compared with; left out, the first."""
    frequent: Count | None = None
    """How many classes are "the frequent ones"; left out, a tenth."""
    keep: Literal["all", "first", "none"] = "first"
    """Whose checkpoints stay when a run is finished: all, those of the first seed, none."""
    define: dict[str, Any] = field(default_factory=dict)
    sweep: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """[compare.sweep.NAME]: one setting at several values."""

    key: str
    """Which, as in loss.params.top_k."""
    values: tuple[Scalar, ...]
    based_on: str | None = None
    """The method; left out, the file as it is."""
    title: str | None = None
    """Of the axis; left out, the key."""


@dataclass(frozen=True)
class Method:
    """One column of the comparison."""

    name: str
    title: str
    values: Values
    """A run file's."""
    known: Mapping[KeyPath, str]
    """Where settings come from that are not the file's own, for errors."""


@dataclass(frozen=True)
class Sweep:
    """An axis: methods that differ in one setting."""

    name: str
    title: str
    key: str
    values: tuple[Any, ...]
    methods: tuple[str, ...]
    """One for each value."""
    based_on: str | None


@dataclass(frozen=True)
class Plan:
    """A compare file, read and checked; no data was looked at."""

    settings: CompareSettings
    base: Config
    """The run file without [compare]."""
    methods: dict[str, Method]
    """Those that are compared, by name."""
    configs: dict[str, Config]
    """The run of each method, with the first seed."""
    schemes: tuple[Scheme, ...]
    sweeps: tuple[Sweep, ...]
    values: Values
    """All the file says, with what options put over it."""

    @property
    def baseline(self) -> str:
        """The method that the others are compared with."""
        return self.settings.baseline or next(iter(self.methods))

    def error(self, key: str, what: str) -> ConfigError:
        """An error about a key of [compare]."""
        return self.base.error("compare", key, what=what)
