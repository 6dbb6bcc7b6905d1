"""Two stores into one: the first has the last word, and contradictions are counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from partlabel.assemble import Assembler, absent_bit
from partlabel.errors import UsageError
from partlabel.store import LabelStore
from partlabel.tables import ImageTable, Rows


def merge(first: LabelStore, second: LabelStore) -> LabelStore:
    """Fill what ``first`` does not know from ``second``; say verified first, machine second.

    Classes and images are matched by id. The classes must be the same; images of either store are
    kept, those of ``first`` in front. ``origin.conflicts`` of the result counts the labels on which
    the two disagree, besides those each had already. A complete store knows every label of its
    images, so both must then have the same images, and the result is complete.

    Example:
        >>> from partlabel.tables import ClassTable
        >>> classes, images = ClassTable(["cat", "dog"]), ImageTable.make(["a.jpg"])
        >>> flag = 1 << 15
        >>> human = LabelStore(
        ...     classes, images, indptr=np.array([0, 1]), codes=np.array([0], np.uint16)
        ... )
        >>> machine = LabelStore(
        ...     classes, images, indptr=np.array([0, 2]), codes=np.array([0 | flag, 1], np.uint16)
        ... )
        >>> both = merge(human, machine)
        >>> both.dense([0]), both.origin.conflicts
        (array([[1, 1]], dtype=int8), 1)
    """
    to_first = np.argsort(first.classes.positions_in(second.classes))
    found = first.images.find(second.images)
    complete = first.complete or second.complete
    if complete and (len(first) != len(second) or (found < 0).any()):
        raise UsageError("a complete store can only be merged with one of the same images")
    images, rows = _united(first.images, second.images, found)

    one = _triples(first, np.arange(len(first)), np.arange(len(first.classes)))
    two = _triples(second, rows, to_first)
    known, conflicts = _compare(one, two, len(first.classes))
    if first.complete:
        # What the first does not list it knows to be absent: nothing of the second is news.
        conflicts += int((~known & ~two[2]).sum())
        known[:] = True
    if second.complete:
        conflicts += _denied(one, two, len(first.classes))
    two = tuple(column[~known] for column in two)
    labels = Assembler(classes=len(first.classes))
    labels.add(*(np.concatenate(pair) for pair in zip(one, two, strict=True)))
    done = labels.finish().positives_only() if complete else labels.finish()
    origin = replace(
        first.origin,
        sources=(*first.origin.sources, *second.origin.sources),
        made_by={"merge": [first.origin.made_by, second.origin.made_by], "precedence": "first"},
        conflicts=first.origin.conflicts + second.origin.conflicts + conflicts,
        duplicates=first.origin.duplicates + second.origin.duplicates,
        notes=(
            *first.origin.notes,
            *second.origin.notes,
            f"{conflicts:,} labels on which the two stores disagree; the first was believed",
            *_roots(first, second),
        ),
    )
    return LabelStore(
        first.classes,
        images,
        indptr=done.spread(len(images)),
        codes=done.codes,
        complete=complete,
        origin=origin,
    )


def _roots(first: LabelStore, second: LabelStore) -> tuple[str, ...]:
    roots = (first.origin.image_root, second.origin.image_root)
    if None in roots or roots[0] == roots[1]:
        return ()
    return (f"image paths are relative to {roots[0]}; those of the second store to {roots[1]}",)


Triples = tuple[npt.NDArray[Any], ...]


def _united(first: ImageTable, second: ImageTable, found: Rows) -> tuple[ImageTable, Rows]:
    """The images of both, and the row of each image of the second among them."""
    import pyarrow as pa

    new = np.flatnonzero(found < 0)
    rows = found.copy()
    rows[new] = len(first) + np.arange(len(new))
    if not len(new):
        return first, rows
    added = second.take(new)
    if first.template != added.template:
        spelt = pa.array(added.paths(range(len(added))), pa.string())
        names = [name for name in added.table.column_names if name != "path"]
        added = ImageTable(added.table.select(names).append_column("path", spelt))
    tables = [_decoded(first.table), _decoded(added.table)]
    whole = pa.concat_tables(tables, promote_options="default")
    splits = whole["split"].combine_chunks() if "split" in whole.column_names else None
    paths = whole["path"].combine_chunks() if "path" in whole.column_names else None
    united = ImageTable.make(
        whole["id"].combine_chunks(), paths=paths, splits=splits, template=first.template
    )
    return united, rows


def _decoded(table: Any) -> Any:
    if "split" not in table.column_names:
        return table
    index = table.column_names.index("split")
    return table.set_column(index, "split", table["split"].cast("string"))


def _triples(store: LabelStore, rows: Rows, classes: Rows) -> Triples:
    """Row, class and absence of every listed label."""
    flag = absent_bit(store.codes.dtype)
    store.counts()  # refuses a class that is not in the table
    row = np.repeat(rows, np.diff(store.indptr))
    return row, classes[store.codes & (flag - 1)], store.codes >= flag


def _compare(one: Triples, two: Triples, classes: int) -> tuple[npt.NDArray[np.bool_], int]:
    """Which labels of the second the first lists too, and how many of those differ."""
    listed = one[0] * classes + one[1]
    order = np.argsort(listed, kind="stable")
    asked = two[0] * classes + two[1]
    place = np.searchsorted(listed, asked, sorter=order)
    place = order[np.minimum(place, max(len(listed) - 1, 0))] if len(listed) else place
    known = listed[place] == asked if len(listed) else np.zeros(len(asked), np.bool_)
    differ = one[2][place[known]] != two[2][known]
    return known, int(differ.sum())


def _denied(one: Triples, two: Triples, classes: int) -> int:
    """Positives of the first that the second, being complete, denies by not listing them."""
    listed = two[0] * classes + two[1]
    positives = (one[0] * classes + one[1])[~one[2]]
    return int((~np.isin(positives, listed)).sum())
