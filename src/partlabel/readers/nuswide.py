"""NUS-WIDE: one file of 0/1 lines per concept, in the order of the image lists. Complete labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt

from partlabel.assemble import Assembler
from partlabel.errors import DataError, LabelValueError
from partlabel.files import existing_folder
from partlabel.readers.base import Job, lines_of, relative_paths
from partlabel.readers.scan_csv import BadRow
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
        names = _image_names(job, list_path, job.images or root)
        for index, concept in enumerate(concepts):
            present = _present(job, folder / f"Labels_{concept}_{part}.txt", len(names), list_path)
            rows = np.flatnonzero(present)
            labels.add(rows + len(paths), np.full(len(rows), index), np.zeros(len(rows), np.bool_))
        paths += names
        splits += [split] * len(names)
    images = ImageTable.make(pa.array(paths, pa.string()), splits=splits, template="{id}")
    return job.store(ClassTable(concepts), images, labels.finish(), root=root, complete=True)


def _image_names(job: Job, path: Path, root: Path) -> list[str]:
    import pyarrow as pa

    lines = [line.strip().replace("\\", "/") for line in lines_of(job.read_text(path))]
    numbers = [number for number, line in enumerate(lines, 1) if line]
    try:
        names = relative_paths(pa.array([line for line in lines if line], pa.string()), root)
    except BadRow as error:
        line = numbers[error.row]
        raise DataError(error.what, path=path, line=line, fix=error.fix) from None
    return list(names.to_pylist())


def _present(job: Job, path: Path, images: int, list_path: Path) -> npt.NDArray[np.bool_]:
    marks = []
    for number, line in enumerate(lines_of(job.read_text(path)), 1):
        for mark in line.split():
            if mark not in ("0", "1"):
                what = f"{mark[:20]!r} is not 0 or 1"
                raise LabelValueError(what, path=path, line=number, fix="one label per line")
            marks.append(mark == "1")
    if len(marks) != images:
        what = f"has {len(marks)} labels, {list_path.name} has {images} images"
        raise DataError(what, path=path, fix="use labels and list of the same download")
    return np.array(marks, np.bool_)
