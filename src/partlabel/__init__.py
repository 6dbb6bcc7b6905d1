"""Multi-label classification when most labels are unknown."""

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
from partlabel.store import LabelStore
from partlabel.summary import summarise
from partlabel.tables import ClassTable, ImageTable

__version__ = "0.1.0"

__all__ = [
    "ABSENT",
    "PRESENT",
    "UNKNOWN",
    "ClassTable",
    "ImageTable",
    "LabelStore",
    "PartlabelError",
    "from_states",
    "lists_from_states",
    "merge",
    "states_from_lists",
    "summarise",
    "to_states",
]
