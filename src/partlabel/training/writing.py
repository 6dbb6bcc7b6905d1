"""Results of a run as files: predictions at annotated pairs, and a table of the classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from partlabel.classfile import write_rows
from partlabel.metrics import Result
from partlabel.metrics.pairs import Pairs
from partlabel.store import LabelStore


def write_pairs(path: Path, pairs: Pairs, store: LabelStore) -> None:
    """Write ``image_id, class_id, score`` of annotated pairs, for ``partlabel evaluate``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if pairs.images is None:  # no image could be read
        return
    order = np.lexsort((pairs.classes.numpy(), pairs.images.numpy()))
    rows, classes = pairs.images.numpy()[order], pairs.classes.numpy()[order]
    ids = store.images.table["id"].combine_chunks().take(pa.array(rows))
    if store.images.id_type == "uint64":
        ids = pa.array([f"{value:016x}" for value in ids.to_pylist()])
    table = pa.table(
        {
            "image_id": ids,
            "class_id": pa.array(store.classes.ids).take(pa.array(classes)),
            "score": pairs.scores.numpy()[order],
        }
    )
    temporary = path.with_name(f".{path.name}.tmp")
    pq.write_table(table, temporary, compression="zstd")
    temporary.replace(path)


def write_class_table(path: Path, result: Result, store: LabelStore) -> None:
    """Write the average precision and support of every class."""
    columns: dict[str, Any] = {
        "class_id": store.classes.ids,
        "class_name": store.classes.names,
        "positives": result.positives.tolist(),
        "negatives": result.negatives.tolist(),
        "ap": result.per_class.tolist(),
    }
    write_rows(path, list(columns), zip(*columns.values(), strict=True))
