"""What every reader is given and what it gives back; the pieces that several readers share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from partlabel.assemble import Assembled, Ints
from partlabel.errors import DataError, UsageError, suggest
from partlabel.files import Progress, Silent, Source
from partlabel.meta import Origin
from partlabel.readers.scan_csv import BadRow, CsvFile
from partlabel.store import LabelStore
from partlabel.tables import ClassTable, ImageTable, check_template

CONFLICT = "present and absent, taken as present: "


@dataclass(kw_only=True)
class Job:
    """One import: the options every format has, and what the readers report."""

    images: Path | None = None
    """The folder that image paths are relative to, where the user named one."""
    path_template: str | None = None
    """How to make a path from id and split, where the user gave one."""
    progress: Progress = field(default_factory=Silent)
    sources: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    siblings: dict[str, LabelStore] = field(default_factory=dict)
    """Other layers of labels, saved beside the main store as NAME.<layer>.labels."""
    _opened: list[Source] = field(default_factory=list)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for source in self._opened:
            source.close()

    def open(self, path: str | Path) -> Source:
        """Open an input file; call :meth:`done` when it is read."""
        source = Source(path, self.progress)
        self._opened.append(source)
        return source

    def done(self, source: Source) -> None:
        """Note name, size and checksum of a file that was read."""
        self.sources.append(source.record())

    def place(self) -> str:
        """The files read so far, to name in an error that concerns them all."""
        names = [str(source.path) for source in self._opened]
        return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")

    def note(self, count: int, text: str) -> None:
        """Report something that was left out or changed, unless it never happened."""
        if count:
            self.notes.append(f"{count:,} {text}")

    def read_text(self, path: str | Path) -> str:
        """Read a small text file whole."""
        source = self.open(path)
        text = source.read_text()
        self.done(source)
        return text

    def store(
        self,
        classes: ClassTable,
        images: ImageTable,
        labels: Assembled,
        *,
        root: Path | None = None,
        complete: bool = False,
    ) -> LabelStore:
        """Make the store whose row i is the image i; keys of ``labels`` are row numbers."""
        labels = labels.positives_only() if complete else labels
        twice = images.duplicate()
        if twice is not None:
            shown = f"{twice:016x}" if images.id_type == "uint64" else twice
            fix = "an image belongs to one row and one split"
            raise DataError(f"image {shown} is there twice", path=self.place(), fix=fix)
        if self.path_template is not None:
            images = images.with_template(self.path_template)
        folder = self.images or root
        return LabelStore(
            classes,
            images,
            indptr=labels.spread(len(images)),
            codes=labels.codes,
            complete=complete,
            origin=Origin(
                sources=tuple(self.sources),
                image_root=None if folder is None else str(folder.absolute()),
                conflicts=labels.conflicts,
                duplicates=labels.duplicates,
                notes=tuple(self.notes) + conflict_notes(labels, classes, images),
            ),
        )


def conflict_notes(labels: Assembled, classes: ClassTable, images: ImageTable) -> tuple[str, ...]:
    """Show the first labels that were annotated both present and absent."""
    return tuple(
        f"{CONFLICT}image {images.show_id(row)}, class {classes.ids[i]}"
        for row, i in labels.examples
    )


class Vocabulary:
    """Class ids to indices: of a given class table, or of whatever ids turn up."""

    def __init__(self, classes: ClassTable | None) -> None:
        self.classes = classes
        self.index: dict[str, int] = {} if classes is None else classes.index
        self._lock = Lock()  # blocks of a file are read on several threads

    def __len__(self) -> int:
        return len(self.index)

    def indices(self, ids: Iterable[str]) -> Ints:
        """The index of each id; -1 where the table does not have it."""
        if self.classes is None:
            with self._lock:
                found = [self.index.setdefault(name, len(self.index)) for name in ids]
        else:
            found = [self.index.get(name, -1) for name in ids]
        return np.array(found, dtype=np.int64)

    def final(self) -> tuple[ClassTable, Ints]:
        """The class table, sorted where it was collected, and the final index of each index."""
        if self.classes is not None:
            return self.classes, np.arange(len(self.classes))
        ids = sorted(self.index)
        final = np.zeros(len(ids), np.int64)
        final[[self.index[name] for name in ids]] = np.arange(len(ids))
        return ClassTable(ids), final

    def missing(self, name: str) -> tuple[str, str]:
        """What to say about an id that the table does not have."""
        return f"unknown class {name!r}", suggest(name, self.index) + ", or complete the class file"


def lines_of(text: str) -> list[str]:
    """The lines of a text; other characters that Python takes for line ends are left alone."""
    return re.split(r"\r\n|\n|\r", text)


def split_and_file(argument: str, official: str | None = None) -> tuple[str | None, Path]:
    """Read ``SPLIT=FILE``; without SPLIT it is taken from the name where that is an official one.

    Example:
        >>> split_and_file("train=labels.csv")
        ('train', PosixPath('labels.csv'))
        >>> split_and_file("instances_val2014.json", r"^instances_(train|val)20(14|17)")
        ('val', PosixPath('instances_val2014.json'))
    """
    named = re.fullmatch(r"([A-Za-z][\w-]*)=(.+)", argument)
    if named and not Path(argument).exists():
        return named[1], Path(named[2])
    path = Path(argument)
    for name in (path.name, f"{path.absolute().parent.name}/{path.name}") if official else ():
        match = re.search(official or "", name)
        if match:
            return match[1], path
    return None, path


def read_classes(job: Job, path: str | Path) -> ClassTable:
    """Read a class list: one id per line, or a csv with an id (or label) and perhaps a name."""
    if Path(path).suffix.lower() not in (".csv", ".tsv"):
        ids = [line.strip() for line in lines_of(job.read_text(path))]
        return _class_table(path, [name for name in ids if name], None)
    rows = read_rows(job, path)
    if not rows:
        raise DataError("has no classes", path=path)
    columns = list(rows[0])
    id_column = _first_of(columns, ("id", "label", "class", "LabelName"), path)
    name_column = next((name for name in ("name", "DisplayName") if name in columns), id_column)
    if "index" in columns:
        rows.sort(key=lambda row: _index_of(row, path))
        if [_index_of(row, path) for row in rows] != list(range(len(rows))):
            raise DataError("column 'index' must count 0, 1, 2, ... without gap", path=path)
    return _class_table(path, [row[id_column] for row in rows], [row[name_column] for row in rows])


def read_rows(job: Job, path: str | Path, columns: list[str] | None = None) -> list[dict[str, str]]:
    """Read a small csv whole, a dict per row; ``columns`` names them where there is no header."""
    import pyarrow as pa

    source = job.open(path)
    file = CsvFile(source, columns=columns, delimiter="\t" if Path(path).suffix == ".tsv" else ",")
    types = {name: pa.string() for name in file.columns}
    rows = [row for block in file.scan(types, lambda table: table.to_pylist()) for row in block]
    job.done(source)
    return rows


def _class_table(path: str | Path, ids: Sequence[str], names: Sequence[str] | None) -> ClassTable:
    if not ids:
        raise DataError("has no classes", path=path)
    try:
        return ClassTable(ids, names)
    except UsageError as error:
        raise DataError(str(error), path=path) from error


def _index_of(row: dict[str, str], path: str | Path) -> int:
    try:
        return int(row["index"])
    except ValueError as error:
        raise DataError(f"index {row['index']!r} is not a whole number", path=path) from error


def _first_of(columns: Sequence[str], choices: Sequence[str], path: str | Path) -> str:
    for name in choices:
        if name in columns:
            return name
    raise DataError(
        f"no column {' or '.join(choices)}",
        path=path,
        line=1,
        fix=f"there is: {', '.join(columns)}",
    )


def relative_paths(paths: Any, root: Path) -> Any:
    """Check that paths stay inside the image root; absolute ones below it are made relative.

    Args:
        paths: An Arrow array of strings.
        root: The folder they are relative to.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    suspect = pc.match_substring_regex(paths, r"^[/\\]|^[A-Za-z]:|(^|[/\\])\.\.([/\\]|$)|\x00")
    if not pc.any(suspect).as_py():
        return paths
    base = root.absolute()
    mended: list[str | None] = []
    for row, (path, bad) in enumerate(zip(paths.to_pylist(), suspect.to_pylist(), strict=True)):
        if bad and not (Path(path).is_relative_to(base) and ".." not in Path(path).parts):
            fix = f"give --images, the folder that holds it (now {base})"
            raise BadRow(row, f"image path {path!r} leaves the image folder", fix)
        mended.append(Path(path).relative_to(base).as_posix() if bad else path)
    return pa.array(mended, pa.string())


def unless_template(
    paths: Sequence[str], ids: Sequence[int], splits: Sequence[str | None], template: str
) -> list[str | None]:
    """Leave out (None) the paths that the template gives anyway."""
    check_template(template)
    whole = zip(paths, ids, splits, strict=True)
    return [None if template.format(id=i, split=s) == path else path for path, i, s in whole]
