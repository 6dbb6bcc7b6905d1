"""Tables block by block into labels and images: the three layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from partlabel.assemble import Assembler, Ints
from partlabel.errors import DataError, LabelValueError
from partlabel.labels import first_misfit, to_states
from partlabel.readers.base import Job, Vocabulary, relative_paths
from partlabel.readers.cells import read_lists
from partlabel.readers.rows import ImageRows, id_type, plain_ids
from partlabel.readers.scan_csv import BadRow
from partlabel.store import LabelStore

Columns = dict[str, str]  # what a column is for, and its name


class TableReading:
    """The labels and images of one or more tables."""

    def __init__(
        self,
        job: Job,
        vocabulary: Vocabulary,
        *,
        root: Path,
        ids: str = "string",
        convention: str = "nan",
        complete: bool = False,
        drop_unknown: bool = False,
    ) -> None:
        self.job = job
        self.vocabulary = vocabulary
        self.root = root
        self.ids = ids
        self.convention = convention
        self.complete = complete
        self.drop_unknown = drop_unknown
        self.dropped = 0
        self.images = ImageRows()
        given = vocabulary.classes
        self.labels = Assembler(classes=None if given is None else len(given))

    def columns(self, table: Any, image: str, named: dict[str, str | None]) -> Columns:
        """Which column is what: those the user named, and those that have the name itself."""
        columns = {"image": table.require(image, "--image")}
        for name, given in named.items():
            if given is not None:
                columns[name] = table.require(given, f"--{name}")
            elif name in table.columns:
                columns[name] = name
        return columns

    def list_images(self, table: Any, columns: Columns) -> None:
        """Take the images of an image table: those without labels are kept, others refused."""
        table.each(self._types(table, columns), lambda block: self._rows(block, columns, None))
        self.job.done(table.source)
        self.images.closed = True

    def long(self, table: Any, columns: Columns, split: str | None) -> None:
        """One row per label."""
        import pyarrow as pa

        types = self._types(table, columns) | {columns["label"]: pa.string()}
        if "value" in columns:
            types[columns["value"]] = pa.float64()
        else:
            unused = [name for name in table.columns if name not in columns.values()]
            more = f"; not used: {', '.join(unused)} (--value names the value)" if unused else ""
            self.job.notes.append(f"no value column: every row counts as present{more}")

        def take(block: Any) -> None:
            rows = self._rows(block, columns, split)
            which = self._indices(block[columns["label"]].combine_chunks())
            states = np.ones(len(rows), np.int8)
            if "value" in columns:
                states = self._states(block[columns["value"]].to_numpy())
                self._refuse_unknown(states, "the label")
            kept = (which >= 0) & (states != 0)
            self.dropped += int((which < 0).sum())
            self.labels.add(rows[kept], which[kept], states[kept] < 0)

        table.each(types, take)
        self.job.done(table.source)

    def wide(self, table: Any, columns: Columns, split: str | None, skip: list[str]) -> None:
        """One column per class."""
        import pyarrow as pa

        about: Columns = {
            key: name for key, name in columns.items() if key in ("image", "path", "split")
        }
        names = self._class_columns(table, set(about.values()), skip)
        which = self.vocabulary.indices(names)
        types = self._types(table, about) | {name: pa.float64() for name in names}

        def take(block: Any) -> None:
            rows = self._rows(block, about, split)
            for name, index in zip(names, which, strict=True):
                states = self._states(block[name].to_numpy(), name)
                self._refuse_unknown(states, name)
                known = states != 0
                self.labels.add(rows[known], np.full(int(known.sum()), index), states[known] < 0)

        table.each(types, take)
        self.job.done(table.source)

    def _class_columns(self, table: Any, used: set[str], skip: list[str]) -> list[str]:
        for name in skip:
            table.require(name, "--skip")
        path = table.source.path
        names = [name for name in table.columns if name not in used | set(skip)]
        given = self.vocabulary.classes
        if given is not None:
            wanted = [table.require(name) for name in given.ids]
            extra = [name for name in names if name not in given.index]
            if extra and not self.drop_unknown:
                what, fix = self.vocabulary.missing(extra[0])
                fix = f"{fix}; --skip {extra[0]} leaves it out"
                raise DataError(what, path=path, line=1, fix=fix)
            self.job.note(len(extra), "columns left out: class not in --classes")
            return wanted
        if not names:
            raise DataError("has no class columns", path=path)
        if len(self.vocabulary) and set(names) != set(self.vocabulary.index):
            raise DataError("has other classes than the files before it", path=path)
        return names

    def lists(
        self, table: Any, columns: Columns, split: str | None, separator: str | None = None
    ) -> None:
        """A list of present and perhaps one of absent classes per image."""
        import pyarrow as pa

        names = [columns[key] for key in ("positives", "negatives") if key in columns]
        wanted = None if table.typed else pa.string()
        types = self._types(table, columns) | dict.fromkeys(names, wanted)

        def take(block: Any) -> None:
            rows = self._rows(block, columns, split)
            for key, absent in (("positives", False), ("negatives", True)):
                if key not in columns:
                    continue
                cells = read_lists(block[columns[key]].combine_chunks(), separator)
                which = cells.indices(self.vocabulary, drop=self.drop_unknown)
                kept = which >= 0
                self.dropped += len(which) - int(kept.sum())
                where = rows[cells.rows()][kept]
                self.labels.add(where, which[kept], np.full(len(where), absent))

        table.each(types, take)
        self.job.done(table.source)

    def store(self) -> LabelStore:
        """Put everything together."""
        classes, final = self.vocabulary.final()
        labels = self.labels.finish(final if self.vocabulary.classes is None else None)
        if not len(classes):
            raise DataError("there are no labels in the table", path=self.job.place())
        self.job.note(self.dropped, "labels left out: class not in --classes")
        images = self.images.table()
        return self.job.store(classes, images, labels, root=self.root, complete=self.complete)

    def _types(self, table: Any, columns: Columns) -> dict[str, Any]:
        import pyarrow as pa

        types = {columns["image"]: id_type(self.ids, typed=table.typed)}
        for key in ("path", "split"):
            if key in columns and columns[key] != columns["image"]:
                types[columns[key]] = pa.string()
        return types

    def _rows(self, block: Any, columns: Columns, split: str | None) -> Ints:
        import pyarrow as pa

        ids = plain_ids(block[columns["image"]])
        paths = splits = None
        if "path" in columns:
            paths = relative_paths(block[columns["path"]].combine_chunks(), self.root)
        elif ids.type == pa.string() and self.job.path_template is None:
            ids = relative_paths(ids, self.root)  # the id is the path
        if split is not None:
            splits = pa.array([split] * block.num_rows)
        elif "split" in columns:
            splits = block[columns["split"]].combine_chunks()
        return self.images.rows(ids, paths=paths, splits=splits)

    def _indices(self, labels: Any) -> Ints:
        import pyarrow.compute as pc

        missing = pc.or_kleene(labels.is_null(), pc.equal(labels, "")).fill_null(True)
        if pc.any(missing).as_py():
            raise BadRow(int(np.argmax(np.asarray(missing))), "has no class")
        encoded = labels.dictionary_encode()
        ids, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        which = self.vocabulary.indices(ids)[codes] if len(codes) else np.zeros(0, np.int64)
        wrong = np.flatnonzero(which < 0)
        if len(wrong) and not self.drop_unknown:
            raise BadRow(int(wrong[0]), *self.vocabulary.missing(ids[codes[wrong[0]]]))
        return which

    def _refuse_unknown(self, states: Any, name: str) -> None:
        if self.complete and not states.all():
            what = f"{name} is unknown here, but the table was said to be complete"
            fix = "fill it in or leave --complete out"
            raise BadRow(int(np.argmin(np.abs(states))), what, fix)

    def _states(self, values: Any, column: str | None = None) -> Any:
        misfit = first_misfit(values, convention=self.convention)
        if misfit is not None:
            (row,), what, fix = misfit
            raise BadRow(row, f"{column}: {what}" if column else what, fix, LabelValueError)
        return to_states(values, convention=self.convention)
