"""Files of predictions: scores per image or per pair, as npy or parquet, keyed by image id.

dense   ``.npy`` (images, classes), in the order of the store or of a list of image ids beside it;
        ``.parquet`` with ``image_id`` and a column ``scores`` of lists, in the order of the store's
        classes, or one column per class id
pairs   ``image_id``, ``class_id`` and ``score`` in one row per pair: ``.parquet``, or ``.npy`` with
        these fields

Scores are floats; of the columns per class those that are not (paths, say) are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from partlabel.errors import DataError, UsageError
from partlabel.files import existing_file
from partlabel.scores.arrays import Floats, columns, load
from partlabel.scores.common import Lookup, counted, kind_of
from partlabel.scores.dense import open_layout
from partlabel.scores.pairs import PAIR_COLUMNS, PairScores
from partlabel.store import LabelStore
from partlabel.tables import Rows

_VALUES_AT_ONCE = 1 << 22


class Scores(NamedTuple):
    """Scores of some images."""

    rows: Rows
    """The rows of the images in the store."""
    values: Floats
    """(images, classes), in the order of the store's classes; float32 or float64."""


class DenseScores:
    """A file with a score for every class of each image.

    Args:
        lookup: The file, and where its images and classes are looked up.
        image_ids: For npy files: a text file with the id of each row.
        common: Take what file and store have in common, instead of refusing a difference.
        sample: The file may lack images of the store.
    """

    def __init__(
        self,
        lookup: Lookup,
        *,
        image_ids: Path | None = None,
        common: bool = False,
        sample: bool = False,
    ) -> None:
        self.lookup, self.path, self.store = lookup, lookup.path, lookup.store
        self._layout = open_layout(lookup, image_ids=image_ids, common=common)
        self.has_class, self.left_out = self._layout.has_class, self._layout.left_out
        ids = self._layout.ids
        self._rows = np.arange(len(self.store)) if ids is None else lookup.rows(ids)
        seen = np.bincount(self._rows[self._rows >= 0], minlength=len(self.store))
        if (seen > 1).any():
            which = self.store.images.show_id(int(np.argmax(seen > 1)))
            raise DataError(f"image {which!r} is there twice", path=self.path)
        lacking = np.flatnonzero(seen == 0)[: 0 if sample else None]
        if common:
            self._note(len(lacking))
        else:
            self._refuse(lacking)

    def _note(self, lacking: int) -> None:
        place, extra = self.lookup.place, int((self._rows < 0).sum())
        if extra == len(self._rows):
            raise DataError(f"has no image of the {place}: nothing in common", path=self.path)
        if extra:
            self.left_out.append(f"{counted(extra, 'image is', 'images are')} not in the {place}")
        if lacking:
            what = (f"image of the {place} has no scores", f"images of the {place} have no scores")
            self.left_out.append(counted(lacking, *what))

    def _refuse(self, lacking: Rows) -> None:
        extra = np.flatnonzero(self._rows < 0)
        if len(extra):
            what = self.lookup.unknown(self._layout.ids, int(extra[0]))
            what += f", the first of {len(extra):,}" if len(extra) > 1 else ""
            raise DataError(what, path=self.path, fix=self.lookup.or_common())
        if len(lacking):
            images = counted(len(self.store), "image", "images")
            first = self.store.images.show_id(int(lacking[0]))
            what = f"has no scores for {len(lacking):,} of {images} ({first!r})"
            fix = "" if self.lookup.whole is not None else ", --split takes one split"
            raise DataError(what, path=self.path, fix=f"{self.lookup.or_common()}{fix}")

    def stretches(self) -> Iterator[Scores]:
        """The scores, some images at a time; refuses what is not finite."""
        position = 0
        for values in self._layout.blocks(_VALUES_AT_ONCE // max(len(self.has_class), 1) or 1):
            rows = self._rows[position : position + len(values)]
            position += len(values)
            if (rows < 0).any():
                values, rows = values[rows >= 0], rows[rows >= 0]
            if not np.isfinite(values).all():
                image, which = np.argwhere(~np.isfinite(values))[0]
                raise self.lookup.not_finite(rows[image], which, values[image, which])
            yield Scores(rows, values)


def open_scores(
    path: str | Path,
    store: LabelStore,
    *,
    image_ids: Path | None = None,
    common: bool = False,
    whole: LabelStore | None = None,
) -> DenseScores | PairScores:
    """Open a file of scores, dense or pairs, whichever it is.

    Args:
        path: See the top of this module.
        store: Where the images and classes are looked up.
        image_ids: For dense npy files: a text file with the id of each row.
        common: Take what file and store have in common, instead of refusing a difference.
        whole: The store that ``store`` is one split of.
    """
    lookup = Lookup(existing_file(path), store, whole)
    pairs = _has_pairs(lookup)
    if image_ids is not None and (pairs or kind_of(lookup.path) != "npy"):
        raise UsageError("--image-ids goes with a dense npy file; others have a column image_id")
    if pairs:
        return PairScores(lookup, common=common)
    return DenseScores(lookup, image_ids=image_ids, common=common)


def read_scores(path: str | Path, store: LabelStore) -> Iterator[Scores]:
    """Read dense scores of all or some images of a store, in stretches."""
    lookup = Lookup(existing_file(path), store, options=False)
    return DenseScores(lookup, sample=True).stretches()


def _has_pairs(lookup: Lookup) -> bool:
    path, classes = lookup.path, lookup.store.classes
    if kind_of(path) == "npy":
        fields = load(path).dtype.names
        missing = [name for name in PAIR_COLUMNS if name not in (fields or PAIR_COLUMNS)]
        if missing:
            fix = f"pairs have {', '.join(PAIR_COLUMNS)}"
            raise DataError(f"has no field {missing[0]!r}", path=path, fix=fix)
        return fields is not None
    import pyarrow as pa

    kinds = columns(path)
    if not set(PAIR_COLUMNS) <= set(kinds):
        return False
    # Classes may be called so too: then floats in class_id are its scores, not ids.
    named_so = {"class_id", "score"} <= set(classes.ids)
    return not (named_so and pa.types.is_floating(kinds["class_id"]))
