"""A compare file read: every name, every value and every method's settings are checked first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from partlabel.compare.methods import (
    METHODS,
    Values,
    with_method,
    with_sections,
    without_useless_prior,
)
from partlabel.compare.plan import CompareSettings, Method, Plan, Sweep, SweepSettings
from partlabel.compare.schemes import Scheme
from partlabel.config import Config
from partlabel.config.runfile import put, read_toml
from partlabel.config.schema import KeyPath, Places, table
from partlabel.errors import suggest

SECTIONS = ("images", "model", "loss", "prior", "optim", "train")
"""What a method may have otherwise; data and evaluation are the same for all."""

_FIXED = {
    ("train", "seed"): "seeds are in [compare] seeds",
    ("images", "root"): "images are the same for all methods; set [images] root",
    ("images", "val_root"): "images are the same for all methods; set [images] val_root",
}
_NAME = re.compile(r"\w[\w.+-]{0,79}")
_RESERVED = "stage1"  # where first stages are kept that belong to no method alone


def read_plan(path: str | Path, sets: Iterable[str] = ()) -> Plan:
    """Read and check a compare file: every name, every value, every method's settings."""
    values = read_toml(path)
    places = Places(str(path), put(values, sets))
    if "compare" not in values:
        what = "is missing: say what to compare, as in methods = ['ignore', 'negative', 'csl']"
        raise places.error("compare", what=what, section=True)
    file = {key: value for key, value in values.items() if key != "compare"}
    settings = table(CompareSettings, values["compare"], places, ("compare",))
    return _Reader(file, settings, places, Path(path).stem).plan(values)


class _Reader:
    """Makes methods of a file and its [compare] section."""

    def __init__(self, file: Values, settings: CompareSettings, places: Places, name: str) -> None:
        self.file, self.settings, self.places, self.name = file, settings, places, name

    def plan(self, values: Values) -> Plan:
        """All of it, checked."""
        if isinstance(self.file.get("train"), dict) and "seed" in self.file["train"]:
            raise self.places.error("train", "seed", what="seeds are in [compare] seeds")
        base = self._config(Method("", "", self.file, self.places.known))
        for name in self.settings.define:
            self._config(self._defined(name))
        sweeps = [self._sweep(name) for name in self.settings.sweep]
        methods = {name: self._method(name) for name in self._once("methods")}
        for _, more in sweeps:
            methods.update({method.name: method for method in more})
        self._check_names(methods)
        return Plan(
            self.settings,
            base,
            methods,
            {name: self._config(method) for name, method in methods.items()},
            self._schemes(),
            tuple(sweep for sweep, _ in sweeps),
            values,
        )

    def _config(self, method: Method) -> Config:
        """The run of a method, its loss tried out."""
        made = deepcopy(method.values)
        if isinstance(made.setdefault("train", {}), dict):
            made["train"]["seed"] = self._once("seeds")[0]
        file = self.places.file
        config = Config.from_dict(made, place=file, name=self.name, known=method.known)
        _try_loss(config)
        return config

    def _method(self, name: str) -> Method:
        if name in self.settings.define:
            return self._defined(name)
        if name in METHODS:
            built_in = METHODS[name]
            made = without_useless_prior(with_method(self.file, built_in))
            return Method(name, built_in.title, made, self.places.known)
        known = [*self.settings.define, *METHODS]
        what = f"no such method as {name!r}; {suggest(name, known, most=30)}"
        raise self.places.error("compare", "methods", what=what)

    def _defined(self, name: str, seen: tuple[str, ...] = ()) -> Method:
        path = ("compare", "define", name)
        sections = self.settings.define[name]
        if not isinstance(sections, dict):
            what = f"must be a section [{'.'.join(path)}]"
            raise self.places.error(*path, what=what)
        if name in METHODS:
            what = "is the name of a built-in method; choose another"
            raise self.places.error(*path, what=what, section=True)
        if not _NAME.fullmatch(name) or name == _RESERVED:
            what = "must be a name of letters, digits, _ . + -, and not stage1"
            raise self.places.error(*path, what=what, section=True)
        inner = dict(sections)
        base = self._based_on(inner.pop("based_on", None), path, (*seen, name))
        title = inner.pop("title", name)
        if not isinstance(title, str) or not title.strip():
            raise self.places.error(*path, "title", what="must be text")
        known = self._over(base, inner, path)
        made = without_useless_prior(with_sections(base.values, inner))
        return Method(name, title, made, known)

    def _based_on(self, name: Any, path: KeyPath, seen: tuple[str, ...]) -> Method:
        """The method that another one changes: the file itself, if none is named."""
        if name is None:
            return Method("", "", self.file, self.places.known)
        if name in seen:
            what = f"is based on itself ({' -> '.join([*seen, name])})"
            raise self.places.error(*path, "based_on", what=what)
        if isinstance(name, str) and name in self.settings.define:
            return self._defined(name, seen)
        if isinstance(name, str) and name in METHODS:
            return self._method(name)
        fix = suggest(str(name), [*self.settings.define, *METHODS], most=30)
        what = f"no such method as {name!r}; {fix}"
        raise self.places.error(*path, "based_on", what=what)

    def _over(self, base: Method, sections: Values, path: KeyPath) -> dict[KeyPath, str]:
        """Refuse what no method may change; give the places of what this one does."""
        known = dict(base.known)
        for section, keys in sections.items():
            if section not in SECTIONS:
                what = f"no such section here; {suggest(section, SECTIONS)}"
                raise self.places.error(*path, section, what=what)
            if not isinstance(keys, dict):
                what = f"must be a section [{'.'.join((*path, section))}]"
                raise self.places.error(*path, section, what=what)
            for inner in _paths(keys, (section,)):
                if inner in _FIXED:
                    raise self.places.error(*path, *inner, what=_FIXED[inner])
                known[inner] = self.places(*path, *inner)
        return known

    def _sweep(self, name: str) -> tuple[Sweep, list[Method]]:
        path = ("compare", "sweep", name)
        if not _NAME.fullmatch(name):
            what = "must be a name of letters, digits, _ . + -"
            raise self.places.error(*path, what=what, section=True)
        swept = table(SweepSettings, self.settings.sweep[name], self.places, path)
        base = self._based_on(swept.based_on, path, ())
        key = tuple(swept.key.split("."))
        if len(key) < 2 or not all(key):
            what = f"must be SECTION.KEY, as in loss.params.top_k, got {swept.key!r}"
            raise self.places.error(*path, "key", what=what)
        if not swept.values:
            raise self.places.error(*path, "values", what="must be a list of values, got none")
        methods = []
        for value in swept.values:
            sections: Any = value
            for part in reversed(key):
                sections = {part: sections}
            self._over(base, sections, (*path, "key"))
            made = without_useless_prior(with_sections(base.values, sections))
            known = {**base.known, key: self.places(*path, "values")}
            said = str(value).lower() if isinstance(value, bool) else str(value)
            methods.append(Method(f"{name}={said}", f"{name} = {said}", made, known))
        names = tuple(method.name for method in methods)
        if len(set(names)) < len(names):
            raise self.places.error(*path, "values", what="a value is there twice")
        title = swept.title or swept.key
        return Sweep(name, title, swept.key, swept.values, names, swept.based_on), methods

    def _schemes(self) -> tuple[Scheme, ...]:
        try:
            found = tuple(Scheme.read(text) for text in self._once("schemes"))
        except ValueError as error:
            raise self.places.error("compare", "schemes", what=str(error)) from None
        if len(set(found)) < len(found):
            raise self.places.error("compare", "schemes", what="a scheme is there twice")
        return found

    def _once(self, key: str) -> tuple[Any, ...]:
        listed: tuple[Any, ...] = getattr(self.settings, key)
        if not listed and not (key == "methods" and self.settings.sweep):
            raise self.places.error("compare", key, what="must name at least one, got none")
        for each in listed:
            if listed.count(each) > 1:
                raise self.places.error("compare", key, what=f"{each!r} is there twice")
        return listed

    def _check_names(self, methods: Mapping[str, Method]) -> None:
        folded: dict[str, str] = {}
        for name in methods:
            other = folded.setdefault(name.casefold(), name)
            if other != name:  # their folders would be one on some systems
                what = f"{name!r} and {other!r} differ in capitals alone; rename one"
                raise self.places.error("compare", "methods", what=what)
        baseline = self.settings.baseline
        if baseline is not None and baseline not in methods:
            what = f"{baseline!r} is not among the methods; {suggest(baseline, methods)}"
            raise self.places.error("compare", "baseline", what=what)


def _try_loss(config: Config) -> None:
    """Make the loss once, for what it says about its settings; data and prior are made up."""
    import torch

    known: dict[str, Any] = {"num_images": 1, "num_classes": 4, "epochs": config.train.epochs}
    if config.needs_prior:
        known["prior"] = torch.zeros(4)
    given = {key: value for key, value in known.items() if key not in config.loss.params}
    config.build_loss(**given)


def _paths(values: Values, start: KeyPath) -> Iterator[KeyPath]:
    for key, value in values.items():
        yield (*start, key)
        if isinstance(value, dict):
            yield from _paths(value, (*start, key))
