"""The exceptions raised on purpose.

PartlabelError
├── DataError            a file of labels is not what it was said to be (says file, and line or key)
│   └── LabelValueError  a value outside the declared label convention (also a ValueError)
├── StoreError           a store is missing, damaged, too new, or in the way
├── ClassMismatchError   two things were made for different classes
└── UsageError           options that do not fit together
    └── ConfigError      a setting of a run cannot be used (says file or option, section and key)

Everything here is the mistake of an input, not of the program: the command line prints it in one
line and exits with 2. A wrong *argument* of a library call is a plain ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


class PartlabelError(Exception):
    """Any input that cannot be used; its text is one line, for the person who gave it."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))


class DataError(PartlabelError):
    """A label file that cannot be read.

    Example:
        >>> print(DataError("has 3 fields, not 4", path="a.csv", line=7, fix="complete it"))
        a.csv line 7: has 3 fields, not 4; complete it
    """

    def __init__(
        self,
        what: str,
        *,
        path: str | Path | None = None,
        line: int | None = None,
        key: str | None = None,
        fix: str | None = None,
    ) -> None:
        place = "" if path is None else str(path)
        if line is not None:
            place += f" line {line}"
        if key is not None:
            place += f" {key}" if place else key
        text = f"{place}: {what}" if place else what
        super().__init__(f"{text}; {fix}" if fix else text)


class LabelValueError(DataError, ValueError):
    """A value that the declared label convention does not have."""


class StoreError(PartlabelError):
    """A store folder that cannot be opened or written."""


class ClassMismatchError(PartlabelError):
    """Classes are matched by id, and these ids differ."""


class UsageError(PartlabelError):
    """Options that do not fit together or do not exist."""


class ConfigError(UsageError):
    """A setting of a run that does not exist, or cannot be what it is said to be."""


def suggest(wrong: str, choices: Iterable[str], *, most: int = 12) -> str:
    """Say which choice was probably meant, or list the first few.

    Example:
        >>> suggest("imageid", ["image_id", "label"])
        'did you mean image_id?'
        >>> suggest("zzz", ["image_id", "label"])
        'there is: image_id, label'
    """
    listed = list(dict.fromkeys(choices))
    close = get_close_matches(wrong, listed, n=1, cutoff=0.7)
    if close:
        return f"did you mean {close[0]}?"
    if not listed:
        return "there is none"
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return f"there is: {', '.join(listed[:most])}{more}"
