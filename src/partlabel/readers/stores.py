"""Two or more stores into one, the earlier believed over the later: verified over machine."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Annotated

from partlabel.errors import UsageError
from partlabel.merge import merge
from partlabel.readers.base import Job
from partlabel.store import LabelStore


def read(
    job: Job, stores: Annotated[list[Path], "two or more stores; the first has the last word"]
) -> LabelStore:
    """Merge label stores."""
    if len(stores) < 2:
        raise UsageError("merging needs at least two stores")
    merged = reduce(merge, [LabelStore.open(path) for path in stores])
    if job.path_template is not None:
        merged.images = merged.images.with_template(job.path_template)
    if job.images is not None:
        merged.origin = replace(merged.origin, image_root=str(job.images.absolute()))
    return merged
