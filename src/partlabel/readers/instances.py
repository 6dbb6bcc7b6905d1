"""The json of COCO and LVIS: images, categories, annotations of objects. Read as image labels."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from partlabel.assemble import Assembler
from partlabel.errors import DataError
from partlabel.readers.base import Job, split_and_file, unless_template
from partlabel.readers.scan_json import JsonFile
from partlabel.tables import ClassTable, ImageTable

TEMPLATES = ("{split}2017/{id:012d}.jpg", "{split}2014/COCO_{split}2014_{id:012d}.jpg")
KEYS = ("images", "categories", "annotations")
WHOLE = 1 << 62  # ids beyond this are not ids


@dataclass
class Instances:
    """What one or more files say, as columns; images and categories in the order of the files."""

    ids: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    splits: list[str | None] = field(default_factory=list)
    categories: dict[int, str] = field(default_factory=dict)
    image_of: array[int] = field(default_factory=lambda: array("q"))
    category_of: array[int] = field(default_factory=lambda: array("q"))
    absent: array[int] = field(default_factory=lambda: array("b"))

    def label(self, image: int, category: int, *, absent: bool) -> None:
        """Take one label."""
        self.image_of.append(image)
        self.category_of.append(category)
        self.absent.append(absent)

    def classes(self) -> ClassTable:
        """The class table: ids are the category ids."""
        return ClassTable([str(i) for i in self.categories], list(self.categories.values()))

    def table(self) -> ImageTable:
        """The image table; official paths become a template."""
        first = next(zip(self.paths, self.ids, self.splits, strict=True), ("", 0, None))
        template = next(
            (t for t in TEMPLATES if t.format(id=first[1], split=first[2]) == first[0]), None
        )
        paths: list[str | None] = list(self.paths)
        if template is not None:
            paths = unless_template(self.paths, self.ids, self.splits, template)
        return ImageTable.make(
            np.array(self.ids, np.int64), paths=paths, splits=self.splits, template=template
        )

    def assembler(self) -> Assembler:
        """The labels, ready to be finished; keys are rows."""
        labels = Assembler(classes=len(self.categories))
        labels.add(
            _positions(np.frombuffer(self.image_of, np.int64), self.ids),
            _positions(np.frombuffer(self.category_of, np.int64), list(self.categories)),
            np.frombuffer(self.absent, np.int8).astype(np.bool_),
        )
        return labels


def read_instances(
    job: Job,
    files: list[str],
    official: str,
    more: Callable[[Instances, dict[str, Any]], None] | None = None,
) -> Instances:
    """Read files of one data set; ``more`` takes further labels from each image's entry."""
    found = Instances()
    for file in files:
        split, path = split_and_file(file, official)
        _read_file(job, path, split, found, more)
    return found


def _read_file(
    job: Job,
    path: Path,
    split: str | None,
    found: Instances,
    more: Callable[[Instances, dict[str, Any]], None] | None,
) -> None:
    images, labels = len(found.ids), len(found.image_of)
    categories: dict[int, str] = {}
    source = job.open(path)
    stream = JsonFile(source)
    for key, index, entry in stream.pairs():
        if key not in KEYS:
            continue
        if index is None:
            what = "must be a list" if entry is not None else "must be a list, is null"
            raise DataError(what, path=path, key=key)
        try:
            _take(found, categories, key, entry, split, more)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            what = f"is not as in COCO or LVIS ({_explained(error, entry)})"
            raise DataError(what, path=path, key=f"{key}[{index}]") from error
    job.done(source)
    for key in KEYS:
        if key not in stream.arrays:
            fix = "is this an instances file of COCO or LVIS?"
            raise DataError(f"has no {key!r}", path=path, fix=fix)
    if found.categories and categories != found.categories:
        raise DataError("has other categories than the files before it", path=path)
    found.categories = categories
    _check(found.image_of[labels:], found.ids[images:], path, "image", "images")
    _check(found.category_of[labels:], list(categories), path, "category", "categories")


def _explained(error: Exception, entry: Any) -> str:
    if isinstance(error, KeyError):
        return f"no {error.args[0]!r}"
    return str(error) if isinstance(error, ValueError) else f"other types in {entry!r:.60}"


def _take(
    found: Instances,
    categories: dict[int, str],
    key: str,
    entry: Any,
    split: str | None,
    more: Callable[[Instances, dict[str, Any]], None] | None,
) -> None:
    if key == "images":
        found.ids.append(whole(entry["id"]))
        found.paths.append(image_path(entry))
        found.splits.append(split)
        if more is not None:
            more(found, entry)
    elif key == "categories":
        number = whole(entry["id"])
        if number in categories:
            raise ValueError(f"category {number} is there twice")
        categories[number] = text(entry["name"])
    elif key == "annotations":
        found.label(whole(entry["image_id"]), whole(entry["category_id"]), absent=False)


def whole(value: Any) -> int:
    """A json value that must be a whole number of ordinary size."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < WHOLE:
        raise ValueError(f"{value!r} is not an id")
    return value


def text(value: Any) -> str:
    """A json value that must be text which can be written down."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    value.encode()  # half a surrogate pair is a ValueError
    return value


def image_path(entry: dict[str, Any]) -> str:
    """The folder and name of an image, as in train2017/000000000009.jpg where the file says it."""
    url = entry.get("coco_url")
    path = "/".join(text(url).split("/")[-2:]) if url else text(entry["file_name"])
    if path.startswith("/") or ".." in path.split("/") or "\\" in path or "\x00" in path:
        raise ValueError(f"image path {path!r} leaves the image folder")
    return path


def image_root(path: Path) -> Path:
    """Official files lie in annotations/ beside the image folders."""
    folder = path.absolute().parent
    return folder.parent if folder.name == "annotations" else folder


def _positions(values: Any, table: list[int]) -> Any:
    """The place of each value in an unsorted table that has them all."""
    column = np.array(table, np.int64)
    order = np.argsort(column, kind="stable")
    return order[np.searchsorted(column, values, sorter=order)] if len(values) else values


def _check(used: Any, listed: list[int], path: Path, what: str, where: str) -> None:
    """Check that labels speak only of what the same file lists."""
    missing = set(used) - set(listed)
    if missing:
        raise DataError(
            f"an annotation is of {what} {min(missing)}, which is not in {where!r}", path=path
        )
