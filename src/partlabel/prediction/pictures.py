"""The images to predict: files of folders, or the rows of a store; listed in order, read later."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

from partlabel.config import Config
from partlabel.errors import DataError, UsageError, suggest
from partlabel.images import ImageError, ImageSource, open_images
from partlabel.store import LabelStore
from partlabel.training.rundata import VALIDATION

SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff",
            ".jp2", ".ppm", ".pgm", ".pnm")  # fmt: skip
"""How a file in a folder ends if it is an image; in any case of letters."""


class Picture(NamedTuple):
    """One image."""

    key: str
    """What it is called in the result: its id in the store, or its path below the folder."""
    place: str | int
    """Where it is read: a path, or a row of the store."""


class Pictures(Protocol):
    """Images in an order that is the same for every process."""

    ids_are: str
    """How a table keeps the keys: string, or int64 for a store with such ids."""

    def __len__(self) -> int: ...

    def part(self, start: int, stop: int) -> Iterator[Picture]:
        """Those from ``start`` to ``stop``, one at a time."""

    def read(self, picture: Picture) -> bytes:
        """The bytes of the file; raises ImageError."""


class FilePictures:
    """Image files: those named, and those in folders and all folders below, by name.

    Hidden files and folders are left out. The names of one folder are held at a time, not of all.

    Args:
        paths: Files and folders. Of a single folder the keys are the paths below it; else they
            begin as the path was given.
    """

    ids_are = "string"

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = [Path(path) for path in paths]
        for path in self.paths:
            _refuse_missing(path)
        _refuse_overlap(self.paths)

    def __len__(self) -> int:
        return self._count

    @cached_property
    def _count(self) -> int:
        return sum(1 for _ in self._all())

    def part(self, start: int, stop: int) -> Iterator[Picture]:
        """Those from ``start`` to ``stop``, one at a time."""
        return islice(self._all(), start, stop)

    def read(self, picture: Picture) -> bytes:
        """The bytes of the file."""
        try:
            return Path(picture.place).read_bytes()  # type: ignore[arg-type]  # a path, of ours
        except OSError as error:
            raise ImageError(f"cannot be read ({error.strerror or error})") from error

    def _all(self) -> Iterator[Picture]:
        alone = len(self.paths) == 1
        for path in self.paths:
            if not path.is_dir():
                yield Picture(_text(path.as_posix()), str(path))
                continue
            start = PurePosixPath() if alone else PurePosixPath(path.as_posix())
            for below in _images_below(path, ()):
                key = (start / below).as_posix()
                yield Picture(_text(key), str(path / below))


@dataclass(frozen=True)
class StorePictures:
    """The images of a store."""

    store: LabelStore
    source: ImageSource

    @property
    def ids_are(self) -> str:
        """Hex ids are text in files, as people write them."""
        return "int64" if self.store.images.id_type == "int64" else "string"

    def __len__(self) -> int:
        return len(self.store)

    def part(self, start: int, stop: int) -> Iterator[Picture]:
        """Those from ``start`` to ``stop``, one at a time."""
        show = self.store.images.show_id
        return (Picture(show(row), row) for row in range(start, min(stop, len(self.store))))

    def read(self, picture: Picture) -> bytes:
        """The bytes of the file."""
        return self.source.read(int(picture.place))


def is_store(path: Path) -> bool:
    """Whether a path is a label store, not a folder of images."""
    return (path / "meta.json").is_file() and (path / "indptr.npy").is_file()


def find_images(paths: Sequence[Path]) -> FilePictures:
    """The image files of some paths; refuses what has none."""
    found = FilePictures(paths)
    if next(found.part(0, 1), None) is None:
        named = ", ".join(map(str, paths))
        there = sorted({_suffix(name) for path in paths for name in _some_names(path)})
        have = f"files there end in {', '.join(there[:8])}" if there else "there are no files"
        raise UsageError(f"{named}: no images found ({have}); images end in .jpg, .png, .webp, ...")
    return found


def store_images(
    config: Config,
    path: Path,
    *,
    split: str | None = None,
    kind: str | None = None,
    root: Path | None = None,
) -> StorePictures:
    """The images of a store.

    Args:
        config: The run's: its own stores have their images where it says.
        path: The store.
        split: Only these.
        kind: ``folder``, ``tar`` or ``parquet``; default: the run's for its own stores, else
            ``folder``.
        root: Where they are; default: where the run has them for its own stores, else where the
            store says.
    """
    whole = LabelStore.open(path)
    store = whole if split is None else whole.split(split)
    if not len(store):
        raise UsageError(f"{path}: has no images")
    images, data = config.images, config.data
    validating = data.val is None and split in (data.val_split, *VALIDATION)
    own_root = (images.val_root if validating else None) or images.root
    for own, place in ((data.train, own_root), (data.val, images.val_root or images.root)):
        if own is not None and _same(own, path) and root is None and kind is None:
            root, kind = place, images.kind
            break
    if root is None:
        if not whole.origin.image_root:
            raise UsageError(f"{path}: does not say where its images are; add --image-root")
        root = Path(whole.origin.image_root)
    return StorePictures(store, open_images(kind or "folder", root, store, cache=images.cache))


def _images_below(folder: Path, parents: tuple[tuple[int, int], ...]) -> Iterator[PurePosixPath]:
    """Paths of images below a folder, by name; links are followed, but not in circles."""
    try:
        status = os.stat(folder)
        here = (status.st_dev, status.st_ino)
        if here in parents:
            return
        with os.scandir(folder) as entries:
            found = sorted(
                (entry.name, entry.is_dir())
                for entry in entries
                if not entry.name.startswith(".") and (_is_image(entry.name) or entry.is_dir())
            )
    except OSError as error:
        what = f"cannot be listed ({error.strerror or error})"
        raise DataError(what, path=folder) from error
    for name, is_folder in found:
        if is_folder:
            for below in _images_below(folder / name, (*parents, here)):
                yield name / below
        else:
            yield PurePosixPath(name)


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower() or "no suffix"


def _some_names(path: Path) -> list[str]:
    """The first names in a folder, to say what is there instead of images."""
    if not path.is_dir():
        return []
    with os.scandir(path) as entries:
        return [entry.name for entry in islice(entries, 100) if entry.is_file()]


def _text(name: str) -> str:
    """A file name as text that can be written: names on a disk need not be UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _refuse_missing(path: Path) -> None:
    if path.exists():
        return
    parent = path.parent
    if not parent.is_dir():
        raise UsageError(f"{path}: no such file or folder; there is no folder {parent}")
    names = sorted(entry.name for entry in parent.iterdir())
    raise UsageError(f"{path}: no such file or folder; in {parent} {suggest(path.name, names)}")


def _refuse_overlap(paths: Sequence[Path]) -> None:
    """Each image once: a key that is there twice is of no use to anybody."""
    seen: dict[Path, Path] = {}
    for path in paths:
        whole = path.resolve()
        if whole in seen:
            raise UsageError(f"--images: {path} is there twice; name it once")
        seen[whole] = path
    for whole, path in seen.items():
        for parent in whole.parents:
            if parent in seen:
                raise UsageError(f"--images: {path} is in {seen[parent]} already; name it once")


def _same(one: Path, other: Path) -> bool:
    return one.exists() and os.path.samefile(one, other)


def key_values(keys: Sequence[str], ids_are: str) -> Any:
    """Keys as a column of a table."""
    import pyarrow as pa

    if ids_are == "int64":
        return pa.array([int(key) for key in keys], pa.int64())
    return pa.array(keys, pa.string())
