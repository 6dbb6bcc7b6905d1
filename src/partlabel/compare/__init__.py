"""Methods x annotation schemes x seeds of one file: trained, resumed, put into one table."""

from __future__ import annotations

from partlabel.compare.comparison import Comparison, Failure
from partlabel.compare.methods import METHODS
from partlabel.compare.results import Row, read_results

__all__ = ["METHODS", "Comparison", "Failure", "Row", "read_results"]
