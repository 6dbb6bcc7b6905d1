"""The three states of a label, and the converters into and out of them.

Inside partlabel a label is an int8: +1 present, -1 verified absent, 0 unknown (as in the paper).
Other software uses other numbers, and two of the common conventions differ only by swapping 0 and
-1: taking one for the other turns "ignore what is unknown" into "train on it as verified absent".
So a convention is always named by the caller, never guessed from the values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from partlabel.errors import LabelValueError

PRESENT = 1
UNKNOWN = 0
ABSENT = -1

States = npt.NDArray[np.int8]


@dataclass(frozen=True, kw_only=True)
class Convention:
    """Which number stands for which state."""

    present: float
    absent: float
    unknown: float

    def __str__(self) -> str:
        unknown = "NaN or empty" if math.isnan(self.unknown) else f"{self.unknown:g}"
        return f"{self.present:g} present, {self.absent:g} absent, {unknown} unknown"

    def accepts(self, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Tell for each value whether this convention has it."""
        known = (values == self.present) | (values == self.absent)
        unknown = np.isnan(values) if math.isnan(self.unknown) else values == self.unknown
        return np.asarray(known | unknown)


CONVENTIONS: dict[str, Convention] = {
    "states": Convention(present=1, absent=-1, unknown=0),  # the paper's text, and partlabel
    "reference": Convention(present=1, absent=0, unknown=-1),  # the paper's code
    "nan": Convention(present=1, absent=0, unknown=math.nan),  # pandas users, empty cells
}


def to_states(values: npt.ArrayLike, *, convention: str) -> States:
    """Convert an array of numbers in a named convention to states.

    Raises:
        LabelValueError: a value is not in the convention; the text says where, and which
            convention would fit.

    Example:
        >>> to_states([1, 0, -1], convention="reference")
        array([ 1, -1,  0], dtype=int8)
        >>> to_states([1, 0, float("nan")], convention="nan")
        array([ 1, -1,  0], dtype=int8)
        >>> to_states([1, 0, -1], convention="nan")
        Traceback (most recent call last):
            ...
        partlabel.errors.LabelValueError: at [2]: value -1 is not in convention 'nan' (1 present, \
0 absent, NaN or empty unknown); all values fit 'states' (1 present, -1 absent, 0 unknown) or \
'reference' (1 present, 0 absent, -1 unknown)
    """
    chosen = _convention(convention)
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise LabelValueError(
            f"labels must be numbers, got dtype {array.dtype}",
            fix="convert them to 1, 0, -1 or NaN",
        )
    misfit = first_misfit(array, convention=convention)
    if misfit is not None:
        place, what, fix = misfit
        where = ", ".join(map(str, place))
        raise LabelValueError(f"at [{where}]: {what}", fix=fix)
    states = np.asarray(array == chosen.present).astype(np.int8)
    states -= np.asarray(array == chosen.absent).astype(np.int8)
    return states


def from_states(states: npt.ArrayLike, *, convention: str) -> npt.NDArray[Any]:
    """Convert states to numbers of a named convention: int8, or float32 where unknown is NaN.

    Example:
        >>> from_states([1, -1, 0], convention="reference")
        array([ 1,  0, -1], dtype=int8)
        >>> from_states([1, -1, 0], convention="nan")
        array([ 1.,  0., nan], dtype=float32)
    """
    chosen = _convention(convention)
    checked = to_states(states, convention="states")
    dtype = np.float32 if math.isnan(chosen.unknown) else np.int8
    table = np.array([chosen.unknown, chosen.present, chosen.absent], dtype=dtype)
    return table[checked]  # index -1 is the last entry: absent


def states_from_lists(
    positives: Sequence[Iterable[int]], negatives: Sequence[Iterable[int]] | None, *, classes: int
) -> States:
    """Convert lists of class indices, one list per image, to dense states (images, classes).

    Args:
        positives: For each image the classes that are present.
        negatives: For each image the classes verified absent; ``None`` says that the positives are
            complete, so every other class is absent.
        classes: How many classes there are.

    Example:
        >>> states_from_lists([[0], []], [[2], [1]], classes=3)
        array([[ 1,  0, -1],
               [ 0, -1,  0]], dtype=int8)
    """
    if negatives is not None and len(negatives) != len(positives):
        raise ValueError(f"negatives has {len(negatives)} images, positives has {len(positives)}")
    fill = ABSENT if negatives is None else UNKNOWN
    states = np.full((len(positives), classes), fill, dtype=np.int8)
    for row, present in enumerate(positives):
        absent = [] if negatives is None else _checked(negatives[row], classes, row)
        listed = _checked(present, classes, row)
        both = set(listed) & set(absent)
        if both:
            raise LabelValueError(
                f"image {row}: class {min(both)} is listed as present and as absent",
                fix="remove it from one list",
            )
        states[row, absent] = ABSENT
        states[row, listed] = PRESENT
    return states


def lists_from_states(states: npt.ArrayLike) -> tuple[list[list[int]], list[list[int]]]:
    """Convert dense states to lists of present and of verified absent classes, one per image.

    Example:
        >>> lists_from_states([[1, 0, -1]])
        ([[0]], [[2]])
    """
    checked = to_states(states, convention="states")
    if checked.ndim != 2:
        raise ValueError(f"states must have 2 dimensions (images, classes), got {checked.ndim}")
    return (
        [np.flatnonzero(row == PRESENT).tolist() for row in checked],
        [np.flatnonzero(row == ABSENT).tolist() for row in checked],
    )


def _convention(name: str) -> Convention:
    if name not in CONVENTIONS:
        raise ValueError(f"convention must be one of {sorted(CONVENTIONS)}, got {name!r}")
    return CONVENTIONS[name]


def first_misfit(
    values: npt.NDArray[Any], *, convention: str
) -> tuple[tuple[int, ...], str, str] | None:
    """The first value that a convention does not have: where, what is wrong, which would fit."""
    chosen = _convention(convention)
    accepted = chosen.accepts(values)
    if accepted.all():
        return None
    place = tuple(int(i) for i in np.argwhere(~accepted)[0])
    what = f"value {float(values[place]):g} is not in convention {convention!r} ({chosen})"
    others = [
        f"{name!r} ({other})" for name, other in CONVENTIONS.items() if other.accepts(values).all()
    ]
    if others:
        return place, what, f"all values fit {' or '.join(others)}"
    return place, what, f"no convention has all these values ({_seen(values)})"


def _seen(array: npt.NDArray[Any]) -> str:
    distinct = np.unique(array)[:8]
    return ", ".join(f"{float(value):g}" for value in distinct)


def _checked(classes: Iterable[int], count: int, row: int) -> list[int]:
    listed = list(classes)
    for index in listed:
        if not 0 <= index < count:
            raise LabelValueError(f"image {row}: class {index} is outside 0..{count - 1}")
    return listed
