"""What is in a store, as numbers: for ``info``, for the report, and for people who own the data."""

from __future__ import annotations

from typing import Any

import numpy as np

from partlabel.annotation import recommend
from partlabel.store import LabelStore

MOST = 5  # classes named at each end


def summarise(store: LabelStore) -> dict[str, Any]:
    """Count everything worth knowing about a store; plain numbers and strings, ready for json.

    Example:
        >>> from partlabel.tables import ClassTable, ImageTable
        >>> store = LabelStore(
        ...     ClassTable(["cat", "dog"]), ImageTable.make(["a.jpg"]),
        ...     indptr=np.array([0, 1]), codes=np.array([1], np.uint16),
        ... )
        >>> found = summarise(store)
        >>> found["positives"], found["known_share"], found["classes_without_negative"]
        (1, 0.5, 2)
    """
    counts = store.counts()
    positives, negatives = int(counts.positives.sum()), int(counts.negatives.sum())
    pairs = len(store) * len(store.classes)
    known = counts.positives + counts.negatives
    per_image = np.diff(store.indptr)
    labelled = len(store) if store.complete else int(np.count_nonzero(per_image))
    order = np.lexsort((np.arange(len(known)), -counts.positives, -known))
    result: dict[str, Any] = {
        "images": len(store),
        "classes": len(store.classes),
        "positives": positives,
        "negatives": negatives,
        "unknown": pairs - positives - negatives,
        "known_share": (positives + negatives) / pairs if pairs else 0.0,
        "complete": store.complete,
        "conflicts": store.origin.conflicts,
        "duplicates": store.origin.duplicates,
        "labels_per_image": (positives + negatives) / len(store) if len(store) else 0.0,
        "positives_per_image": positives / len(store) if len(store) else 0.0,
        "images_without_label": len(store) - labelled,
        "splits": store.images.split_counts,
        "classes_without_positive": int((counts.positives == 0).sum()),
        "classes_without_negative": int((counts.negatives == 0).sum()),
        "most_annotated": [_class(store, i, counts) for i in order[:MOST]],
        "least_annotated": [_class(store, i, counts) for i in order[::-1][:MOST]],
        "bytes_dense": pairs,
        "image_root": store.origin.image_root,
        "sources": list(store.origin.sources),
        "made_by": store.origin.made_by,
        "notes": list(store.origin.notes),
    }
    result["warnings"] = _warnings(result)
    result["recommendation"] = recommend(store, counts).to_dict()
    return result


def _class(store: LabelStore, index: int, counts: Any) -> dict[str, Any]:
    return {
        "id": store.classes.ids[index],
        "name": store.classes.names[index],
        "positives": int(counts.positives[index]),
        "negatives": int(counts.negatives[index]),
    }


def _warnings(found: dict[str, Any]) -> list[str]:
    warnings = []
    bare = found["classes_without_negative"]
    if bare:
        warnings.append(
            f"{bare:,} of {found['classes']:,} classes have no verified negative: trained in "
            "Ignore mode such a class is always predicted, so its prior cannot be estimated either"
        )
    empty = found["classes_without_positive"]
    if empty:
        warnings.append(
            f"{empty:,} of {found['classes']:,} classes have no positive: nothing to learn from"
        )
    if found["conflicts"]:
        warnings.append(
            f"{found['conflicts']:,} labels were annotated present and absent (see the notes)"
        )
    return warnings
