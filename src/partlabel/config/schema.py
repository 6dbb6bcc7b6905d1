"""Sections of settings as dataclasses: made from what a file says, and turned back into that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from partlabel.config.kinds import Kind, kind_of, shown
from partlabel.errors import ConfigError, suggest

KeyPath = tuple[str, ...]
S = TypeVar("S")


@dataclass(frozen=True)
class Places:
    """Where settings come from, so that an error can say so.

    Example:
        >>> print(Places("run.toml").error("train", "epochs", what="is odd"))
        run.toml [train] epochs: is odd
    """

    file: str
    known: Mapping[KeyPath, str] = field(default_factory=dict)
    """Places of what is not where its path says: it came from an option or another section."""
    homes: Mapping[str, str] = field(default_factory=dict)
    """For every key the place where it belongs, for those who put it elsewhere."""

    def __call__(self, *path: str, section: bool = False) -> str:
        """The place of a key, or of a section."""
        if path in self.known:
            return self.known[path]
        *sections, key = path
        if section:
            return f"{self.file} [{'.'.join(path)}]"
        return f"{self.file} [{'.'.join(sections)}] {key}" if sections else f"{self.file} {key}"

    def error(self, *path: str, what: str, section: bool = False) -> ConfigError:
        """An error that names the place."""
        return ConfigError(f"{self(*path, section=section)}: {what}")

    def unknown(self, *path: str, keys: Iterable[str], section: bool = False) -> ConfigError:
        """An error for a key or section that does not exist."""
        home = None if section else self.homes.get(path[-1])
        fix = f"it is {home}" if home else suggest(path[-1], keys, most=20)
        what = f"no such {'section' if section else 'key'}; {fix}"
        return self.error(*path, what=what, section=section)


def keys_of(section: Any) -> dict[str, tuple[Kind, Any]]:
    """The keys of a section, with kinds and defaults; a field that is not compared is none."""
    return _keys_of(section)


@cache
def _keys_of(section: Any) -> dict[str, tuple[Kind, Any]]:
    annotations = get_type_hints(section, include_extras=True)
    return {
        entry.name: (
            kind_of(annotations[entry.name]),
            entry.default if entry.default_factory is MISSING else entry.default_factory(),
        )
        for entry in fields(section)
        if entry.compare
    }


def table(section: type[S], values: Any, places: Places, path: KeyPath = ()) -> S:
    """Make a section of what a file says, and the sections within it."""
    if not isinstance(values, dict):
        name = ".".join(path)
        double = isinstance(values, list)
        fix = f"write [{name}], not [[{name}]]" if double else f"its keys go below [{name}]"
        raise places.error(*path, what=f"must be a section, got {shown(values)}; {fix}")
    keys = keys_of(section)
    for key, value in values.items():
        if key not in keys:
            whole = not path and isinstance(value, dict)
            raise places.unknown(*path, key, keys=keys, section=whole)
    made: dict[str, Any] = {}
    for key, (kind, default) in keys.items():
        if kind.section:
            made[key] = table(kind.types[0], values.get(key, {}), places, (*path, key))
        elif key in values:
            made[key] = _checked(values[key], kind, places, (*path, key), default)
        elif default is MISSING:
            raise places.error(*path, key, what=f"is missing; it must be {kind.words}")
    return section(**made)


def _checked(value: Any, kind: Kind, places: Places, path: KeyPath, default: Any = MISSING) -> Any:
    try:
        found = kind.accept(value)
    except ValueError:
        usual = "or leave it out"
        if isinstance(default, (str, int, float)):
            usual = f"the default is {shown(default)}"
        what = kind.refusal(value, "" if default is MISSING else usual)
        raise places.error(*path, what=what) from None
    if kind.items is None:
        return found
    inner = kind_of(kind.items)
    if isinstance(found, dict):
        return {key: _checked(each, inner, places, (*path, key)) for key, each in found.items()}
    return tuple(_checked(each, inner, places, path) for each in found)


def plain(value: Any, *, aside: bool = True) -> Any:
    """Settings as TOML has them, without what is left open; without ``aside``, what decides."""
    if is_dataclass(value):
        given = {
            key: getattr(value, key)
            for key, (kind, _) in keys_of(type(value)).items()
            if aside or not kind.aside
        }
        return {key: plain(each, aside=aside) for key, each in given.items() if each is not None}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, Path):
        return f"./{value}" if str(value).startswith("~") else str(value)
    return value
