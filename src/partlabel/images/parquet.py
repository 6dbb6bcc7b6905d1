"""Images in a column of parquet files: copied once into one flat file, to read in any order.

One image in the middle of a parquet file costs its whole page, packed with hundreds of others. The
copy is streamed, so that a row group may be larger than memory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from partlabel.errors import DataError, suggest
from partlabel.images.cache import alone, found_in, keep, kept, name_for, replacing, state_of
from partlabel.images.files import PackedImages, Stretches, listed_files
from partlabel.store import LabelStore
from partlabel.tables import ImageTable, Rows

_VERSION = 1
_ROWS_AT_ONCE = 64  # images may be large
_BUFFER = 1 << 20
_ID_COLUMNS = ("image_id", "id")
_BYTES_COLUMNS = ("jpeg", "image", "bytes", "img")


def open_parquet(root: Path, store: LabelStore, cache: Path | None) -> PackedImages:
    """The images of a store in one or more parquet files, found by image id."""
    files = listed_files(root, ".parquet")
    if cache is not None:
        return _open(files, cache / f"{name_for('parquet', files)}.images", store, root)
    folder = Path(tempfile.mkdtemp(prefix="partlabel-"))
    try:
        source = _open(files, folder / "parquet.images", store, root)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(source, _remove, folder, os.getpid())
    return source


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a worker that ends leaves it to the others
        shutil.rmtree(folder, ignore_errors=True)


def _open(files: list[Path], flat: Path, store: LabelStore, root: Path) -> PackedImages:
    with alone(flat):
        about = {"version": _VERSION, "files": state_of(files)}
        index, known = kept(flat.with_suffix(".index"))
        whole = flat.exists() and flat.stat().st_size == known.pop("bytes", None)
        if known != about or not whole:
            index = _copy(files, flat, about)
    where = _match(index["id"].combine_chunks(), store.images, root)
    offset, size = (index[name].to_numpy()[where] for name in ("offset", "size"))
    places = Stretches(np.where(where < 0, -1, 0).astype(np.int32), offset, size)
    return PackedImages([flat], places, store.images)


def _copy(files: list[Path], flat: Path, about: dict[str, Any]) -> Any:
    """Copy the images of all files into one, and keep where each of them is."""
    import pyarrow as pa

    ids, sizes = [], [np.zeros(0, np.int64)]
    with replacing(flat) as temporary, temporary.open("wb") as out:
        for path in files:
            for some, images in _batches(path):
                ids.append(some)
                sizes.append(_append(images, out))
    size = np.concatenate(sizes)
    try:
        column = pa.chunked_array(ids, None if ids else pa.string())
    except (pa.ArrowException, TypeError) as error:
        raise DataError(f"image ids are not all of one type ({error})", path=files[0]) from error
    index = pa.table({"id": column, "offset": np.cumsum(size) - size, "size": size})
    keep(flat.with_suffix(".index"), index, {**about, "bytes": int(size.sum())})
    return index


def _batches(path: Path) -> Iterator[tuple[Any, Any]]:
    """Ids and bytes of some images at a time."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        # With a buffer a column is read piece by piece, without it a row group at a time.
        file = pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
        name, images, field = _columns(path, file.schema_arrow)
        wanted = [name, f"{images}.{field}" if field else images]
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=wanted, use_threads=False):
            values = pc.struct_field(batch[images], field) if field else batch[images]
            yield batch[name], values
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"is not readable as parquet ({error})", path=path) from error


def _columns(path: Path, schema: Any) -> tuple[str, str, str | None]:
    """The columns of ids and of images, and the field within the latter (Hugging Face's have)."""
    import pyarrow.types as kinds

    chosen = []
    for what, choices in (("image ids", _ID_COLUMNS), ("images", _BYTES_COLUMNS)):
        name = next((choice for choice in choices if choice in schema.names), None)
        if name is None:
            listed = " or ".join(choices)
            fix = suggest(choices[0], schema.names)
            raise DataError(f"has no column for {what} ({listed})", path=path, fix=fix)
        chosen.append(name)
    kind, field = schema.field(chosen[1]).type, None
    if kinds.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind, field = kind.field("bytes").type, "bytes"
    if not any(test(kind) for test in (kinds.is_binary, kinds.is_large_binary)):
        raise DataError(f"column {chosen[1]!r} is {kind}, not bytes", path=path)
    return chosen[0], chosen[1], field


def _append(images: Any, out: BinaryIO) -> Any:
    """Write the bytes of an Arrow array; gives the size of each image, 0 for none."""
    import pyarrow as pa

    images = images.cast(pa.large_binary())
    _, bounds, data = images.buffers()
    ends = np.frombuffer(bounds, np.int64)[images.offset : images.offset + len(images) + 1]
    if data is not None:
        out.write(memoryview(data)[int(ends[0]) : int(ends[-1])])
    return np.diff(ends)


def _match(ids: Any, images: ImageTable, root: Path) -> Rows:
    """For each image its place among the ids of the files, or -1."""
    import pyarrow as pa

    wanted = images.table["id"]
    try:
        if wanted.type == pa.uint64() and not pa.types.is_integer(ids.type):
            ids = pa.array([int(text, 16) for text in ids.to_pylist()], wanted.type)
        ids = ids.cast(wanted.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        what = f"image ids of type {ids.type} do not fit the store's {wanted.type} ({error})"
        raise DataError(what, path=root) from error
    where, twice = found_in(wanted, ids)
    if twice is not None:
        raise DataError(f"image id {images.show_id(twice)} is there more than once", path=root)
    if len(where) and not (where >= 0).any():
        some = ", ".join(str(value) for value in ids[:3].to_pylist()) or "no images"
        what = f"has none of the store's {len(where):,} images ({images.show_id(0)}, ...)"
        raise DataError(what, path=root, fix=f"in it there is {some}")
    return where
