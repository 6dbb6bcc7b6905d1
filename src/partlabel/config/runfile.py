"""Run files as nested tables: TOML read, or explained with its line; ``--set`` put over it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from partlabel.config.schema import KeyPath
from partlabel.errors import ConfigError
from partlabel.files import existing_file

# What tomllib says, and what a person should do about it.
_FIXES = {
    "Invalid value": 'text goes in quotes, as in key = "text"',
    "Expected '='": "a line is key = value",
    "Expected newline": "one key = value per line, and text in quotes",
    "Unescaped": "write paths with /, or in single quotes",
    "Cannot overwrite": "each key goes there once",
    "Cannot declare": "each section goes there once",
    "Unclosed": "close it",
}


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file, or say in which line it is none."""
    path = existing_file(path)
    try:
        data = path.read_bytes()
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        what = f"is not UTF-8 (byte {error.object[error.start]:#04x}); save it as UTF-8"
        raise ConfigError(f"{path} line {line}: {what}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}{_not_toml(error)}") from error


def put(values: dict[str, Any], sets: Iterable[str]) -> dict[KeyPath, str]:
    """Put what ``--set`` says into tables; give the option for each path that it concerns.

    A value is TOML, or a bare word as text; the bare word ``default`` takes a key out.

    Example:
        >>> values = {"train": {"epochs": 30, "seed": 1}}
        >>> put(values, ["train.epochs=3", "model.backbone=resnet50", "train.seed=default"])[
        ...     "train", "epochs"
        ... ]
        '--set train.epochs'
        >>> values
        {'train': {'epochs': 3}, 'model': {'backbone': 'resnet50'}}
    """
    known: dict[KeyPath, str] = {}
    for text in sets:
        dotted, equals, right = (part.strip() for part in text.partition("="))
        path = tuple(part.strip() for part in dotted.split("."))
        option = f"--set {dotted}"
        if not equals or not right or not all(path):
            raise ConfigError(f"--set {text}: must be SECTION.KEY=VALUE, as in train.epochs=3")
        inner = values
        for depth, part in enumerate(path[:-1], 1):
            if part not in inner:
                known.setdefault(path[:depth], option)
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{option}: {'.'.join(path[:depth])} is no section")
        if right == "default":
            inner.pop(path[-1], None)
            continue
        inner[path[-1]] = _value(option, right)
        _remember(known, path, inner[path[-1]], option)
    return known


def _value(option: str, text: str) -> Any:
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError) as error:
        if text[0] not in "\"'[{":
            return text
        what = re.sub(r" \(at .*\)", "", str(error))
        raise ConfigError(f"{option}: {text} is not valid TOML ({what})") from error
    if len(found) > 1:
        raise ConfigError(f"{option}: takes one value; write --set once for each key")
    return found["value"]


def _remember(known: dict[KeyPath, str], path: KeyPath, value: Any, option: str) -> None:
    known[path] = option
    if isinstance(value, dict):
        for key, inner in value.items():
            _remember(known, (*path, key), inner, option)


def _not_toml(error: Exception) -> str:
    """Where and why it is no TOML, and what to do about it."""
    if isinstance(error, RecursionError):
        return ": is nested too deeply"
    found = re.fullmatch(r"(.*) \(at (line \d+|end).*\)", str(error), re.S)
    if found is None:  # what Python says about a number of thousands of digits
        return ": is not valid TOML (a number has too many digits)"
    what, place = found[1], " at its end" if found[2] == "end" else f" {found[2]}"
    fix = next((f"; {fix}" for start, fix in _FIXES.items() if what.startswith(start)), "")
    return f"{place}: is not valid TOML ({what}){fix}"
