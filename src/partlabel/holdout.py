"""Annotations held out of a training: a seeded share of them, drawn by image and class id."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from partlabel import draw
from partlabel.assemble import absent_bit
from partlabel.store import ClassCounts, LabelStore

_LABELS = 1 << 22  # labels drawn at a time
_TO_FIT = 600  # of the rarer state: a slope and an offset need no more

Ints = npt.NDArray[np.int64]


def held_out_share(counts: ClassCounts) -> float:
    """The share of annotations to hold out for a calibration: a tenth, or what makes 600 of a kind.

    Example:
        >>> held_out_share(ClassCounts(np.array([2000, 4000]), np.array([50000, 90000])))
        0.1
        >>> held_out_share(ClassCounts(np.array([20_000, 40_000]), np.array([50_000, 90_000])))
        0.01
    """
    fewer = min(int(counts.positives.sum()), int(counts.negatives.sum()))
    return min(0.1, _TO_FIT / fewer) if fewer else 0.0


def hold_out(store: LabelStore, share: float, *, seed: int) -> tuple[LabelStore, LabelStore]:
    """Split the annotations of a store: what is left, and what is held out, of the same images.

    An annotation is held out by a number drawn from (seed, image id, class id) alone, so a larger
    ``share`` holds out all that a smaller one does. Of the positives of a class the one that would
    be drawn last always stays, and so it is with its negatives: no class loses all of a kind.

    Example:
        >>> from partlabel.tables import ClassTable, ImageTable
        >>> store = LabelStore(
        ...     ClassTable(["cat"]), ImageTable.make(["a", "b", "c"]),
        ...     indptr=np.array([0, 1, 2, 3]), codes=np.array([0, 0, 1 << 15], np.uint16),
        ... )
        >>> left, held = hold_out(store, 1.0, seed=0)
        >>> left.counts()
        ClassCounts(positives=array([1]), negatives=array([1]))
        >>> held.counts()
        ClassCounts(positives=array([1]), negatives=array([0]))
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share must be between 0 and 1, got {share}")
    if store.complete:
        raise ValueError(
            "store must be partial: a complete one has no unknown labels, and lists no absent ones"
        )
    drawn = _Drawn(store, seed)
    bound = np.minimum(draw.threshold(share), drawn.largest())
    held = np.zeros(len(store.codes), np.bool_)
    lengths = np.zeros(len(store), np.int64)
    for part in store.chunks(_LABELS):
        local, kinds, keys = drawn.labels(part)
        chosen = keys < bound[kinds]
        held[store.indptr[part.start] : store.indptr[part.stop]] = chosen
        lengths[part] = np.bincount(local[chosen], minlength=part.stop - part.start)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    made_by = {"hold_out": share, "seed": seed, "from": store.origin.made_by}
    return (
        store.with_labels(
            store.indptr - ends, store.codes[~held], made_by={**made_by, "part": "left"}
        ),
        store.with_labels(ends, store.codes[held], made_by={**made_by, "part": "held out"}),
    )


class _Drawn:
    """The numbers drawn for the labels of a store, a stretch of rows at a time."""

    def __init__(self, store: LabelStore, seed: int) -> None:
        self.store = store
        self.images = draw.image_keys(store.images, seed=seed, purpose="hold-out")
        self.classes = draw.class_keys(store.classes)

    def labels(self, part: slice) -> tuple[Ints, Ints, draw.Keys]:
        """Row within the stretch, kind (class, plus their number where absent), number drawn."""
        store = self.store
        codes = store.codes[store.indptr[part.start] : store.indptr[part.stop]]
        flag = absent_bit(codes.dtype)
        local = np.repeat(
            np.arange(part.stop - part.start), np.diff(store.indptr[part.start : part.stop + 1])
        )
        which = (codes & (flag - 1)).astype(np.int64)
        keys = draw.pair_keys(self.images[part][local], self.classes[which])
        which += (codes >= flag) * len(self.classes)
        return local, which, keys

    def largest(self) -> draw.Keys:
        """The largest number of each kind."""
        found = np.zeros(2 * len(self.classes), np.uint64)
        for part in self.store.chunks(_LABELS):
            _, kinds, keys = self.labels(part)
            np.maximum.at(found, kinds, keys)
        return found
