"""Where the bytes of images are: files in a folder, or stretches of larger files."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from partlabel.errors import DataError, PartlabelError, UsageError, suggest
from partlabel.files import existing_file, existing_folder
from partlabel.store import LabelStore
from partlabel.tables import ImageTable, Rows

_LEAVES = re.compile(r"^[/\\]|^[A-Za-z]:[/\\]|(^|[/\\])\.\.([/\\]|$)")
_SAMPLE = 32  # images looked for when a folder is opened
_LISTED = 1000  # entries of a folder looked at for a suggestion
_OPEN_FILES = 128  # far below what a process may have
_ROWS_AT_ONCE = 1 << 16


class ImageError(PartlabelError):
    """One image that cannot be read; its text says which and why."""


class ImageSource(Protocol):
    """The bytes of the images of a store; can be pickled, and used in forked processes."""

    def read(self, row: int) -> bytes:
        """The bytes of an image; raises ImageError."""

    def missing(self, rows: Sequence[int] | Rows) -> list[int]:
        """Those of the rows whose bytes are not there; nothing is decoded."""


class FolderImages:
    """Images as files of a folder, under the paths of the store."""

    def __init__(self, root: Path, images: ImageTable) -> None:
        self.root, self.images = root, images

    def read(self, row: int) -> bytes:
        """The bytes of an image."""
        name = self.images.paths([row])[0]
        if name is None:
            what = f"image {self.images.show_id(row)} has no path in the store"
            raise ImageError(f"{what}; import it again with --path-template")
        if _LEAVES.search(name):
            raise ImageError(f"{name}: leaves the image folder {self.root}")
        path = os.path.join(self.root, name)
        try:
            with open(path, "rb", buffering=0) as file:
                data = file.readall()
        except (OSError, ValueError) as error:  # ValueError: a zero character in the name
            why = error.strerror if isinstance(error, OSError) else error
            raise ImageError(f"{path}: {why}") from error
        if not data:
            raise ImageError(f"{path}: is empty")
        return data

    def missing(self, rows: Sequence[int] | Rows) -> list[int]:
        """Those of the rows whose file is not there, or empty."""
        found: list[int] = []
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            some = rows[start : start + _ROWS_AT_ONCE]
            names = zip(some, self.images.paths(some), strict=True)
            found += [int(row) for row, name in names if not self._there(name)]
        return found

    def _there(self, name: str | None) -> bool:
        if name is None or _LEAVES.search(name):
            return False
        try:
            found = os.stat(os.path.join(self.root, name))
        except (OSError, ValueError):
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size > 0


def open_folder(root: Path, store: LabelStore) -> FolderImages:
    """The files of a folder; refused when none of a sample of the images is there."""
    if root.is_file():
        kind = {".parquet": "parquet", ".tar": "tar"}.get(root.suffix, "tar or parquet")
        raise UsageError(f"{root}: is a file; for images in it say that their kind is {kind}")
    root = existing_folder(root)
    if "path" not in store.images.table.column_names and store.images.template is None:
        what = "the store has no image paths"
        raise UsageError(f"{what}; import it again with --path-template, as '{{id:016x}}.jpg'")
    source = FolderImages(root, store.images)
    rows = np.unique(np.linspace(0, len(store) - 1, min(len(store), _SAMPLE)).astype(np.int64))
    if len(rows) and len(source.missing(rows)) == len(rows):
        first = next(name for name in [*store.images.paths(rows), ""] if name is not None)
        fix = _other_root(root, first)
        raise DataError(f"has none of {len(rows)} images looked for ({first})", path=root, fix=fix)
    return source


def _other_root(root: Path, name: str) -> str:
    """Which folder was probably meant."""
    there = sorted(islice(root.iterdir(), _LISTED))
    folders = [root.parent, *(entry for entry in there if entry.is_dir())]
    for folder in folders:
        if not _LEAVES.search(name) and (folder / name).is_file():
            return f"did you mean {folder}?"
    return f"in it {suggest(Path(name).name, [entry.name for entry in there])}"


class Stretches(NamedTuple):
    """Where the bytes of each image are; arrays of equal length."""

    file: npt.NDArray[np.int32]
    """Which of the files; -1 where the image is in none."""
    offset: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]


class PackedImages:
    """Images as stretches of larger files, read in any order without a seek."""

    def __init__(self, files: Sequence[Path], places: Stretches, images: ImageTable) -> None:
        self.files, self.places, self.images = list(files), places, images
        self._handles: dict[int, _Handle] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": {}}

    def read(self, row: int) -> bytes:
        """The bytes of an image."""
        number, size = int(self.places.file[row]), int(self.places.size[row])
        if number < 0:
            among = f"{self.files[0]}{' and the others' if len(self.files) > 1 else ''}"
            raise ImageError(f"image {self.images.show_id(row)}: is not in {among}")
        if not size:
            raise self._error(row, "is empty")
        try:
            data = os.pread(self._handle(number).fd, size, int(self.places.offset[row]))
        except OSError as error:
            raise self._error(row, error.strerror) from error
        if len(data) < size:
            raise self._error(row, f"the file ends {size - len(data):,} bytes too early")
        return data

    def _error(self, row: int, why: str | None) -> ImageError:
        file = self.files[self.places.file[row]]
        return ImageError(f"image {self.images.show_id(row)} in {file}: {why}")

    def missing(self, rows: Sequence[int] | Rows) -> list[int]:
        """Those of the rows that are in no file, or empty."""
        rows = np.asarray(rows, np.int64)
        there = (self.places.file[rows] >= 0) & (self.places.size[rows] > 0)
        return [int(row) for row in rows[~there]]

    def _handle(self, number: int) -> _Handle:
        handle = self._handles.get(number)
        if handle is None:
            if len(self._handles) >= _OPEN_FILES:
                self._handles.pop(next(iter(self._handles)), None)
            handle = self._handles[number] = _Handle(self.files[number])
        return handle


class _Handle:
    """An open file that closes when the last one who reads from it is done."""

    def __init__(self, path: Path) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def listed_files(root: Path, suffix: str) -> list[Path]:
    """The files that a name stands for: a file, a folder, a pattern, or several with commas."""
    text = str(root)
    parts = [text] if root.exists() or "," not in text else text.split(",")
    found: list[Path] = []
    for part in parts:
        path = Path(part.strip()).expanduser()
        if path.is_dir():
            there = sorted(path.iterdir())
            files = [entry for entry in there if entry.name.endswith(suffix)]
            # Compressed ones are refused where they are opened, with what to do.
            files = files or [entry for entry in there if f"{suffix}." in entry.name]
            if not files:
                fix = f"in it {suggest(suffix, [entry.name for entry in there])}"
                raise DataError(f"there is no {suffix} file in the folder", path=path, fix=fix)
        elif not path.exists() and glob.has_magic(str(path)):
            files = sorted(Path(name) for name in glob.glob(str(path)))
            if not files:
                raise DataError("no file has such a name", path=path)
        else:
            files = [existing_file(path)]
        found += files
    return list(dict.fromkeys(found))
