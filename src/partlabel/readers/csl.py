"""The data.csv of the paper's authors: filepath, label, label_neg, split_name; cells are lists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from partlabel.readers import table
from partlabel.readers.base import Job
from partlabel.store import LabelStore


def read(
    job: Job,
    files: Annotated[list[str], "FILE, as data.csv"],
    *,
    classes: Annotated[
        Path | None, "class ids, one per line; default: all that occur, sorted"
    ] = None,
) -> LabelStore:
    """Read the data.csv that the authors of the paper published."""
    return table.read(
        job,
        files,
        layout="lists",
        image="filepath",
        positives="label",
        negatives="label_neg",
        split="split_name",
        classes=classes,
    )
