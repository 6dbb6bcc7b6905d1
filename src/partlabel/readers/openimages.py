"""Open Images V3 to V7: human-verified image labels, and machine labels as a layer of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from partlabel.assemble import Assembled, Assembler, Ints, encode, lengths_of, segments
from partlabel.errors import DataError, UsageError
from partlabel.readers.base import Job, Vocabulary, read_classes, split_and_file
from partlabel.readers.scan_csv import BadRow, CsvFile
from partlabel.store import LabelStore
from partlabel.tables import ClassTable, ImageTable

OFFICIAL = r"(train|validation|test)(?:-|/)(?:[^/]*-)?(?:annotations|images)"
TEMPLATE = "{split}/{id:016x}.jpg"
_NIBBLE = np.full(256, 255, np.uint8)
_NIBBLE[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_NIBBLE[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)


def read(
    job: Job,
    labels: Annotated[
        list[str], "[SPLIT=]FILE of human labels, one or more (ImageID,Source,LabelName,Confidence)"
    ],
    *,
    classes: Annotated[
        Path | None, "trainable classes, one id per line; default: all that occur"
    ] = None,
    descriptions: Annotated[Path | None, "class names, with or without header"] = None,
    image_list: Annotated[
        list[Path] | None, "image list with ImageID and Subset; keeps images without labels"
    ] = None,
    machine: Annotated[
        list[str] | None, "[SPLIT=]FILE of machine labels, saved as NAME.machine.labels"
    ] = None,
    machine_threshold: Annotated[
        float, "machine labels of at least this confidence count as present"
    ] = 0.5,
) -> LabelStore:
    """Read Open Images label files."""
    given = None if classes is None else read_classes(job, classes)
    names = {} if descriptions is None else _read_descriptions(job, descriptions)
    listed = None if not image_list else _read_lists(job, image_list)
    if machine:
        if given is None:
            raise UsageError("--machine needs --classes, so that both layers have the same classes")
        with Job(images=job.images, path_template=job.path_template, progress=job.progress) as own:
            store = _layer(own, machine, given, listed, names, least=machine_threshold)
        job.siblings["machine"] = store
    return _layer(job, labels, given, listed, names, least=None)


def _layer(
    job: Job,
    files: list[str],
    given: ClassTable | None,
    listed: ImageTable | None,
    names: dict[str, str],
    *,
    least: float | None,
) -> LabelStore:
    vocabulary = Vocabulary(given)
    splits: dict[str | None, Assembler] = {}
    dropped = 0
    for file in files:
        split, path = split_and_file(file, OFFICIAL)
        labels = splits.setdefault(split, Assembler(classes=None if given is None else len(given)))
        dropped += _read_labels(job, path, vocabulary, labels, least)
        if "boxable" in path.name:
            job.notes.append(
                f"{path.name} has the boxable classes only; do not mix it with the full file"
            )
    if None in splits and len(splits) > 1:
        raise UsageError("some files have no split; write SPLIT=FILE, as in train=labels.csv")
    classes, final = vocabulary.final()
    order = final if given is None else None
    parts = {split: labels.finish(order) for split, labels in splits.items()}
    images, labelled = _place(job, parts, listed)
    what = "labels left out: class not in --classes"
    job.note(dropped, what if least is None else f"{what}, or below {least:g}")
    classes = ClassTable(classes.ids, [names.get(name, name) for name in classes.ids])
    root = split_and_file(files[0], OFFICIAL)[1].parent
    return job.store(classes, images, labelled, root=root)


def _read_labels(
    job: Job, path: Path, vocabulary: Vocabulary, labels: Assembler, least: float | None
) -> int:
    """Feed one file to ``labels``; say how many of its rows were left out."""
    import pyarrow as pa

    source = job.open(path)
    file = CsvFile(source)
    types = {
        file.require("ImageID"): pa.binary(16),
        file.require("LabelName"): pa.dictionary(pa.int32(), pa.string()),
        file.require("Confidence"): pa.float32(),
    }

    def convert(table: Any) -> tuple[npt.NDArray[np.uint64], Ints, npt.NDArray[Any], int]:
        encoded = table["LabelName"].combine_chunks()
        which = vocabulary.indices(encoded.dictionary.to_pylist())[encoded.indices.to_numpy()]
        confidence = table["Confidence"].to_numpy()
        raw = hex_bytes(table["ImageID"].combine_chunks())
        kept = which >= 0
        if least is None:
            _check_verified(confidence)
        else:
            kept &= confidence >= least
        absent = confidence == 0
        if not kept.all():
            which, absent, raw = which[kept], absent[kept], raw[kept]
        starts = _run_starts(raw)
        codes = encode(which, absent, labels.classes)
        return decode_hex(raw, starts), lengths_of(starts, len(raw)), codes, len(kept) - len(which)

    left_out = 0
    for keys, lengths, codes, missing in file.scan(types, convert):
        labels.add_runs(keys, lengths, codes)
        left_out += missing
    job.done(source)
    return left_out


def _check_verified(confidence: npt.NDArray[np.float32]) -> None:
    wrong = np.flatnonzero((confidence != 0) & (confidence != 1))
    if len(wrong):
        value = confidence[wrong[0]]
        fix = "verified labels have 1 or 0; machine labels go to --machine"
        raise BadRow(int(wrong[0]), f"Confidence {value:g} is not 1 or 0", fix)


def hex_bytes(ids: Any) -> npt.NDArray[np.uint8]:
    """The bytes (n, 16) of an Arrow array of 16-character ids."""
    data = np.frombuffer(ids.buffers()[1], np.uint8)
    return data.reshape(-1, 16)[ids.offset : ids.offset + len(ids)]


def _run_starts(raw: npt.NDArray[np.uint8]) -> Ints:
    if not len(raw):
        return np.zeros(0, np.int64)
    words = raw.view(np.uint64)
    new = (words[1:, 0] != words[:-1, 0]) | (words[1:, 1] != words[:-1, 1])
    return np.concatenate([[0], np.flatnonzero(new) + 1])


def decode_hex(raw: npt.NDArray[np.uint8], rows: Ints) -> npt.NDArray[np.uint64]:
    """The numbers that some rows of 16 hex digits spell."""
    nibbles = _NIBBLE[raw[rows]]
    if len(nibbles) and nibbles.max() > 15:
        row = int(rows[np.argmax((nibbles > 15).any(axis=1))])
        text = raw[row].tobytes().decode("utf-8", errors="replace")
        raise BadRow(row, f"image id {text!r} is not 16 hex digits")
    whole = (nibbles[:, 0::2] << 4) | nibbles[:, 1::2]
    return np.ascontiguousarray(whole).view(">u8").reshape(-1).astype(np.uint64)


def _place(
    job: Job, parts: dict[str | None, Assembled], listed: ImageTable | None
) -> tuple[ImageTable, Assembled]:
    """Find the row of every labelled image: by split and id, or in the image lists."""
    ids = np.concatenate([part.keys for part in parts.values()])
    labels = _joined(list(parts.values()))
    if listed is None:
        names = list(parts)
        lengths = [len(part.keys) for part in parts.values()]
        images = ImageTable.make(ids, splits=_split_column(names, lengths), template=TEMPLATE)
        rows = np.arange(len(ids))
    else:
        images = listed
        rows = listed.find(ImageTable.make(ids))
        job.note(int((rows < 0).sum()), "images left out: labelled, but not in the image lists")
    if None in parts and (listed is None or "split" not in listed.table.column_names):
        images.template = TEMPLATE.removeprefix("{split}/")
    found = {key: int(rows[np.argmax(ids == np.uint64(key))]) for key, _ in labels.examples}
    examples = [(found[key], which) for key, which in labels.examples if found[key] >= 0]
    return images, replace(_by_row(labels, rows), examples=examples)


def _joined(parts: list[Assembled]) -> Assembled:
    if len(parts) == 1:
        return parts[0]
    counts = np.concatenate([np.diff(part.indptr) for part in parts])
    return Assembled(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([[0], np.cumsum(counts)]),
        np.concatenate([part.codes for part in parts]),
        sum(part.duplicates for part in parts),
        sum(part.conflicts for part in parts),
        [example for part in parts for example in part.examples][:5],
    )


def _by_row(labels: Assembled, rows: Ints) -> Assembled:
    """Order labels by the row of their image; those with row -1 are left out."""
    if len(rows) == 0 or (rows[0] >= 0 and (np.diff(rows) > 0).all()):
        return replace(labels, keys=rows.astype(np.uint64))
    order = np.argsort(rows, kind="stable")
    order = order[rows[order] >= 0]
    lengths = np.diff(labels.indptr)[order]
    return replace(
        labels,
        keys=rows[order].astype(np.uint64),
        indptr=np.concatenate([[0], np.cumsum(lengths)]),
        codes=labels.codes[segments(labels.indptr[order], lengths)],
    )


def _split_column(names: list[str | None], lengths: list[int]) -> Any:
    import pyarrow as pa

    if names == [None]:
        return None
    indices = np.repeat(np.arange(len(names), dtype=np.int8), lengths)
    return pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(names, pa.string()))


def _read_lists(job: Job, paths: list[Path]) -> ImageTable:
    """Read image lists; rows are ordered by split, then id."""
    import pyarrow as pa

    ids: list[npt.NDArray[np.uint64]] = []
    splits: list[Any] = []
    for path in paths:
        source = job.open(path)
        file = CsvFile(source)
        types = {file.require("ImageID"): pa.binary(16)}
        fixed = split_and_file(str(path), OFFICIAL)[0]
        if "Subset" in file.columns:
            types["Subset"] = pa.string()

        def convert(table: Any) -> tuple[npt.NDArray[np.uint64], Any]:
            raw = hex_bytes(table["ImageID"].combine_chunks())
            subset = table["Subset"].to_pylist() if "Subset" in table.column_names else None
            return decode_hex(raw, np.arange(len(raw))), subset

        for block, subset in file.scan(types, convert):
            ids.append(block)
            splits.extend(subset or [fixed] * len(block))
        job.done(source)
    whole = np.concatenate(ids) if ids else np.zeros(0, np.uint64)
    column = np.array([split or "" for split in splits])
    order = np.lexsort((whole, column))
    images = ImageTable.make(
        whole[order], splits=[name or None for name in column[order].tolist()], template=TEMPLATE
    )
    twice = images.duplicate()
    if twice is not None:
        raise DataError(f"image {twice:016x} is listed twice", path=paths[0])
    return images


def _read_descriptions(job: Job, path: Path) -> dict[str, str]:
    """Class names by id: V6 has a header, V3 has none."""
    from partlabel.readers.base import read_rows

    rows = read_rows(job, path, columns=["LabelName", "DisplayName"])
    return {row["LabelName"]: row["DisplayName"] for row in rows if row["LabelName"] != "LabelName"}
