"""Files of the world into a LabelStore: one small module per format, one table of them all.

A reader is a function ``read(job, sources, *, options) -> LabelStore``. Its signature is its
command line: ``partlabel import NAME`` takes the same arguments, with the annotations as help.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from partlabel import draw
from partlabel.errors import DataError, UsageError
from partlabel.files import Progress, Silent
from partlabel.folder import new_folder, refuse_existing
from partlabel.readers import chexpert, coco, csl, lvis, nuswide, openimages, stores, table, voc
from partlabel.readers.base import CONFLICT, Job
from partlabel.store import LabelStore
from partlabel.tables import check_template

READERS: dict[str, Callable[..., LabelStore]] = {
    "table": table.read,
    "openimages": openimages.read,
    "csl": csl.read,
    "lvis": lvis.read,
    "coco": coco.read,
    "voc": voc.read,
    "nuswide": nuswide.read,
    "chexpert": chexpert.read,
    "stores": stores.read,
}

_CHECK_AT_MOST = 200_000  # images looked for on disk; of more, an even sample


def import_labels(
    name: str,
    sources: Any,
    *,
    out: Path,
    images: Path | None = None,
    path_template: str | None = None,
    val: float | None = None,
    seed: int = 0,
    strict: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> dict[Path, LabelStore]:
    """Read a data set, save it as ``out``, and give back what was saved where.

    Args:
        name: A key of READERS.
        sources: What the reader reads: a list of files, or a folder.
        out: The store to write; further layers are written beside it.
        images: The folder with the images; default is beside the label files.
        path_template: How to make a path from id and split, as ``{split}/{id:016x}.jpg``.
        val: The share of images to put into split "val" where the data has no splits.
        seed: Which images those are.
        strict: Refuse labels that are annotated both present and absent.
        overwrite: Replace what is at ``out``.
        progress: Who is told how far it is.
        options: The reader's own.
    """
    if name not in READERS:
        raise UsageError(f"there is no format {name!r}; choose from {', '.join(READERS)}")
    if val is not None and not 0 < val < 1:
        raise UsageError(f"--val must be between 0 and 1, got {val:g}")
    refuse_existing(out, overwrite=overwrite)
    if path_template is not None:
        check_template(path_template)
    with Job(images=images, path_template=path_template, progress=progress or Silent()) as job:
        store = READERS[name](job, sources, **options)
    if strict and store.origin.conflicts:
        raise _contradiction(job, store)
    layers = {out: store} | {
        out.with_name(f"{out.name.removesuffix('.labels')}.{layer}.labels"): sibling
        for layer, sibling in job.siblings.items()
    }
    for path in layers:
        refuse_existing(path, overwrite=overwrite)
    made_by = {"import": name, **_recorded(options)}
    if val is not None:
        _set_val(layers.values(), val, seed=seed)
        made_by |= {"val": val, "seed": seed}
    with ExitStack() as stack:  # all layers are written before the first is put in place
        for path, layer in layers.items():
            layer.origin = replace(layer.origin, made_by=layer.origin.made_by or made_by)
            layer.write(stack.enter_context(new_folder(path, overwrite=overwrite)))
    return layers


def _contradiction(job: Job, store: LabelStore) -> DataError:
    shown = [note for note in store.origin.notes if note.startswith(CONFLICT)]
    example = shown[0].removeprefix(CONFLICT) if shown else "the stores disagree"
    what = f"{store.origin.conflicts:,} labels are annotated present and absent: {example}"
    fix = "mend them, or leave --strict out: then present wins"
    return DataError(what, path=job.place() or None, fix=fix)


def _set_val(stores: Collection[LabelStore], share: float, *, seed: int) -> None:
    """Put a share of the images into split "val", the rest into "train"; the same in all layers."""
    first = next(iter(stores))
    if set(first.images.split_counts) - {""}:
        there = ", ".join(first.images.split_counts)
        raise UsageError(f"--val: the data has splits already ({there}); leave --val out")
    if len(first) < 2:
        raise UsageError(f"--val: {len(first)} images cannot be split")
    count = min(max(round(share * len(first)), 1), len(first) - 1)
    bound = np.sort(draw.image_keys(first.images, seed=seed, purpose="val"))[count - 1]
    for store in stores:
        chosen = draw.image_keys(store.images, seed=seed, purpose="val") <= bound
        store.images = store.images.with_splits(np.where(chosen, "val", "train"))


def images_found(store: LabelStore) -> tuple[int, int, str | None]:
    """How many images are on disk, of how many looked for, and the first that is not.

    All that have a path are looked for, or an even sample where there are very many.
    """
    root = store.origin.image_root
    if root is None or not len(store):
        return 0, 0, None
    step = -(-len(store) // _CHECK_AT_MOST)
    paths = store.images.paths(np.arange(0, len(store), step))
    wanted = [path for path in paths if path is not None]
    folders: dict[Path, bool] = {}
    missing = []
    for path in wanted:
        full = Path(root, path)
        if full.parent not in folders:
            folders[full.parent] = full.parent.is_dir()
        if not (folders[full.parent] and full.is_file()):
            missing.append(path)
    return len(wanted) - len(missing), len(wanted), missing[0] if missing else None


def _recorded(options: dict[str, Any]) -> dict[str, Any]:
    """Options as they go into meta.json: files by name, what was not given left out."""
    return {
        name: _plain(value) for name, value in options.items() if value not in (None, False, [])
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return value.name
    return [_plain(entry) for entry in value] if isinstance(value, list) else value
