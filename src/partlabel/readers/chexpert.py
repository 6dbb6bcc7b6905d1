"""CheXpert: 1.0 present, 0.0 absent, -1.0 uncertain (kept in a store beside), blank unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from partlabel.assemble import Assembler
from partlabel.errors import DataError, LabelValueError
from partlabel.readers.base import Job, relative_paths, split_and_file
from partlabel.readers.rows import ImageRows
from partlabel.readers.scan_csv import BadRow, CsvFile
from partlabel.store import LabelStore
from partlabel.tables import ClassTable

OFFICIAL = r"^(train|valid|test)[^/]*\.csv"
ABOUT = ("Path", "Sex", "Age", "Frontal/Lateral", "AP/PA")


def read(
    job: Job,
    files: Annotated[list[str], "[SPLIT=]FILE, as train.csv and valid.csv"],
    *,
    uncertain: Annotated[
        Literal["unknown", "present", "absent"], "what -1 (uncertain) becomes in the main store"
    ] = "unknown",
) -> LabelStore:
    """Read CheXpert; the uncertain labels are also saved as NAME.uncertain.labels."""
    images = ImageRows()
    root = job.images or _root(split_and_file(files[0], OFFICIAL)[1].absolute())
    names: list[str] = []
    labels = unsure = Assembler(classes=1)
    for file in files:
        split, path = split_and_file(file, OFFICIAL)
        source = job.open(path)
        table = CsvFile(source)
        table.require("Path")
        here = [name for name in table.columns if name not in ABOUT]
        if not names:
            names = here
            labels, unsure = Assembler(classes=len(names)), Assembler(classes=len(names))
        if not here:
            raise DataError("has no observation columns", path=path, line=1)
        if here != names:
            raise DataError("has other observations than the files before it", path=path, line=1)
        _read_file(table, split, names, images, root, labels, unsure, uncertain)
        job.done(source)
    table_of_images = images.table()
    doubt = unsure.finish()
    job.note(len(doubt.codes), f"uncertain labels, taken as {uncertain}")
    classes = ClassTable(names)
    job.siblings["uncertain"] = job.store(classes, table_of_images, doubt, root=root)
    return job.store(classes, table_of_images, labels.finish(), root=root)


def _read_file(
    table: CsvFile,
    split: str | None,
    names: list[str],
    images: ImageRows,
    root: Path,
    labels: Assembler,
    unsure: Assembler,
    uncertain: str,
) -> None:
    import pyarrow as pa

    types = {"Path": pa.string(), **{name: pa.float64() for name in names}}

    def take(block: Any) -> None:
        paths = relative_paths(block["Path"].combine_chunks(), root)
        rows = images.rows(paths, splits=pa.array([split] * block.num_rows, pa.string()))
        for index, name in enumerate(names):
            values = block[name].to_numpy()
            wrong = np.flatnonzero(~(np.isin(values, (1.0, 0.0, -1.0)) | np.isnan(values)))
            if len(wrong):
                what = f"{name} {values[wrong[0]]:g} is not 1, 0, -1 or blank"
                fix = "CheXpert has no other values"
                raise BadRow(int(wrong[0]), what, fix, LabelValueError)
            doubt = values == -1
            unsure.add(
                rows[doubt], np.full(int(doubt.sum()), index), np.zeros(int(doubt.sum()), np.bool_)
            )
            known = (values == 1) | (values == 0)
            if uncertain != "unknown":
                known |= doubt
            absent = (values == 0) | (doubt & (uncertain == "absent"))
            labels.add(rows[known], np.full(int(known.sum()), index), absent[known])

    table.each(types, take)


def _root(csv: Path) -> Path:
    """Paths begin with the name of the folder that the csv lies in, as CheXpert-v1.0-small."""
    return csv.parent.parent if csv.parent.name.startswith("CheXpert") else csv.parent
