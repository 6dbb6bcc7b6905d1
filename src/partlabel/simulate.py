"""Full labels into partial ones, as if people had annotated only so much: seeded, recorded.

A label is kept or dropped by a number drawn from (seed, image id, class id) alone. So the same seed
gives the same labels whatever the order of images and classes, a smaller ``per_class`` keeps a
subset of what a larger one keeps, and so does a larger ``drop`` of what a smaller one keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from partlabel import draw
from partlabel.assemble import absent_bit, encode
from partlabel.errors import UsageError
from partlabel.store import LabelStore

_PAIRS = 1 << 22  # (image, class) pairs drawn at a time

Codes = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


def fixed_per_class(
    store: LabelStore,
    *,
    per_class: Annotated[int, "positives, and negatives, to keep of each class"],
    seed: int,
) -> LabelStore:
    """Keep a fixed number of positives and of negatives of each class; all where there are fewer.

    Example:
        >>> from partlabel.tables import ClassTable, ImageTable
        >>> full = LabelStore(
        ...     ClassTable(["cat"]), ImageTable.make(["a", "b", "c", "d"]), complete=True,
        ...     indptr=np.array([0, 1, 2, 2, 2]), codes=np.zeros(2, np.uint16),
        ... )
        >>> fixed_per_class(full, per_class=1, seed=0).counts()
        ClassCounts(positives=array([1]), negatives=array([1]))
    """
    if per_class < 1:
        raise UsageError(f"--per-class must be at least 1, got {per_class}")
    images = draw.image_keys(store.images, seed=seed, purpose="fpc")
    keys = draw.class_keys(store.classes)
    rows_of, absent_of = _by_class(store)
    kept_rows, kept_classes, kept_absent = [], [], []
    for index in range(len(store.classes)):
        rows, absent = rows_of(index), absent_of(index)
        if store.complete:
            negatives = np.ones(len(store), np.bool_)
            negatives[rows] = False
            groups = [(rows, False), (np.flatnonzero(negatives), True)]
        else:
            groups = [(rows[~absent], False), (rows[absent], True)]
        for group, is_absent in groups:
            order = _smallest(draw.pair_keys(images[group], keys[index : index + 1]), per_class)
            kept_rows.append(group[order])
            kept_classes.append(np.full(len(order), index))
            kept_absent.append(np.full(len(order), is_absent))
    columns = [np.concatenate(part) for part in (kept_rows, kept_classes, kept_absent)]
    indptr, codes = _rows_from(store, *columns)
    return _stored(store, indptr, codes, "fpc", {"per_class": per_class}, seed)


def random_per_annotation(
    store: LabelStore,
    *,
    drop: Annotated[float, "probability that an annotation is dropped"],
    seed: int,
) -> LabelStore:
    """Drop each annotation, present or absent, with the same probability."""
    _check_share("--drop", drop)
    images = draw.image_keys(store.images, seed=seed, purpose="rpa")
    classes = draw.class_keys(store.classes)
    bound = draw.threshold(drop)

    def keep(rows: npt.NDArray[np.int64], which: npt.NDArray[np.int64]) -> Mask:
        return np.asarray(draw.pair_keys(images[rows], classes[which]) >= bound) & (drop < 1)

    return _filtered(store, keep, "rpa", {"drop": drop}, seed, spelt_out=store.complete)


def single_positive(store: LabelStore, *, seed: int) -> LabelStore:
    """Keep one positive of each image, chosen at random; everything else becomes unknown."""
    flag = absent_bit(store.codes.dtype)
    images = draw.image_keys(store.images, seed=seed, purpose="single-positive")
    classes = draw.class_keys(store.classes)
    positive = np.flatnonzero(store.codes < flag)
    row = np.searchsorted(store.indptr, positive, side="right") - 1
    which = store.codes[positive].astype(np.int64)
    order = np.lexsort((draw.pair_keys(images[row], classes[which]), row))
    first = order[np.flatnonzero(np.diff(row[order], prepend=-1))] if len(order) else order
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row[first], minlength=len(store)))])
    return _stored(store, indptr, store.codes[positive[first]], "single-positive", {}, seed)


def drop_positives(
    store: LabelStore,
    *,
    keep: Annotated[float, "share of the positives to keep"],
    rest: Annotated[Literal["unknown", "negative"], "what everything else becomes"] = "unknown",
    seed: int,
) -> LabelStore:
    """Keep a share of the positives; all else becomes unknown, or is (wrongly) called negative."""
    _check_share("--keep", keep)
    images = draw.image_keys(store.images, seed=seed, purpose="drop-positives")
    classes = draw.class_keys(store.classes)
    bound = draw.threshold(keep)

    def kept(rows: npt.NDArray[np.int64], which: npt.NDArray[np.int64]) -> Mask:
        return np.asarray(draw.pair_keys(images[rows], classes[which]) < bound) | (keep == 1)

    parameters = {"keep": keep, "rest": rest}
    done = _filtered(store, kept, "drop-positives", parameters, seed, positives_only=True)
    return done.with_labels(done.indptr, done.codes, complete=rest == "negative")


SCHEMES: dict[str, Callable[..., LabelStore]] = {
    "fpc": fixed_per_class,
    "rpa": random_per_annotation,
    "rps": random_per_annotation,  # its name in the code of the paper's authors
    "single-positive": single_positive,
    "drop-positives": drop_positives,
}


def _check_share(option: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise UsageError(f"{option} must be between 0 and 1, got {share:g}")


def _smallest(keys: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.int64]:
    if len(keys) <= count:
        return np.arange(len(keys))
    return np.argpartition(keys, count - 1)[:count]


def _by_class(
    store: LabelStore,
) -> tuple[Callable[[int], npt.NDArray[np.int64]], Callable[[int], Mask]]:
    """Look-ups of the rows that list a class, and whether they list it as absent."""
    flag = absent_bit(store.codes.dtype)
    which = store.codes & (flag - 1)
    order = np.argsort(which, kind="stable")  # a counting sort for uint16
    ends = np.concatenate([[0], np.cumsum(np.bincount(which, minlength=len(store.classes)))])
    row = np.repeat(np.arange(len(store)), np.diff(store.indptr))

    def span(index: int) -> npt.NDArray[np.int64]:
        return order[ends[index] : ends[index + 1]]

    return (lambda index: row[span(index)]), (lambda index: store.codes[span(index)] >= flag)


def _rows_from(
    store: LabelStore, rows: npt.NDArray[Any], classes: npt.NDArray[Any], absent: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int64], Codes]:
    order = np.lexsort((classes, rows))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(store)))])
    return indptr, encode(classes[order], absent[order], len(store.classes))


def _filtered(
    store: LabelStore,
    keep: Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], Mask],
    scheme: str,
    parameters: dict[str, Any],
    seed: int,
    *,
    positives_only: bool = False,
    spelt_out: bool = False,
) -> LabelStore:
    """Go through the labels in stretches of rows and keep those that ``keep`` wants.

    With ``spelt_out`` the absent labels that a complete store does not list are gone through too.
    """
    lengths, codes = [], []
    for rows, which, absent in _labels(store, spelt_out=spelt_out):
        wanted = keep(rows[0], which)
        if positives_only:
            wanted &= ~absent
        lengths.append(np.bincount(rows[1][wanted], minlength=rows[2]))
        codes.append(encode(which[wanted], absent[wanted], len(store.classes)))
    indptr = np.concatenate([[0], np.cumsum(np.concatenate([[], *lengths]))]).astype(np.int64)
    empty = store.codes[:0]
    return _stored(store, indptr, np.concatenate([empty, *codes]), scheme, parameters, seed)


def _labels(
    store: LabelStore, *, spelt_out: bool
) -> Iterator[tuple[tuple[Any, Any, int], npt.NDArray[np.int64], Mask]]:
    """Stretches of labels: (row, row within the stretch, rows in it), class, absent."""
    flag = absent_bit(store.codes.dtype)
    if spelt_out:
        step = max(_PAIRS // max(len(store.classes), 1), 1)
        for start in range(0, len(store), step):
            rows = np.arange(start, min(start + step, len(store)))
            local, which = np.divmod(np.arange(len(rows) * len(store.classes)), len(store.classes))
            absent = (store.dense(rows) < 0).reshape(-1)
            yield (rows[local], local, len(rows)), which, absent
        return
    for part in store.chunks(_PAIRS):
        codes = store.codes[store.indptr[part.start] : store.indptr[part.stop]]
        count = part.stop - part.start
        local = np.repeat(np.arange(count), np.diff(store.indptr[part.start : part.stop + 1]))
        yield (
            (local + part.start, local, count),
            (codes & (flag - 1)).astype(np.int64),
            codes >= flag,
        )


def _stored(
    store: LabelStore,
    indptr: npt.NDArray[np.int64],
    codes: Codes,
    scheme: str,
    parameters: dict[str, Any],
    seed: int,
) -> LabelStore:
    made_by = {"simulate": scheme, **parameters, "seed": seed, "from": store.origin.made_by}
    return store.with_labels(
        indptr.astype(np.int64), codes, complete=False, made_by=made_by, conflicts=0, duplicates=0
    )
