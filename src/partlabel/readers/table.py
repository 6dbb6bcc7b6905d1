"""Your own csv or parquet, in three layouts.

long    one row per label:  image_id, label, value (1 present, 0 absent)
wide    one row per image, one column per class: 1, 0, empty
lists   one row per image, a column with the list of present classes, one with the absent
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from partlabel.assemble import Assembler, Ints
from partlabel.errors import DataError
from partlabel.labels import first_misfit, to_states
from partlabel.readers.base import Job, Vocabulary, read_classes, split_and_file
from partlabel.readers.cells import read_lists
from partlabel.readers.rows import ImageRows, id_type, open_table, plain_ids
from partlabel.readers.scan_csv import BadRow
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
    named = {"path": path, "split": split, "value": value, "negatives": negatives}
    reading = _Reading(job, Vocabulary(None if classes is None else read_classes(job, classes)))
    reading.drop = unknown_classes == "drop"
    reading.convention = convention
    reading.complete = complete
    if image_table is not None:
        listed = open_table(job, image_table, delimiter)
        reading.list_images(listed, _columns(listed, image, {"path": path, "split": split}), ids)
        job.done(listed.source)
        named = {"value": value, "negatives": negatives}
    for file in files:
        fixed, place = split_and_file(file)
        table = open_table(job, place, delimiter)
        columns = _columns(table, image, named)
        if layout == "long":
            columns["label"] = table.require(label, "--label")
            reading.long(table, columns, ids, fixed)
        elif layout == "lists":
            columns["positives"] = table.require(positives, "--positives")
            reading.lists(table, columns, ids, fixed, separator)
        else:
            reading.wide(table, columns, ids, fixed, skip or [])
        job.done(table.source)
    return reading.store(split_and_file(files[0])[1].absolute().parent)


def _columns(table: Any, image: str, named: dict[str, str | None]) -> dict[str, str]:
    """Which column is what: those the user named, and those that have the name itself."""
    columns = {"image": table.require(image, "--image")}
    for name, given in named.items():
        if given is not None:
            columns[name] = table.require(given, f"--{name}")
        elif name in table.columns:
            columns[name] = name
    return columns


class _Reading:
    """The labels and images of one or more tables, collected block by block."""

    def __init__(self, job: Job, vocabulary: Vocabulary) -> None:
        self.job = job
        self.vocabulary = vocabulary
        self.images = ImageRows()
        given = vocabulary.classes
        self.labels = Assembler(classes=None if given is None else len(given))
        self.drop = False
        self.dropped = 0
        self.convention = "nan"
        self.complete = False

    def list_images(self, table: Any, columns: dict[str, str], ids: str) -> None:
        """Take the images of an image table: those without labels are kept, others refused."""
        table.each(self._types(table, columns, ids), lambda block: self._rows(block, columns, None))
        self.images.closed = True

    def long(self, table: Any, columns: dict[str, str], ids: str, split: str | None) -> None:
        """One row per label."""
        import pyarrow as pa

        types = self._types(table, columns, ids) | {columns["label"]: pa.string()}
        if "value" in columns:
            types[columns["value"]] = pa.float64()
        else:
            self.job.notes.append("no value column: every row counts as present")

        def take(block: Any) -> None:
            rows = self._rows(block, columns, split)
            encoded = block[columns["label"]].combine_chunks().dictionary_encode()
            if encoded.null_count:
                raise BadRow(int(np.argmin(np.asarray(encoded.is_valid()))), "has no class")
            which = self._indices(encoded)
            states = np.ones(len(rows), np.int8)
            if "value" in columns:
                states = self._states(block[columns["value"]].to_numpy())
            kept = (which >= 0) & (states != 0)
            self.dropped += int((which < 0).sum())
            self.labels.add(rows[kept], which[kept], states[kept] < 0)

        table.each(types, take)

    def wide(
        self, table: Any, columns: dict[str, str], ids: str, split: str | None, skip: list[str]
    ) -> None:
        """One column per class."""
        import pyarrow as pa

        used = {columns[name] for name in ("image", "path", "split") if name in columns} | set(skip)
        names = [name for name in table.columns if name not in used]
        if self.vocabulary.classes is not None:
            for name in self.vocabulary.classes.ids:
                table.require(name)
            names = list(self.vocabulary.classes.ids)
        elif len(self.vocabulary) and set(names) != set(self.vocabulary.index):
            raise DataError("has other classes than the files before it", path=table.source.path)
        if not names:
            raise DataError("has no class columns", path=table.source.path)
        which = self.vocabulary.indices(names)
        plain = {key: name for key, name in columns.items() if name in used and name not in skip}
        types = self._types(table, plain, ids) | {name: pa.float64() for name in names}

        def take(block: Any) -> None:
            rows = self._rows(block, plain, split)
            for name, index in zip(names, which, strict=True):
                states = self._states(block[name].to_numpy(), name)
                if self.complete and not states.all():
                    what = f"{name} is unknown here, but the table was said to be complete"
                    raise BadRow(
                        int(np.argmin(np.abs(states))), what, "fill it in or leave --complete out"
                    )
                known = states != 0
                self.labels.add(rows[known], np.full(int(known.sum()), index), states[known] < 0)

        table.each(types, take)

    def lists(
        self,
        table: Any,
        columns: dict[str, str],
        ids: str,
        split: str | None,
        separator: str | None,
    ) -> None:
        """A list of present and perhaps one of absent classes per image."""
        import pyarrow as pa

        lists = [columns[name] for name in ("positives", "negatives") if name in columns]
        types = self._types(table, columns, ids) | dict.fromkeys(
            lists, None if table.typed else pa.string()
        )

        def take(block: Any) -> None:
            rows = self._rows(block, columns, split)
            for name, absent in (("positives", False), ("negatives", True)):
                if name not in columns:
                    continue
                cells = read_lists(block[columns[name]].combine_chunks(), separator)
                which = cells.indices(self.vocabulary, drop=self.drop)
                kept = which >= 0
                self.dropped += len(which) - int(kept.sum())
                where = rows[cells.rows()][kept]
                self.labels.add(where, which[kept], np.full(len(where), absent))

        table.each(types, take)

    def store(self, root: Path) -> LabelStore:
        """Put everything together."""
        classes, final = self.vocabulary.final()
        labels = self.labels.finish(final if self.vocabulary.classes is None else None)
        if not len(classes):
            raise DataError("there are no labels in the table")
        self.job.note(self.dropped, "labels left out: class not in --classes")
        images = self.images.table(root=self.job.images or root, template=self.job.path_template)
        return self.job.store(classes, images, labels, root=root, complete=self.complete)

    def _types(self, table: Any, columns: dict[str, str], ids: str) -> dict[str, Any]:
        import pyarrow as pa

        types = {columns["image"]: id_type(ids, typed=table.typed)}
        for name in ("path", "split"):
            if name in columns and columns[name] != columns["image"]:
                types[columns[name]] = pa.string()
        return types

    def _rows(self, block: Any, columns: dict[str, str], split: str | None) -> Ints:
        import pyarrow as pa

        paths = block[columns["path"]] if "path" in columns else None
        splits = block[columns["split"]] if "split" in columns else None
        if split is not None:
            splits = pa.array([split] * block.num_rows)
        return self.images.rows(plain_ids(block[columns["image"]]), paths=paths, splits=splits)

    def _indices(self, encoded: Any) -> Ints:
        ids = encoded.dictionary.to_pylist()
        codes = encoded.indices.to_numpy()
        which = self.vocabulary.indices(ids)[codes] if len(codes) else np.zeros(0, np.int64)
        wrong = np.flatnonzero(which < 0)
        if len(wrong) and not self.drop:
            raise BadRow(int(wrong[0]), *self.vocabulary.missing(ids[codes[wrong[0]]]))
        return which

    def _states(self, values: Any, column: str | None = None) -> Any:
        misfit = first_misfit(values, convention=self.convention)
        if misfit is not None:
            (row,), what, fix = misfit
            raise BadRow(row, f"{column}: {what}" if column else what, fix)
        return to_states(values, convention=self.convention)
