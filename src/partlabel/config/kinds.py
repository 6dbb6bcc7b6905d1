"""What one setting may be, read off its annotation: accepted, or refused with what would do.

The annotation of a key says all there is to know: its type, ``| None`` where it may be left open,
``Literal`` for a choice, and in ``Annotated`` a Check, or that it does not decide the result.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from itertools import chain
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from partlabel.errors import suggest

ASIDE = "aside"
"""Marks a key that does not decide the result: where things are kept, how often they are shown."""


@dataclass(frozen=True)
class Check:
    """What more is asked of a value than its type."""

    words: str
    """What will do; ``{}`` stands for the type."""
    holds: Callable[[Any], bool]
    choices: tuple[str, ...] = ()


def within(
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
    below: float = math.inf,
) -> Check:
    """A number within bounds.

    Example:
        >>> within(at_least=0, below=1).words
        '{} of at least 0 and below 1'
    """
    names = {"of at least": at_least, "above": above, "of at most": at_most, "below": below}
    bounds = " and ".join(f"{word} {b:,}" for word, b in names.items() if math.isfinite(b))
    if math.isfinite(at_least) and math.isfinite(at_most):
        bounds = f"between {at_least:,} and {at_most:,}"
    return Check(
        f"{{}} {bounds}",
        lambda value: at_least <= value <= at_most and above < value < below,
    )


def one_of(*choices: str, or_path: str = "") -> Check:
    """One of a few words, or also a path, where ``or_path`` says of what."""
    listed = ", ".join(choices)
    # A path has a dot or a slash, so that a misspelt word is not taken for one.
    return Check(
        f"{listed} or {or_path}" if or_path else f"one of {listed}",
        lambda value: value in choices or bool(or_path and re.search(r"[./\\]", value)),
        choices,
    )


def called(words: str) -> Check:
    """Anything of its type, by a better name."""
    return Check(words, lambda value: True)


def matching(pattern: str, words: str) -> Check:
    """Text of a form."""
    return Check(words, lambda value: re.fullmatch(pattern, value) is not None)


@dataclass(frozen=True)
class Kind:
    """An annotation, taken apart.

    Example:
        >>> kind = kind_of(Annotated[int, within(at_least=1)])
        >>> kind.accept(3)
        3
        >>> kind.refusal("3")
        "must be a whole number of at least 1, got '3'; leave out the quotes"
    """

    types: tuple[Any, ...]
    checks: tuple[Check, ...] = ()
    items: Any = None
    """The annotation of what is in a list or table."""
    optional: bool = False
    aside: bool = False

    @property
    def section(self) -> bool:
        """Whether it is a section of its own."""
        return is_dataclass(self.types[0])

    @property
    def words(self) -> str:
        """What will do."""
        # A whole number is a number, so it is named only where no other is allowed.
        named = [kind for kind in self.types if kind is not int or float not in self.types]
        said = ", ".join(_TYPES[kind].words for kind in named)
        if self.types == (tuple,):
            said = f"a list, each {kind_of(self.items).words}"
        for check in self.checks:
            said = check.words.format(said)
        return said

    def accept(self, value: Any) -> Any:
        """The value as wanted: text as a Path, a whole number as a float; or a ValueError."""
        if value is None and self.optional:
            return None
        for kind in self.types:
            with suppress(ValueError):
                found = _TYPES[kind].accept(value)
                if all(check.holds(found) for check in self.checks):
                    return found
        raise ValueError(self.refusal(value))

    def refusal(self, value: Any, default: str = "") -> str:
        """Why a value will not do, and what would."""
        hint = self._hint(value) or default
        return f"must be {self.words}, got {shown(value)}" + (f"; {hint}" if hint else "")

    def _hint(self, value: Any) -> str:
        wanted, text = self.types[0], isinstance(value, str)
        said = (value if text else shown(value)).lower()
        for check in self.checks:
            if text and (found := suggest(value, check.choices)).startswith("did"):
                return found
        if text and wanted in (int, float) and re.fullmatch(_DIGITS, said):
            return "leave out the quotes"
        if wanted is int and isinstance(value, float) and value.is_integer():
            return f"write {value:.0f}"
        if wanted is bool and said in _SWITCHES:
            return f"write {_SWITCHES[said]}"
        if wanted in (str, Path) and isinstance(value, (int, float)) and self._takes(said):
            return f'write "{said}"'
        if wanted is tuple and text:
            return f'write ["{value}"]'
        return "there is no such user" if wanted is Path and text and value[:1] == "~" else ""

    def _takes(self, value: Any) -> bool:
        with suppress(ValueError):
            self.accept(value)
            return True
        return False


_DIGITS = r"[+-]?[\d_.]+(e[+-]?\d+)?"
_SWITCHES = {"true": "true", "1": "true", "on": "true", "yes": "true",
             "false": "false", "0": "false", "off": "false", "no": "false"}  # fmt: skip


def kind_of(annotation: Any) -> Kind:
    """Take an annotation apart."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        kind, marks = kind_of(inner[0]), inner[1:]
        checks = tuple(mark for mark in marks if isinstance(mark, Check))
        return replace(kind, checks=kind.checks + checks, aside=kind.aside or ASIDE in marks)
    if origin in (Union, UnionType):
        kinds = [kind_of(each) for each in inner if each is not NoneType]
        types = tuple(chain.from_iterable(kind.types for kind in kinds))
        return replace(kinds[0], types=types, optional=NoneType in inner)
    if origin is Literal:
        return Kind((str,), checks=(one_of(*inner),))
    if origin in (tuple, dict):
        return Kind((origin,), items=inner[0 if origin is tuple else 1])
    return Kind((annotation,))


def shown(value: Any) -> str:
    """A value in an error, as a file has it and not too long."""
    if isinstance(value, (dict, list, tuple)):
        return "a table" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number with too many digits"
    if not isinstance(value, (str, int, float)):
        return f"the {type(value).__name__} {value}"
    said = str(value).lower() if isinstance(value, bool) else repr(value)
    return said if len(said) <= 60 else f"{said[:56]} ..."


class _Type(NamedTuple):
    words: str
    accept: Callable[[Any], Any]
    """Gives the value as this type, or raises ValueError."""


def _only(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ValueError
    return value


def _whole(value: Any) -> int:
    if not -(2**63) <= _only(value, int) < 2**63:  # what TOML has
        raise ValueError
    return int(value)


def _number(value: Any) -> float:
    found = float(_whole(value) if isinstance(value, int) else _only(value, float))
    if not math.isfinite(found):
        raise ValueError
    return found


def _text(value: Any) -> str:
    if not _only(value, str).strip() or "\0" in value:
        raise ValueError
    value.encode()  # what is not Unicode could not be written; a UnicodeError is a ValueError
    # What begins like this is a path, also where a word would do.
    return os.path.expanduser(value) if value.startswith("~/") else str(value)


def _path(value: Any) -> Path:
    expanded = os.path.expanduser(_text(os.fspath(_only(value, str, Path))))
    if expanded.startswith("~"):
        raise ValueError
    return Path(expanded)


_TYPES: dict[Any, _Type] = {
    bool: _Type("true or false", lambda value: _only(value, bool)),
    int: _Type("a whole number", _whole),
    float: _Type("a number", _number),
    str: _Type("text", _text),
    Path: _Type("a path", _path),
    tuple: _Type("a list", lambda value: tuple(_only(value, list, tuple))),
    dict: _Type("a table", lambda value: _only(value, dict)),
    Any: _Type("anything", lambda value: value),
}
