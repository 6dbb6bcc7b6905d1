"""A run as typed, checked, immutable settings: a TOML file and ``--set``, written back complete.

The sections are in settings.py. Every mistake is a ConfigError of one line: file (or option),
section and key, what will do, and what was probably meant.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tomli_w

from partlabel.config.kinds import ASIDE, matching
from partlabel.config.runfile import put, read_toml
from partlabel.config.schema import KeyPath, Places, keys_of, plain, table
from partlabel.config.settings import (
    DataSettings,
    EvalSettings,
    ImageSettings,
    LossSettings,
    ModelSettings,
    OptimSettings,
    PriorSettings,
    TrainSettings,
    with_preset,
)
from partlabel.errors import ConfigError, StoreError, suggest

if TYPE_CHECKING:
    from partlabel.losses import PartialLoss

STAGE1 = ("images", "model", "optim", "train")
"""Sections that the first stage may have otherwise."""

_NAME = matching(r"[^\x00-\x1f/\\.][^\x00-\x1f/\\]*", "a name without slashes, not begun by a dot")


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run. Made by ``read``, ``from_dict`` and ``replaced``, which check them.

    Example:
        >>> config = Config.from_dict({"data": {"train": "a.labels"}, "train": {"epochs": 3}})
        >>> config.train.epochs, config.model.backbone, str(config.out)
        (3, 'tresnet_m', 'outputs/run')
        >>> config.replaced(train={"compile": "yes"})
        Traceback (most recent call last):
            ...
        partlabel.errors.ConfigError: settings [train] compile: must be true or false, got 'yes'; \
write true
    """

    name: Annotated[str, _NAME, ASIDE]
    """Default: the name of the file."""
    out: Annotated[Path, ASIDE]
    """The run's folder; default: outputs/NAME."""
    data: DataSettings
    images: ImageSettings = field(default_factory=ImageSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    prior: PriorSettings = field(default_factory=PriorSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    eval: EvalSettings = field(default_factory=EvalSettings)
    places: Places = field(default=Places("settings"), compare=False, repr=False)

    @classmethod
    def read(cls, path: str | Path, sets: Iterable[str] = ()) -> Config:
        """Read a run file.

        Args:
            path: The file.
            sets: What ``--set`` says: ``train.epochs=3``; a value is TOML, or a bare word as text.
                The bare word ``default`` takes a key out of the file.
        """
        values = read_toml(path)
        return cls.from_dict(values, place=str(path), name=Path(path).stem, sets=sets)

    @classmethod
    def from_dict(
        cls,
        values: Mapping[str, Any],
        *,
        place: str = "settings",
        name: str = "run",
        sets: Iterable[str] = (),
        known: Mapping[KeyPath, str] | None = None,
    ) -> Config:
        """Make of nested tables, as a file has them; ``place`` stands for the file in errors.

        ``known`` says for single keys that they come from elsewhere.
        """
        found = deepcopy(dict(values))
        places = Places(place, {**(known or {}), **put(found, sets)}, _homes())
        if "compare" in found:
            what = f"is for partlabel compare {place}; to train once, take the section out"
            raise places.error("compare", what=what, section=True)
        return cls._checked({"name": name, **found}, places)

    @classmethod
    def _checked(cls, values: dict[str, Any], places: Places) -> Config:
        values.setdefault("out", str(Path("outputs") / str(values["name"])))
        config = replace(table(cls, with_preset(values), places), places=places)
        _check_together(config)
        config.stage1()  # so that its mistakes show now, not when it begins
        return config

    def replaced(self, **sections: Any) -> Config:
        """A copy with other values; those that are None go back to their defaults.

        Example:
            >>> config = Config.from_dict({"data": {"train": "a.labels"}})
            >>> config.replaced(loss={"name": "ce", "params": {}}, train={"seed": 1}).loss.name
            'ce'
        """
        values = self.to_dict()
        if "preset" in sections.get("train", {}):
            raise ValueError(
                "a preset is for the defaults of a file: read it with train.preset=..."
            )
        for key, new in sections.items():
            if isinstance(new, Mapping) and isinstance(values.get(key), dict):
                new = {**values[key], **new}
                new = {inner: each for inner, each in new.items() if each is not None}
            values[key] = new
        return self._checked(values, self.places)

    def stage1(self) -> Config:
        """The settings of the first stage: Ignore mode, or what auto asks; and [prior.stage1]."""
        values, known = self.to_dict(), dict(self.places.known)
        for section, keys in self.prior.stage1.items():
            path = ("prior", "stage1", section)
            if section not in STAGE1:
                raise self.error(*path, what=f"no such section here; {suggest(section, STAGE1)}")
            if not isinstance(keys, dict):
                raise self.error(*path, what=f"must be a section [{'.'.join(path)}]")
            if "preset" in keys:
                raise self.error(*path, "preset", what="has no effect here; set [train] preset")
            values[section].update(keys)
            known.update({(section, key): self.places(*path, key) for key in keys})
        kept = self._of_all_losses
        values["loss"] = {"name": "ce", "params": {**kept, "unknown": "ignore"}}
        values["prior"] = {"source": "none"}
        if self.needs_posterior:
            # Ranks by the paper's loss, and has a head in Ignore mode beside it to count by.
            focus = {"gamma_pos": 0, "gamma_neg": 1, "gamma_unknown": 4}
            values["loss"] = {"name": "selective", "params": {**kept, **focus}}
            values["prior"] = {"source": "online"}
        if self.needs_posterior or self.prior.use == "calibrated":
            values["train"]["hold_out"] = True
        values.update(name=f"{self.name}-stage1", out=plain(self.out / "stage1"))
        places = replace(self.places, known=known, homes=_homes("prior.stage1."))
        config = replace(table(Config, values, places), places=places)
        _check_together(config)
        return config

    def untold(self) -> Config:
        """The settings where the loss would be told of unknown labels and cannot be: hill's."""
        return replace(self, loss=replace(self.loss, name="hill", params=self._of_all_losses))

    @property
    def _of_all_losses(self) -> dict[str, Any]:
        """The settings of the loss that any other has too."""
        return {key: self.loss.params[key] for key in ("reduction",) if key in self.loss.params}

    def to_dict(self) -> dict[str, Any]:
        """All settings as nested tables, as a file has them; what is left open is not there."""
        return dict(plain(self))

    def to_toml(self) -> str:
        """All settings as a run file."""
        return tomli_w.dumps(self.to_dict())

    def write(self, path: str | Path) -> None:
        """Write a run file in one step: a crash leaves what was there before."""
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("w", encoding="utf-8", newline="\n") as file:
                file.write(self.to_toml())
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise StoreError(f"{path}: cannot be written ({error.strerror or error})") from error

    def flat(self) -> dict[str, Any]:
        """What decides the result, as ``{"train.epochs": 30, ...}``: no output, log or worker."""
        return dict(_flat(plain(self, aside=False)))

    def hash(self) -> str:
        """Sixteen digits that are the same for settings that give the same result."""
        same = {  # 4 and 4.0 are
            key: int(value) if isinstance(value, float) and value.is_integer() else value
            for key, value in self.flat().items()
        }
        return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]

    def error(self, *path: str, what: str) -> ConfigError:
        """An error about a setting, for those who find out later: ``error("data", "val", ...)``."""
        return self.places.error(*path, what=what)

    @property
    def needs_prior(self) -> bool:
        """Whether the loss takes a prior, and there is to be one."""
        from partlabel.losses import LOSSES, settings_of

        name = self.loss.name
        return self.prior.source != "none" and name in LOSSES and "prior" in settings_of(name)

    @property
    def needs_posterior(self) -> bool:
        """Whether the loss wants to be told how probably unknown labels are present."""
        from partlabel.losses import takes_posterior

        return takes_posterior(self.loss.name)

    def build_loss(self, **known: Any) -> PartialLoss:
        """Make the loss; what it does not like about its settings is a ConfigError.

        Args:
            known: What follows from data, prior or run, such as num_classes, num_images, prior
                and prior_threshold; a loss gets those that it has.
        """
        from partlabel.losses import LOSSES, build_loss, settings_of

        if self.loss.name not in LOSSES:
            fix = suggest(self.loss.name, LOSSES, most=20)
            raise self.error("loss", "name", what=f"no such loss as {self.loss.name!r}; {fix}")
        given = {key: known[key] for key in settings_of(self.loss.name) if key in known}
        for key in given.keys() & self.loss.params.keys():
            raise self.error("loss", "params", key, what="is filled in; leave it out")
        try:
            return build_loss(self.loss.name, **self.loss.params, **given)
        except ValueError as error:
            what = str(error)
            if any(key not in settings_of(self.loss.name) for key in self.loss.params):
                what += "; settings of another loss are left out with --set 'loss.params={}'"
            raise self.error("loss", "params", what=what) from error


def _check_together(config: Config) -> None:
    """Refuse settings that are fine alone but not side by side."""
    prior, params = config.prior, config.loss.params
    rules = [key for key in ("threshold", "quantile", "top_n") if getattr(prior, key) is not None]
    if len(rules) > 1:
        what = "only one of threshold, quantile and top_n can be there"
        raise config.error("prior", rules[1], what=f"{what}; leave out {rules[0]}, or this")
    if rules and "prior_threshold" in params:
        what = "[loss.params] prior_threshold is there too; leave it out, or this"
        raise config.error("prior", rules[0], what=what)
    if "prior" in params:
        what = 'the prior is named in [prior]: source = "FILE.csv"'
        raise config.error("loss", "params", "prior", what=what)
    if config.needs_posterior and prior.source != "estimate":
        what = f'must be "estimate" for the loss {config.loss.name}, which estimates all by itself'
        raise config.error("prior", "source", what=f"{what}; leave it out")
    if prior.use == "calibrated" and prior.source == "online":
        what = 'cannot be "calibrated" with source = "online": no annotations are held out there'
        raise config.error("prior", "use", what=what)
    if params.get("reduction") == "none":
        what = "has no one number to train with; say mean or sum"
        raise config.error("loss", "params", "reduction", what=what)
    if config.images.device_resident and config.images.augment == "timm":
        what = 'cannot be true with augment = "timm"; that has no operations for the device'
        raise config.error("images", "device_resident", what=what)


def _homes(prefix: str = "") -> dict[str, str]:
    """For every key the place where it belongs, or the places."""
    homes: dict[str, str] = {}
    for section, (kind, _) in keys_of(Config).items():
        for key in keys_of(kind.types[0]) if kind.section else ():
            place = f"[{prefix}{section}] {key}"
            homes[key] = f"{homes[key]} or {place}" if key in homes else place
    return homes


def _flat(values: dict[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{start}{key}.")
        else:
            yield f"{start}{key}", value
