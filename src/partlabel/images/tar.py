"""Images in tar shards, as WebDataset's: an index of offsets made once, to read in any order."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from partlabel.errors import DataError, suggest
from partlabel.images.cache import alone, found_in, keep, kept, name_for, state_of
from partlabel.images.files import PackedImages, Stretches, listed_files
from partlabel.store import LabelStore
from partlabel.tables import ImageTable, Rows

_VERSION = 1
_BLOCK = 512
_MEMBERS_AT_ONCE = 1 << 16
_ROWS_AT_ONCE = 1 << 18
_COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\xfd7zXZ": ("xz", "unxz"),
    b"\x28\xb5\x2f\xfd": ("zstandard", "unzstd"),
}
# An image by the key of its sample: of "key.json", "key.mask.png" and "key.jpg" the last.
_KEY = r"(?i)^(?P<key>.+)\.(?:jpe?g|png|webp|bmp|gif|tiff?|jp2|ppm)$"


def open_tar(root: Path, store: LabelStore, cache: Path | None) -> PackedImages:
    """The images of a store in one or more tar files.

    An image is found by its path in the store, or else by its file name, or else by its id as the
    key of a WebDataset sample: one of these for all, the first by which any image is found.
    """
    shards = listed_files(root, ".tar")
    index = _read_index(shards, cache)
    where = _match(index["name"].combine_chunks(), store.images, root)
    shard, offset, size = (index[name].to_numpy()[where] for name in ("shard", "offset", "size"))
    places = Stretches(np.where(where < 0, np.int32(-1), shard), offset, size)
    return PackedImages(shards, places, store.images)


def _read_index(shards: list[Path], cache: Path | None) -> Any:
    """The members of all shards, by shard, as an Arrow table: name, shard, offset, size."""
    if cache is None:
        return _scan_all(shards, {})
    path = cache / f"{name_for('tar', shards)}.index"
    with alone(path):
        about = {"version": _VERSION, "shards": state_of(shards)}
        index, known = kept(path)
        if known != about:
            index = _scan_all(shards, _unchanged(index, known, about))
            keep(path, index, about)
    return index


def _unchanged(index: Any, known: dict[str, Any], about: dict[str, Any]) -> dict[int, Any]:
    """By shard: its part of an old index, where the shard is as it was."""
    if known.get("version") != about["version"]:
        return {}
    count = len(about["shards"])
    bounds = np.searchsorted(index["shard"].to_numpy(), np.arange(count + 1))
    same = [i for i in range(count) if known["shards"][i] == about["shards"][i]]
    return {i: index.slice(bounds[i], bounds[i + 1] - bounds[i]) for i in same}


def _scan_all(shards: list[Path], known: dict[int, Any]) -> Any:
    import pyarrow as pa

    types = (pa.large_string(), pa.int32(), pa.int64(), pa.int64())
    schema = pa.schema(zip(("name", "shard", "offset", "size"), types, strict=True))
    parts = [schema.empty_table()]
    for number, path in enumerate(shards):
        if number in known:
            parts.append(known[number])
            continue
        for names, offsets, sizes in _scan(path):
            columns = [names, np.full(len(names), number, np.int32), offsets, sizes]
            parts.append(pa.table(columns, schema=schema))
    return pa.concat_tables(parts)


def _scan(path: Path) -> Iterator[tuple[list[str], list[int], list[int]]]:
    """Names, offsets and sizes of the members of a tar file, some at a time; reads headers only."""
    members: list[tuple[str, int, int]] = []
    with path.open("rb") as file:
        _refuse_compressed(path, file.read(8))
        file.seek(0)
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                while (member := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
                    if member.isreg() and not member.issparse():
                        name = member.name.encode("utf-8", "replace").decode()
                        members.append((name, member.offset_data, member.size))
                    if len(members) == _MEMBERS_AT_ONCE:
                        yield _columns(members)
                        members = []
                file.seek(tar.offset)
                if file.read(_BLOCK).strip(b"\0"):  # tarfile takes a damaged header for the end
                    raise tarfile.ReadError(f"no header at byte {tar.offset:,}")
        except (tarfile.TarError, OSError, ValueError) as error:
            what = f"is no tar file, or damaged, or cut short ({error})"
            raise DataError(what, path=path, fix="fetch it again") from error
    yield _columns(members)


def _columns(members: list[tuple[str, int, int]]) -> tuple[list[str], list[int], list[int]]:
    return (
        [name.removeprefix("./") for name, _, _ in members],
        [offset for _, offset, _ in members],
        [size for _, _, size in members],
    )


def _refuse_compressed(path: Path, start: bytes) -> None:
    for magic, (name, tool) in _COMPRESSED.items():
        if start.startswith(magic):
            what = f"is compressed with {name}, so that it can only be read from its start"
            raise DataError(what, path=path, fix=f"unpack it once with {tool}")


def _match(names: Any, images: ImageTable, root: Path) -> Rows:
    """For each image the number of its member, or -1."""
    for what, wanted, there in _ways(names, images):
        where, twice = found_in(wanted, there)
        if not (where >= 0).any():
            continue
        if twice is None and what == "file name":
            twice = _shared(where)
        if twice is not None:
            value = wanted[twice].as_py()
            raise DataError(f"{what} {value!r} stands for more than one image", path=root)
        return where
    if not len(images):
        return np.zeros(0, np.int64)
    first = images.paths([0])[0] or images.show_id(0)
    what = f"has none of the {len(images):,} images, by path, file name or id ({first})"
    raise DataError(what, path=root, fix=suggest(first, names[:1000].to_pylist(), most=3))


def _ways(names: Any, images: ImageTable) -> Iterator[tuple[str, Any, Any]]:
    """How images can be found among members: what, of the images, of the members."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text, rows = pa.large_string(), np.arange(len(images))
    parts = [rows[start : start + _ROWS_AT_ONCE] for start in rows[::_ROWS_AT_ONCE]]
    paths = pa.chunked_array([pa.array(images.paths(part), text) for part in parts], text)
    yield "path", paths, names
    base = pc.replace_substring_regex(names, ".*/", "")
    yield "file name", pc.replace_substring_regex(paths, ".*/", ""), base
    keys = pc.struct_field(pc.extract_regex(base, _KEY), "key")
    if images.id_type == "uint64":
        ids = pa.array([f"{value:016x}" for value in images.ids.tolist()], text)
        yield "id", ids, pc.utf8_lower(keys)
        return
    if images.id_type == "int64":
        keys = pc.replace_substring_regex(keys, r"^0+(\d)", r"\1")
    yield "id", images.table["id"].cast(text), keys


def _shared(where: Rows) -> int | None:
    """The first image whose member is also another's."""
    order = np.argsort(where, kind="stable")
    same = (where[order[1:]] == where[order[:-1]]) & (where[order[1:]] >= 0)
    return int(order[1:][same].min()) if same.any() else None
