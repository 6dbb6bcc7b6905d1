"""COCO instances 2014 and 2017: every class without an object in the image is verified absent."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from partlabel.readers.base import Job, split_and_file
from partlabel.readers.instances import image_root, read_instances
from partlabel.store import LabelStore

OFFICIAL = r"^instances_(train|val)20\d\d"


def read(
    job: Job,
    files: Annotated[list[str], "[SPLIT=]FILE, one or more, as instances_train2014.json"],
    *,
    keep_empty: Annotated[
        bool, "keep images without any annotation (the paper drops them)"
    ] = False,
) -> LabelStore:
    """Read COCO instances files."""
    found = read_instances(job, files, OFFICIAL)
    labels = found.assembler().finish()
    labels.duplicates = 0  # several objects of one class in an image are no repetition
    root = image_root(split_and_file(files[0], OFFICIAL)[1])
    store = job.store(found.classes(), found.table(), labels, root=root, complete=True)
    annotated = np.flatnonzero(np.diff(store.indptr))
    if keep_empty or len(annotated) == len(store):
        return store
    dropped = len(store) - len(annotated)
    note = f"{dropped:,} images without annotation left out (--keep-empty keeps them)"
    kept = store.select(annotated)
    return kept.with_labels(kept.indptr, kept.codes, notes=(*store.origin.notes, note))
