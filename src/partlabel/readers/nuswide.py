"""NUS-WIDE: one file of 0/1 lines per concept, in the order of the image lists. Complete labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt

from partlabel.assemble import Assembler
from partlabel.errors import DataError
from partlabel.files import existing_folder
from partlabel.readers.base import Job, relative_paths
from partlabel.store import LabelStore
from partlabel.tables import ClassTable, ImageTable

SPLITS = {"Train": "train", "Test": "test"}


def read(
    job: Job, root: Annotated[Path, "the folder with ImageList and Groundtruth/TrainTestLabels"]
) -> LabelStore:
    """Read the official train/test labels of the 81 concepts."""
    import pyarrow as pa

    lists = existing_folder(existing_folder(root) / "ImageList")
    folder = existing_folder(root / "Groundtruth" / "TrainTestLabels")
    found = (re.fullmatch(r"Labels_(.+)_(Train|Test)\.txt", path.name) for path in folder.iterdir())
    concepts = sorted({match[1] for match in found if match})
    if not concepts:
        raise DataError("has no files like Labels_sky_Train.txt", path=folder)
    paths: list[str] = []
    splits: list[str] = []
    labels = Assembler(classes=len(concepts))
    for part, split in SPLITS.items():
        list_path = lists / f"{part}Imagelist.txt"
        names = [line.strip().replace("\\", "/") for line in job.read_text(list_path).splitlines()]
        names = [name for name in names if name]
        for index, concept in enumerate(concepts):
            present = _present(job, folder / f"Labels_{concept}_{part}.txt", len(names), list_path)
            rows = np.flatnonzero(present)
            labels.add(rows + len(paths), np.full(len(rows), index), np.zeros(len(rows), np.bool_))
        paths += names
        splits += [split] * len(names)
    ids = relative_paths(pa.array(paths, pa.string()), job.images or root)
    images = ImageTable.make(ids, splits=splits, template="{id}")
    return job.store(ClassTable(concepts), images, labels.finish(), root=root, complete=True)


def _present(job: Job, path: Path, images: int, list_path: Path) -> npt.NDArray[np.bool_]:
    marks = job.read_text(path).split()
    for number, mark in enumerate(marks, 1):
        if mark not in ("0", "1"):
            raise DataError(f"{mark[:20]!r} is not 0 or 1", path=path, line=number)
    if len(marks) != images:
        what = f"has {len(marks)} labels, {list_path.name} has {images} images"
        raise DataError(what, path=path, fix="use labels and list of the same download")
    return np.array([mark == "1" for mark in marks], np.bool_)
