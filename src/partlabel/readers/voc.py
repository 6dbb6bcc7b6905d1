"""Pascal VOC 2007 and 2012: ImageSets/Main/CLASS_SPLIT.txt with 1, -1, and 0 for only-difficult."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from partlabel.assemble import Assembler
from partlabel.errors import DataError
from partlabel.files import existing_folder
from partlabel.readers.base import Job
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
    chosen = splits or [name for name in SPLITS if (folder / f"{name}.txt").is_file()]
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
        for index, name in enumerate(names):
            entries = _entries(job, folder / f"{name}_{split}.txt")
            for image, _ in entries:
                if image not in rows:
                    rows[image] = len(rows)
                    split_of.append(split)
                elif split_of[rows[image]] != split:
                    what = f"image {image} is in {split_of[rows[image]]} and in {split}"
                    raise DataError(what, path=folder, fix="choose --splits that do not overlap")
            keys = np.array([rows[image] for image, _ in entries], np.int64)
            states = np.array([marks[mark] for _, mark in entries], np.int8)
            known = states != 0
            labels.add(keys[known], np.full(int(known.sum()), index), states[known] < 0)
    images = ImageTable.make(list(rows), splits=split_of, template="JPEGImages/{id}.jpg")
    # The official lists name every image under every class, so only difficult ones can be unknown.
    return job.store(
        ClassTable(names), images, labels.finish(), root=root, complete=difficult != "unknown"
    )


def _entries(job: Job, path: Path) -> list[tuple[str, int]]:
    entries = []
    for number, line in enumerate(job.read_text(path).splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or words[1] not in ("1", "-1", "0"):
            fix = "expected an image id and 1, -1 or 0"
            raise DataError(f"{line[:40]!r} is not an entry", path=path, line=number, fix=fix)
        if "/" in words[0] or "\\" in words[0] or words[0].startswith("."):
            raise DataError(f"image id {words[0][:40]!r} has a path in it", path=path, line=number)
        entries.append((words[0], int(words[1])))
    return entries
