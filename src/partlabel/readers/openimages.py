"""Open Images V3 to V7: human-verified image labels, and machine labels as a layer of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from partlabel.assemble import Assembled, Assembler, Ints, encode, lengths_of, segments
from partlabel.errors import DataError, LabelValueError, UsageError
from partlabel.readers.base import Job, Vocabulary, read_classes, split_and_file
from partlabel.readers.hexids import decode_hex, hex_bytes, run_starts
from partlabel.readers.scan_csv import BadRow, CsvFile
from partlabel.store import LabelStore
from partlabel.tables import ClassTable, ImageTable

OFFICIAL = r"(?:^|-)(train|validation|test)[-/](?:annotations|images)"
TEMPLATE = "{split}/{id:016x}.jpg"


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
    known = None if listed is None else np.sort(listed.ids)
    splits: dict[str | None, Assembler] = {}
    dropped = kept = 0
    strangers: list[npt.NDArray[np.uint64]] = []
    for file in files:
        split, path = split_and_file(file, OFFICIAL)
        labels = splits.setdefault(split, Assembler(classes=None if given is None else len(given)))
        for block in _read_labels(job, path, vocabulary, labels, least, known):
            dropped += block.dropped
            kept += block.kept
            strangers.append(block.strangers)
        if "boxable" in path.name:
            job.notes.append(
                f"{path.name} has the boxable classes only; do not mix it with the rest"
            )
    if None in splits and len(splits) > 1:
        raise UsageError("some files have no split; write SPLIT=FILE, as in train=labels.csv")
    if dropped and not kept and least is None:
        what = f"none of the {dropped:,} labels has a class of --classes"
        raise DataError(what, path=job.place(), fix="that file must have ids like /m/01g317")
    classes, final = vocabulary.final()
    order = final if given is None else None
    parts = {split: labels.finish(order) for split, labels in splits.items()}
    images, labelled = _place(job, parts, listed)
    what = "labels left out: class not in --classes"
    job.note(dropped, what if least is None else f"{what}, or below {least:g}")
    job.note(len(np.unique(np.concatenate(strangers))), "images left out: not in the image lists")
    classes = ClassTable(classes.ids, [names.get(name, name) for name in classes.ids])
    root = split_and_file(files[0], OFFICIAL)[1].parent
    return job.store(classes, images, labelled, root=root)


class _Block(NamedTuple):
    """What became of a block of rows."""

    kept: int
    dropped: int
    strangers: npt.NDArray[np.uint64]
    """Images that are not in the image lists."""


def _read_labels(
    job: Job,
    path: Path,
    vocabulary: Vocabulary,
    labels: Assembler,
    least: float | None,
    known: npt.NDArray[np.uint64] | None,
) -> Iterator[_Block]:
    """Feed one file to ``labels``; images without a label of these classes stay, with none."""
    import pyarrow as pa

    source = job.open(path)
    file = CsvFile(source)
    types = {
        file.require("ImageID"): pa.binary(16),
        file.require("LabelName"): pa.dictionary(pa.int32(), pa.string()),
        file.require("Confidence"): pa.float32(),
    }

    def convert(table: Any) -> tuple[npt.NDArray[np.uint64], Ints, npt.NDArray[Any], _Block]:
        encoded = table["LabelName"].combine_chunks()
        which = vocabulary.indices(encoded.dictionary.to_pylist())[encoded.indices.to_numpy()]
        confidence = table["Confidence"].to_numpy()
        _check_confidence(confidence, machine=least is not None)
        raw = hex_bytes(table["ImageID"].combine_chunks())
        kept = which >= 0
        if least is not None:
            kept &= confidence >= least
        starts = run_starts(raw)
        keys = decode_hex(raw, starts)
        lengths = lengths_of(starts, len(raw))
        strange = np.zeros(0, np.uint64)
        if known is not None:
            place = np.minimum(np.searchsorted(known, keys), max(len(known) - 1, 0))
            there = known[place] == keys if len(known) else np.zeros(len(keys), np.bool_)
            strange = keys[~there]
            kept &= np.repeat(there, lengths)
            dropped = int((np.repeat(there, lengths) & ~kept).sum())
        else:
            dropped = len(kept) - int(kept.sum())
        if not kept.all():
            lengths = np.add.reduceat(kept, starts, dtype=np.int64)
            which, confidence = which[kept], confidence[kept]
            wanted = lengths > 0 if least is not None else np.isin(keys, strange, invert=True)
            keys, lengths = keys[wanted], lengths[wanted]
        codes = encode(which, confidence == 0, labels.classes)
        return keys, lengths, codes, _Block(len(which), dropped, strange)

    for keys, lengths, codes, block in file.scan(types, convert):
        labels.add_runs(keys, lengths, codes)
        yield block
    job.done(source)


def _check_confidence(confidence: npt.NDArray[np.float32], *, machine: bool) -> None:
    good = (confidence >= 0) & (confidence <= 1) if machine else np.isin(confidence, (0, 1))
    if good.all():
        return
    row = int(np.argmin(good))
    allowed = "between 0 and 1" if machine else "1 or 0"
    what = f"Confidence {confidence[row]:g} is not {allowed}"
    if np.isnan(confidence[row]):
        what = "has no Confidence"
    fix = None if machine else "verified labels have 1 or 0; machine labels go to --machine"
    raise BadRow(row, what, fix, LabelValueError)


def _place(
    job: Job, parts: dict[str | None, Assembled], listed: ImageTable | None
) -> tuple[ImageTable, Assembled]:
    """Find the row of every labelled image: by split and id, or in the image lists."""
    ids = np.concatenate([part.keys for part in parts.values()])
    labels = _joined(list(parts.values()))
    splits = _split_column(list(parts), [len(part.keys) for part in parts.values()])
    if listed is None:
        images = ImageTable.make(ids, splits=splits, template=TEMPLATE)
        rows = np.arange(len(ids))
    else:
        images = listed
        rows = listed.find(ImageTable.make(ids))
        _check_listed(job, listed, ids, rows, splits)
    if "" in images.split_counts:
        images.template = TEMPLATE.removeprefix("{split}/")
    found = {key: int(rows[np.argmax(ids == np.uint64(key))]) for key, _ in labels.examples}
    examples = [(found[key], which) for key, which in labels.examples]
    return images, replace(_by_row(labels, rows), examples=examples)


def _check_listed(
    job: Job, listed: ImageTable, ids: npt.NDArray[np.uint64], rows: Ints, splits: Any
) -> None:
    """An image has labels in the file of one split, which should be the one the list says."""
    import pyarrow as pa
    import pyarrow.compute as pc

    order = np.argsort(rows, kind="stable")
    twice = order[1:][np.diff(rows[order]) == 0]
    if len(twice):
        what = f"image {int(ids[twice[0]]):016x} has labels in the files of two splits"
        raise DataError(what, path=job.place(), fix="an image belongs to one split")
    if splits is None or "split" not in listed.table.column_names:
        return
    said = listed.table["split"].take(pa.array(rows)).cast(pa.string())
    differ = pc.sum(pc.not_equal(said, splits.cast(pa.string()))).as_py() or 0
    job.note(
        differ, "images whose label file is of another split than the list says; it was believed"
    )


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
    """Order labels by the row of their image."""
    if (np.diff(rows) > 0).all():
        return replace(labels, keys=rows.astype(np.uint64))
    order = np.argsort(rows, kind="stable")
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
