"""Your own csv or parquet, in three layouts.

long    one row per label:  image_id, label, value (1 present, 0 absent)
wide    one row per image, one column per class: 1, 0, empty
lists   one row per image, a column with the list of present classes, one with the absent
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from partlabel.errors import UsageError
from partlabel.readers.base import Job, Vocabulary, read_classes, split_and_file
from partlabel.readers.reading import TableReading
from partlabel.readers.rows import open_table
from partlabel.store import LabelStore


def read(
    job: Job,
    files: Annotated[list[str], "[SPLIT=]FILE, csv or parquet, one or more"],
    *,
    layout: Annotated[Literal["long", "wide", "lists"], "how the table is laid out"],
    image: Annotated[str, "column with the image id"] = "image_id",
    path: Annotated[str | None, "column with the image path, where that is not the id"] = None,
    split: Annotated[str | None, "column with the split"] = None,
    label: Annotated[str, "long: column with the class id"] = "label",
    value: Annotated[str | None, "long: column with the value; without, all are present"] = None,
    positives: Annotated[str, "lists: column with the present classes"] = "positives",
    negatives: Annotated[str | None, "lists: column with the absent classes"] = None,
    separator: Annotated[str | None, "lists: what stands between classes in a cell"] = None,
    skip: Annotated[list[str] | None, "wide: a column that is not a class"] = None,
    image_table: Annotated[
        Path | None, "csv or parquet that names every image, with path and split where it has them"
    ] = None,
    classes: Annotated[Path | None, "class ids, one per line, or csv with id and name"] = None,
    unknown_classes: Annotated[
        Literal["refuse", "drop"], "what to do with classes that are not in --classes"
    ] = "refuse",
    convention: Annotated[
        Literal["nan", "reference", "states"],
        "present, absent, unknown are: nan = 1, 0, empty; reference = 1, 0, -1; states = 1, -1, 0",
    ] = "nan",
    ids: Annotated[Literal["string", "int", "hex"], "csv: what image ids are"] = "string",
    delimiter: Annotated[str | None, "csv: default is comma, tab for .tsv"] = None,
    complete: Annotated[bool, "every class that is not listed is verified absent"] = False,
) -> LabelStore:
    """Read a csv or parquet table.

    Columns named path, split, value and negatives are used where they are there. Classes that
    --classes does not name are all that occur, sorted. Cells of lists are Python or json lists
    unless a separator is given; strings in them are class ids, numbers are lines of --classes.
    """
    if separator == "":
        raise UsageError("--separator must have at least one character")
    reading = TableReading(
        job,
        Vocabulary(None if classes is None else read_classes(job, classes)),
        ids=ids,
        convention=convention,
        complete=complete,
        drop_unknown=unknown_classes == "drop",
        root=job.images or split_and_file(files[0])[1].absolute().parent,
    )
    named = {"path": path, "split": split, "value": value, "negatives": negatives}
    if image_table is not None:
        listed = open_table(job, image_table, delimiter)
        columns = reading.columns(listed, image, {"path": path, "split": split})
        reading.list_images(listed, columns)
        named = {"value": value, "negatives": negatives}
    for file in files:
        fixed, place = split_and_file(file)
        table = open_table(job, place, delimiter)
        columns = reading.columns(table, image, named)
        if layout == "long":
            columns["label"] = table.require(label, "--label")
            reading.long(table, columns, fixed)
        elif layout == "lists":
            columns["positives"] = table.require(positives, "--positives")
            reading.lists(table, columns, fixed, separator)
        else:
            reading.wide(table, columns, fixed, skip or [])
    return reading.store()
