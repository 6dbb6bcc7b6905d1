"""Multi-label classification when most labels are unknown."""

from typing import TYPE_CHECKING, Any

from partlabel.errors import PartlabelError
from partlabel.labels import (
    ABSENT,
    PRESENT,
    UNKNOWN,
    from_states,
    lists_from_states,
    states_from_lists,
    to_states,
)
from partlabel.merge import merge
from partlabel.prior import Prior
from partlabel.store import LabelStore
from partlabel.summary import summarise
from partlabel.tables import ClassTable, ImageTable

if TYPE_CHECKING:
    from partlabel.estimate import estimate_prior
    from partlabel.losses import LOSSES, build_loss
    from partlabel.metrics import AveragePrecision

__version__ = "0.1.0"

__all__ = [
    "ABSENT",
    "LOSSES",
    "PRESENT",
    "UNKNOWN",
    "AveragePrecision",
    "ClassTable",
    "ImageTable",
    "LabelStore",
    "PartlabelError",
    "Prior",
    "build_loss",
    "estimate_prior",
    "from_states",
    "lists_from_states",
    "merge",
    "states_from_lists",
    "summarise",
    "to_states",
]

# Names that need torch, which takes a second to import and which most commands do without.
_LATER = {
    "AveragePrecision": "partlabel.metrics",
    "LOSSES": "partlabel.losses",
    "build_loss": "partlabel.losses",
    "estimate_prior": "partlabel.estimate",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'partlabel' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)
