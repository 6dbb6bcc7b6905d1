"""LVIS v1, v0.5: annotated or not exhaustive is present, neg_category_ids absent, rest unknown."""

from __future__ import annotations

from typing import Annotated, Any

from partlabel.readers.base import Job, split_and_file
from partlabel.readers.instances import Instances, image_root, read_instances, whole
from partlabel.store import LabelStore

OFFICIAL = r"^lvis_v(?:1|0\.5)_(train|val)"


def read(
    job: Job, files: Annotated[list[str], "[SPLIT=]FILE, one or more, as lvis_v1_train.json"]
) -> LabelStore:
    """Read LVIS files; images with verified negatives only are kept."""
    found = read_instances(job, files, OFFICIAL, _verified)
    labels = found.assembler().finish()
    labels.duplicates = 0  # several objects of one class in an image are no repetition
    root = image_root(split_and_file(files[0], OFFICIAL)[1])
    return job.store(found.classes(), found.table(), labels, root=root)


def _verified(found: Instances, image: dict[str, Any]) -> None:
    for category in image["neg_category_ids"]:
        found.label(whole(image["id"]), whole(category), absent=True)
    for category in image["not_exhaustive_category_ids"]:
        found.label(whole(image["id"]), whole(category), absent=False)
