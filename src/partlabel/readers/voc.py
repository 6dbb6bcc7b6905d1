"""Pascal VOC 2007 and 2012: ImageSets/Main/CLASS_SPLIT.txt with 1, -1, and 0 for only-difficult."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from partlabel.assemble import Assembler
from partlabel.errors import DataError, LabelValueError, suggest
from partlabel.files import existing_folder
from partlabel.readers.base import Job, lines_of
from partlabel.store import LabelStore
from partlabel.tables import ClassTable, ImageTable

SPLITS = ("train", "val", "test")


def read(
    job: Job,
    root: Annotated[Path, "the folder with ImageSets and JPEGImages, as VOCdevkit/VOC2007"],
    *,
    splits: Annotated[
        list[str] | None, "default: those of train, val and test that are there"
    ] = None,
    difficult: Annotated[
        Literal["unknown", "absent", "present"], "what a class with only difficult objects is"
    ] = "unknown",
) -> LabelStore:
    """Read the image sets of Pascal VOC."""
    folder = existing_folder(existing_folder(root) / "ImageSets" / "Main")
    there = sorted({path.stem for path in folder.glob("*.txt") if "_" not in path.stem})
    chosen = splits or [name for name in SPLITS if name in there]
    for split in chosen:
        if split not in there:
            what = f"there is no {split}.txt"
            raise DataError(what, path=folder, fix=suggest(split, there))
    if not chosen:
        raise DataError("has no train.txt, val.txt or test.txt", path=folder, fix="name --splits")
    names = sorted(
        {path.name.removesuffix(f"_{s}.txt") for s in chosen for path in folder.glob(f"*_{s}.txt")}
    )
    if not names:
        raise DataError(f"has no files like cat_{chosen[0]}.txt", path=folder)
    marks = {1: 1, -1: -1, 0: {"unknown": 0, "absent": -1, "present": 1}[difficult]}
    rows: dict[str, int] = {}
    split_of: list[str] = []
    labels = Assembler(classes=len(names))
    for split in chosen:
        listed = _images(job, folder / f"{split}.txt")
        for image in listed:
            if image in rows:
                what = f"image {image} is in {split_of[rows[image]]} and in {split}"
                fix = "choose --splits that do not overlap"
                raise DataError(what, path=folder / f"{split}.txt", fix=fix)
            rows[image] = len(rows)
            split_of.append(split)
        for index, name in enumerate(names):
            path = folder / f"{name}_{split}.txt"
            entries = _entries(job, path)
            _compare(dict(entries).keys(), listed, path, split)
            keys = np.array([rows[image] for image, _ in entries], np.int64)
            states = np.array([marks[mark] for _, mark in entries], np.int8)
            known = states != 0
            labels.add(keys[known], np.full(int(known.sum()), index), states[known] < 0)
    images = ImageTable.make(list(rows), splits=split_of, template="JPEGImages/{id}.jpg")
    # Every class file names every image of the split, so only difficult ones can be unknown.
    complete = difficult != "unknown"
    return job.store(ClassTable(names), images, labels.finish(), root=root, complete=complete)


def _images(job: Job, path: Path) -> list[str]:
    lines = lines_of(job.read_text(path))
    return [
        _image_id(line.split()[0], path, number)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]


def _compare(found: Collection[str], listed: list[str], path: Path, split: str) -> None:
    differ = set(found) ^ set(listed)
    if differ:
        image = min(differ)
        where = "missing here" if image in listed else f"not in {split}.txt"
        what = f"{len(differ)} images differ from {split}.txt: {image} is {where}"
        raise DataError(what, path=path, fix="is the file cut off? Fetch it again")


def _image_id(text: str, path: Path, line: int) -> str:
    if "/" in text or "\\" in text or text.startswith("."):
        what = f"image id {text[:40]!r} has a path in it"
        raise DataError(what, path=path, line=line, fix="expected an id like 000005")
    return text


def _entries(job: Job, path: Path) -> list[tuple[str, int]]:
    entries = []
    for number, line in enumerate(lines_of(job.read_text(path)), 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or words[1] not in ("1", "-1", "0"):
            fix = "expected an image id and 1, -1 or 0"
            what = f"{line[:40]!r} is not an entry"
            raise LabelValueError(what, path=path, line=number, fix=fix)
        entries.append((_image_id(words[0], path, number), int(words[1])))
    return entries
