"""The data.csv of the paper's authors: filepath, label, label_neg, split_name; cells are lists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from partlabel.readers.base import Job, Vocabulary, read_classes
from partlabel.readers.reading import TableReading
from partlabel.readers.rows import open_table
from partlabel.store import LabelStore

COLUMNS = {
    "image": "filepath",
    "positives": "label",
    "negatives": "label_neg",
    "split": "split_name",
}


def read(
    job: Job,
    files: Annotated[list[str], "FILE, as data.csv"],
    *,
    classes: Annotated[Path | None, "class ids, one per line; default: all that occur"] = None,
) -> LabelStore:
    """Read the data.csv that the authors of the paper published."""
    vocabulary = Vocabulary(None if classes is None else read_classes(job, classes))
    root = job.images or Path(files[0]).absolute().parent
    reading = TableReading(job, vocabulary, root=root)
    for file in files:
        table = open_table(job, Path(file))
        for name in COLUMNS.values():
            table.require(name)
        reading.lists(table, COLUMNS, None)
    return reading.store()
