"""Predictions as files: scores of all classes, or the labels of each image; parquet, json lines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO

import numpy as np
import numpy.typing as npt

from partlabel.prediction.parts import (
    Outcome,
    Parts,
    SkippedFile,
    explained,
    put_together,
    skipped_of,
)
from partlabel.prediction.pictures import Pictures, key_values
from partlabel.prediction.predict import Predictor, Scored, probabilities, select, share
from partlabel.tables import ClassTable, Rows
from partlabel.training.processes import Processes

_VALUES_AT_ONCE = 1 << 22

ScoresAre = Literal["logits", "probabilities"]


@dataclass(frozen=True, kw_only=True)
class Form:
    """What is written of the scores."""

    classes: ClassTable
    """In the order of the scores."""
    scores_are: ScoresAre
    dense: bool = False
    """All scores, in place of labels."""
    thresholds: npt.NDArray[np.float64] | None = None
    """Logits; labels below are left out."""
    top_k: int | None = None
    columns: Rows | None = None
    """Where each of the classes is among the model's, if not in the same place."""

    def values(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Scores as they are written."""
        return logits if self.scores_are == "logits" else probabilities(logits)


class Writer(Protocol):
    """Takes scores batch by batch."""

    def add(self, scored: Scored) -> int:
        """Write a batch; gives the number of labels."""

    def close(self) -> None:
        """Write what is left."""


class JsonLines:
    """One line per image: ``{"image": ..., "labels": [{"id", "name", "score"}, ...]}``."""

    def __init__(self, file: TextIO, form: Form) -> None:
        self.file, self.form = file, form

    def add(self, scored: Scored) -> int:
        """Write a batch."""
        labels = select(scored, self.form.thresholds)
        values = self.form.values(labels.logits).tolist()
        classes = self.form.classes
        lines: list[list[dict[str, Any]]] = [[] for _ in scored.pictures]
        for position, which, value in zip(
            labels.position.tolist(), labels.classes.tolist(), values, strict=True
        ):
            label = {"id": classes.ids[which], "name": classes.names[which]}
            lines[position].append({**label, "score": float(f"{value:.7g}")})
        for picture, line in zip(scored.pictures, lines, strict=True):
            text = json.dumps({"image": picture.key, "labels": line}, ensure_ascii=False)
            self.file.write(text + "\n")
        return len(values)

    def close(self) -> None:
        """Write what is left."""
        self.file.flush()


class ParquetTable:
    """Dense: ``image_id, scores`` (a list of float32); else ``image_id, class_id, score``."""

    def __init__(self, path: Path, form: Form, ids_are: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.form, self.ids_are = form, ids_are
        image = ("image_id", pa.int64() if ids_are == "int64" else pa.string())
        score = pa.float32()
        columns = [image, ("scores", pa.list_(score))]
        if not form.dense:
            columns = [image, ("class_id", pa.string()), ("score", score)]
        facts: dict[str, str] = {"partlabel.scores_are": form.scores_are}
        if form.dense:
            facts["partlabel.class_ids"] = json.dumps(form.classes.ids)
        self.schema = pa.schema(columns, metadata=facts)
        self._writer = pq.ParquetWriter(
            path,
            self.schema,
            compression="zstd",
            use_dictionary=["image_id"] if form.dense else ["image_id", "class_id"],
        )
        self._ids = pa.array(form.classes.ids, pa.string())
        self._waiting: list[Any] = []
        self._values = 0

    def add(self, scored: Scored) -> int:
        """Write a batch."""
        import pyarrow as pa

        keys = key_values([picture.key for picture in scored.pictures], self.ids_are)
        if self.form.dense:
            values = self.form.values(scored.logits)
            ends = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
            lists = pa.ListArray.from_arrays(pa.array(ends), pa.array(values.reshape(-1)))
            columns, count = [keys, lists], values.size
        else:
            labels = select(scored, self.form.thresholds)
            ids = self._ids.take(pa.array(labels.classes))
            values = self.form.values(labels.logits)
            columns, count = [keys.take(pa.array(labels.position)), ids, pa.array(values)], len(ids)
        if count:
            self._waiting.append(pa.table(columns, schema=self.schema))
        self._values += count
        if self._values >= _VALUES_AT_ONCE:
            self._flush()
        return count

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting).combine_chunks())
        self._waiting, self._values = [], 0

    def close(self) -> None:
        """Write what is left."""
        self._flush()
        self._writer.close()


@dataclass(frozen=True, kw_only=True)
class Work:
    """Who predicts what."""

    predictor: Predictor
    pictures: Pictures
    processes: Processes
    batch_size: int = 64
    workers: int = 0
    progress: Callable[[int], None] | None = None

    def scores(self, **options: Any) -> Iterator[Scored]:
        """The scores of this process's share."""
        here = self.processes
        start, stop = share(len(self.pictures), here.rank, here.world)
        found = self.predictor.scores(
            self.pictures,
            start=start,
            stop=stop,
            batch_size=self.batch_size,
            workers=self.workers,
            **options,
        )
        for scored in found:
            yield scored
            if self.progress is not None:
                self.progress(len(scored.pictures) + len(scored.skipped))


def print_labels(work: Work, file: TextIO, form: Form) -> Outcome:
    """Write json lines to a stream."""
    return _write(work, form, JsonLines(file, form), SkippedFile(None))


def write_predictions(work: Work, out: Path, form: Form) -> Outcome | None:
    """Write one file, by all processes; ``.jsonl`` or ``.parquet``.

    What could not be read is in ``NAME.skipped.csv`` beside it.

    Returns:
        What became of the images; None on processes that are not the main one.
    """
    with explained(out), Parts(out, work.processes) as parts:
        skips = SkippedFile(skipped_of(parts.own))
        if out.suffix == ".jsonl":
            with parts.own.open("w", encoding="utf-8", newline="\n") as file:
                own = _write(work, form, JsonLines(file, form), skips)
        else:
            table = ParquetTable(parts.own, form, work.pictures.ids_are)
            own = _write(work, form, table, skips)
        return put_together(parts, own, _join)


def _write(work: Work, form: Form, writer: Writer, skips: SkippedFile) -> Outcome:
    outcome = Outcome()
    for scored in work.scores(top_k=form.top_k, columns=form.columns):
        labels = writer.add(scored)
        skips.add(scored.skipped)
        outcome.add(Outcome(len(scored.pictures), labels, len(scored.skipped), scored.skipped))
    writer.close()
    skips.close()
    return outcome


def _join(paths: list[Path], out: Path) -> None:
    """Put files together in order, without holding one in memory."""
    if len(paths) > 1 and out.suffix == ".jsonl":
        with paths[0].open("ab") as whole:
            for path in paths[1:]:
                with path.open("rb") as part:
                    shutil.copyfileobj(part, whole, 1 << 20)
    elif len(paths) > 1:
        _join_tables(paths)
    paths[0].replace(out)


def _join_tables(paths: list[Path]) -> None:
    import pyarrow.parquet as pq

    whole = paths[0].with_name(f"{paths[0].name}.whole")
    try:
        with pq.ParquetFile(paths[0]) as first:
            schema = first.schema_arrow
        with pq.ParquetWriter(whole, schema, compression="zstd") as writer:
            for path in paths:
                with pq.ParquetFile(path) as part:
                    for group in range(part.num_row_groups):
                        writer.write_table(part.read_row_group(group))
        whole.replace(paths[0])
    finally:
        whole.unlink(missing_ok=True)
