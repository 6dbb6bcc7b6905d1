"""Where image bytes come from: folders, tar shards, parquet files, and all that can be wrong."""

from __future__ import annotations

import errno
import gc
import gzip
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partlabel import ImageTable, LabelStore
from partlabel.errors import DataError, UsageError
from partlabel.images import ImageError, ImageSource, open_images
from partlabel.images import files as image_files
from partlabel.images import parquet as image_parquet
from partlabel.images import tar as image_tar
from tests.conftest import MakeStore

Files = dict[str, bytes]


def content(name: str) -> bytes:
    """Bytes that differ from file to file, in number too."""
    return f"<{name}>".encode() * (len(name) + sum(name.encode()) % 50)


@pytest.fixture
def store(make_store: MakeStore) -> Callable[..., LabelStore]:
    """A store of given ids and paths."""

    def make(ids: Any, paths: list[str | None] | None = None, **columns: Any) -> LabelStore:
        states = np.ones((len(ids), 1), np.int8)
        return make_store(states, ids=ids, paths=paths, **columns)

    return make


def write_folder(root: Path, names: list[str]) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(name))
    return root


def write_tar(path: Path, files: Files, form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def tar_of(path: Path, names: list[str], form: int = tarfile.PAX_FORMAT) -> Path:
    return write_tar(path, {name: content(name) for name in names}, form)


def check(source: ImageSource, names: list[str]) -> None:
    rows = np.random.default_rng(0).permutation(len(names))
    for row in rows.tolist():
        assert source.read(row) == content(names[row])
    assert source.missing(range(len(names))) == []


# Folders.


def test_a_folder_gives_the_files_of_the_store(tmp_path: Path, store: Any) -> None:
    names = ["a.jpg", "sub/b.jpg", "sub/deep/c d.png", "ü.jpg"]
    write_folder(tmp_path, names)
    check(open_images("folder", tmp_path, store(["1", "2", "3", "4"], names)), names)


def test_a_folder_with_a_template(tmp_path: Path, make_store: MakeStore) -> None:
    ids = np.array([7, 255], np.uint64)
    made = make_store(np.ones((2, 1)), ids=ids, template="{split}/{id:016x}.jpg", splits=["a", "b"])
    names = ["a/0000000000000007.jpg", "b/00000000000000ff.jpg"]
    write_folder(tmp_path, names)
    check(open_images("folder", tmp_path, made), names)


@pytest.mark.parametrize(
    "name", ["../secret", "a/../../secret", "/etc/hostname", "..", "C:\\x.jpg"]
)
def test_no_path_leaves_the_folder(tmp_path: Path, store: Any, name: str) -> None:
    root = write_folder(tmp_path / "root", ["a.jpg"])
    (tmp_path / "secret").write_text("x")
    (root / "a").mkdir()
    source = open_images("folder", root, store(["1", "2"], ["a.jpg", name]))
    with pytest.raises(ImageError, match="leaves the image folder"):
        source.read(1)
    assert source.missing([0, 1]) == [1]


def test_names_with_dots_stay(tmp_path: Path, store: Any) -> None:
    names = ["..a.jpg", "b..c/d...jpg", "./e.jpg"]
    write_folder(tmp_path, names)
    check(open_images("folder", tmp_path, store(["1", "2", "3"], names)), names)


def test_links_that_people_made_are_followed(tmp_path: Path, store: Any) -> None:
    write_folder(tmp_path / "elsewhere", ["a.jpg"])
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "elsewhere")
    assert open_images("folder", root, store(["1"], ["link/a.jpg"])).read(0) == content("a.jpg")


def test_what_cannot_be_read_is_said(tmp_path: Path, store: Any) -> None:
    write_folder(tmp_path, ["good.jpg"])
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "dangling.jpg").symlink_to(tmp_path / "nowhere")
    wrong = {
        "empty.jpg": "is empty",
        "folder.jpg": "directory",
        "gone.jpg": "No such file",
        "good.jpg/x.jpg": "Not a directory",
        "dangling.jpg": "No such file",
        "zero\0.jpg": "null",
        "n" * 300: "too long",
    }
    names = ["good.jpg", *wrong, None]
    source = open_images("folder", tmp_path, store([str(i) for i in range(len(names))], names))
    assert source.read(0) == content("good.jpg")
    for row, (name, why) in enumerate(wrong.items(), start=1):
        with pytest.raises(ImageError, match=why) as caught:
            source.read(row)
        assert name in str(caught.value)
    with pytest.raises(ImageError, match="image 8 has no path"):
        source.read(8)
    assert source.missing(np.arange(9)) == list(range(1, 9))


def test_missing_is_asked_in_pieces(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_files, "_ROWS_AT_ONCE", 3)
    names = [f"{i}.jpg" for i in range(10)]
    write_folder(tmp_path, names[::2])
    source = open_images("folder", tmp_path, store(names, names))
    assert source.missing(range(10)) == [1, 3, 5, 7, 9]
    assert source.missing([9, 0, 3]) == [9, 3]


def test_the_folder_that_was_meant_is_suggested(tmp_path: Path, store: Any) -> None:
    write_folder(tmp_path / "coco", ["train/a.jpg"])
    deep = store(["1"], ["train/a.jpg"])
    with pytest.raises(DataError, match=r"none of 1 images.*did you mean .*coco\?"):
        open_images("folder", tmp_path / "coco" / "train", deep)
    with pytest.raises(DataError, match=r"did you mean .*coco\?"):
        open_images("folder", tmp_path, deep)
    with pytest.raises(DataError, match="did you mean train"):
        open_images("folder", tmp_path / "coco", store(["1"], ["x/trains"]))


def test_wrong_roots_and_kinds(tmp_path: Path, store: Any) -> None:
    made = store(["1"], ["a.jpg"])
    with pytest.raises(UsageError, match="did you mean folder"):
        open_images("folders", tmp_path, made)
    with pytest.raises(UsageError, match="folder, tar, parquet"):
        open_images("zip", tmp_path, made)
    for kind in ("folder", "tar", "parquet"):
        with pytest.raises(DataError, match="no such"):
            open_images(kind, tmp_path / "gone", made)
    with pytest.raises(UsageError, match=r"no image paths.*--path-template"):
        open_images("folder", tmp_path, store(["1"]))
    for kind in ("tar", "parquet"):
        with pytest.raises(DataError, match=rf"no \.{kind} file"):
            open_images(kind, tmp_path, made)
        with pytest.raises(DataError, match="no file has such a name"):
            open_images(kind, tmp_path / f"*.{kind}", made)


# Tar shards.


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_tar_is_read_anywhere(tmp_path: Path, store: Any, form: int) -> None:
    names = [f"images/{i:05}.jpg" for i in range(40)]
    root = tar_of(tmp_path / "a.tar", names, form)
    check(open_images("tar", root, store(names, names)), names)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_are_whole(tmp_path: Path, store: Any, form: int) -> None:
    long = [f"{'d' * 90}/{'n' * 120}{i}.jpg" for i in range(3)]
    names = [*long, "x" * 101 + ".jpg", "ü" * 80 + ".jpg", "short.jpg"]
    root = tar_of(tmp_path / "a.tar", names, form)
    check(open_images("tar", root, store([str(i) for i in range(6)], names)), names)


def test_only_files_are_members(tmp_path: Path, store: Any) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind in (("d", tarfile.DIRTYPE), ("b.jpg", tarfile.SYMTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "a.jpg"
            tar.addfile(info)
        for name, data in (("./a.jpg", b"abc"), ("./d/a.jpg", b"xyz")):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(data))
    source = open_images("tar", path, store(["1", "2"], ["a.jpg", "b.jpg"]))
    assert source.read(0) == b"abc"
    assert source.missing([0, 1]) == [1]
    with pytest.raises(ImageError, match=r"image 2: is not in .*a\.tar"):
        source.read(1)


def test_shards_as_folder_pattern_and_list(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_files, "_OPEN_FILES", 2)
    names = [f"{i}.jpg" for i in range(12)]
    shards = [tar_of(tmp_path / f"s{i}.tar", names[2 * i : 2 * i + 2]) for i in range(6)]
    (tmp_path / "readme.txt").write_text("no shard")
    made = store(names, names)
    for root in (tmp_path, tmp_path / "s?.tar", Path(",".join(str(path) for path in shards))):
        source = open_images("tar", root, made)
        check(source, names)
        assert len(source._handles) == 2


def webdataset(keys: list[str]) -> Files:
    files: Files = {}
    for key in keys:
        files[f"{key}.cls"] = b"0"
        files[f"{key}.json"] = b"{}"
        files[f"{key}.mask.png"] = b"not the image"
        files[f"{key}.JPG"] = content(key)
    return files


def test_webdataset_keys_are_ids(tmp_path: Path, store: Any) -> None:
    hexadecimal = [f"{i:016X}" for i in (1, 2**63 + 5, 77)]
    root = write_tar(tmp_path / "hex.tar", webdataset([f"train/{key}" for key in hexadecimal]))
    source = open_images("tar", root, store(np.array([77, 1, 2**63 + 5], np.uint64)))
    for row, key in enumerate((hexadecimal[2], hexadecimal[0], hexadecimal[1])):
        assert source.read(row) == content(f"train/{key}")

    root = write_tar(tmp_path / "number.tar", webdataset(["000000000139", "000000000000", "12"]))
    source = open_images("tar", root, store(np.array([139, 0, 12, 9])))
    assert [source.read(row) for row in range(3)] == [
        content(key) for key in ("000000000139", "000000000000", "12")
    ]
    assert source.missing(range(4)) == [3]

    root = write_tar(tmp_path / "text.tar", webdataset(["cat-1", "dog_2"]))
    source = open_images("tar", root, store(["dog_2", "cat-1"]))
    assert source.read(0) == content("dog_2")
    root = write_tar(tmp_path / "dots.tar", webdataset(["cat.1", "cat.2"]))
    assert open_images("tar", root, store(["cat.2"])).read(0) == content("cat.2")


def test_file_names_do_where_folders_differ(tmp_path: Path, store: Any) -> None:
    root = tar_of(tmp_path / "a.tar", ["val2014/a.jpg", "val2014/b.jpg"])
    source = open_images("tar", root, store(["1", "2", "3"], ["x/b.jpg", "x/c.jpg", "a.jpg"]))
    assert source.read(0) == content("val2014/b.jpg")
    assert source.missing(range(3)) == [1]


def test_another_image_of_the_same_file_name_is_never_taken(tmp_path: Path, store: Any) -> None:
    root = tar_of(tmp_path / "a.tar", ["train/1.jpg", "train/2.jpg"])
    source = open_images("tar", root, store(["a", "b"], ["train/1.jpg", "val/1.jpg"]))
    assert source.missing([0, 1]) == [1]
    with pytest.raises(DataError, match=r"file name '1\.jpg' stands for more than one image"):
        open_images("tar", root, store(["a", "b"], ["x/1.jpg", "y/1.jpg"]))
    tar_of(tmp_path / "b.tar", ["val/1.jpg"])
    with pytest.raises(DataError, match=r"file name '1\.jpg' stands for more than one image"):
        open_images("tar", tmp_path, store(["a"], ["x/1.jpg"]))


def test_a_member_in_two_shards_is_refused(tmp_path: Path, store: Any) -> None:
    for shard in ("a", "b"):
        tar_of(tmp_path / f"{shard}.tar", ["same.jpg", f"{shard}.jpg"])
    with pytest.raises(DataError, match=r"path 'same\.jpg' stands for more than one"):
        open_images("tar", tmp_path, store(["1", "2"], ["a.jpg", "same.jpg"]))
    assert open_images("tar", tmp_path, store(["1"], ["b.jpg"])).read(0) == content("b.jpg")


def test_a_tar_with_none_of_the_images_is_refused(tmp_path: Path, store: Any) -> None:
    root = tar_of(tmp_path / "a.tar", ["image1.jpg"])
    with pytest.raises(DataError, match=r"none of the 1 images.*did you mean image1\.jpg"):
        open_images("tar", root, store(["7"], ["imag1.jpg"]))
    empty = tar_of(tmp_path / "empty.tar", [])
    with pytest.raises(DataError, match="there is none"):
        open_images("tar", empty, store(["7"], ["a.jpg"]))


def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which shards are scanned from now on."""
    seen: list[str] = []
    scan = image_tar._scan
    monkeypatch.setattr(image_tar, "_scan", lambda path: (seen.append(path.name), scan(path))[1])
    return seen


def test_the_index_is_kept_and_only_changed_shards_are_scanned(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = scanned(monkeypatch)
    names = [f"{i}.jpg" for i in range(9)]
    shards = [tar_of(tmp_path / f"s{i}.tar", names[3 * i : 3 * i + 3]) for i in range(3)]
    made, cache = store(names, names), tmp_path / "cache" / "deep"

    def opened() -> ImageSource:
        return open_images("tar", tmp_path, made, cache=cache)

    check(opened(), names)
    assert seen == ["s0.tar", "s1.tar", "s2.tar"]
    seen.clear()
    check(opened(), names)
    assert seen == []
    # Other bytes at other places: a longer first member.
    write_tar(shards[1], {"new.txt": b"x" * 5000, **{n: content(n) for n in names[3:6]}})
    check(opened(), names)
    assert seen == ["s1.tar"]
    seen.clear()
    later = shards[2].stat().st_mtime_ns + 10**9
    os.utime(shards[2], ns=(later, later))  # the same size
    check(opened(), names)
    assert seen == ["s2.tar"]
    seen.clear()
    state = shards[0].stat()
    write_tar(shards[0], {"new.txt": b"x" * 30_000, **{n: content(n) for n in names[:3]}})
    os.utime(shards[0], ns=(state.st_atime_ns, state.st_mtime_ns))  # the same time
    check(opened(), names)
    assert seen == ["s0.tar"]
    seen.clear()
    # A damaged index is made again.
    (index,) = cache.glob("tar-*.index")
    index.write_bytes(index.read_bytes()[:100])
    check(opened(), names)
    assert len(seen) == 3
    assert [path.name for path in cache.glob(".*.tmp")] == []


def test_an_index_of_another_version_is_made_again(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tar_of(tmp_path / "a.tar", ["a.jpg"])
    made = store(["1"], ["a.jpg"])
    open_images("tar", root, made, cache=tmp_path)
    seen = scanned(monkeypatch)
    monkeypatch.setattr(image_tar, "_VERSION", 2)
    open_images("tar", root, made, cache=tmp_path)
    assert seen == ["a.tar"]


def test_large_tars_are_indexed_in_pieces(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_tar, "_MEMBERS_AT_ONCE", 4)
    monkeypatch.setattr(image_tar, "_ROWS_AT_ONCE", 3)
    names = [f"{i}.jpg" for i in range(10)]
    root = tar_of(tmp_path / "a.tar", names)
    check(open_images("tar", root, store(names, names), cache=tmp_path), names)


def test_damaged_tars_are_refused(tmp_path: Path, store: Any) -> None:
    names = [f"{i}.jpg" for i in range(5)]
    whole = write_tar(tmp_path / "a.tar", {name: bytes([i]) * 3000 for i, name in enumerate(names)})
    data = whole.read_bytes()
    made = store(names, names)
    step = 512 + 3072
    # Within data, within a header, and right behind a header.
    for cut in (100, 512, 1000, step + 100, 2 * step + 512, 3 * step + 2000, 5 * step - 100):
        whole.write_bytes(data[:cut])
        with pytest.raises(DataError, match=r"a\.tar: .*cut short.*fetch it again"):
            open_images("tar", whole, made)
    broken = bytearray(data)
    broken[2 * step : 2 * step + 20] = b"?" * 20
    whole.write_bytes(broken)
    with pytest.raises(DataError, match=f"no header at byte {2 * step:,}"):
        open_images("tar", whole, made)
    whole.write_bytes(data[: 5 * step])  # without the empty blocks at the end
    assert open_images("tar", whole, made).read(4) == bytes([4]) * 3000
    whole.write_bytes(b"this is no tar file" * 99)
    with pytest.raises(DataError, match="no tar file"):
        open_images("tar", whole, made)


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tar"])
def test_a_compressed_tar_is_to_be_unpacked(tmp_path: Path, store: Any, name: str) -> None:
    plain = tar_of(tmp_path / "plain", ["a.jpg"])
    (tmp_path / name).write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    for root in (tmp_path, tmp_path / name):
        with pytest.raises(DataError, match=r"compressed with gzip.*gunzip"):
            open_images("tar", root, store(["1"], ["a.jpg"]))


def test_a_shard_that_is_lost_later_costs_its_images_only(tmp_path: Path, store: Any) -> None:
    names = ["a.jpg", "b.jpg", "c.jpg", "empty.jpg"]
    first, second = tar_of(tmp_path / "1.tar", names[:2]), tar_of(tmp_path / "2.tar", names[2:3])
    write_tar(tmp_path / "3.tar", {"empty.jpg": b""})
    source = open_images("tar", tmp_path, store(names, names))
    first.write_bytes(first.read_bytes()[: 512 * 3 + 20])
    second.unlink()
    assert source.read(0) == content("a.jpg")
    for row, why in ((1, r"1\.tar.*bytes too early"), (2, r"2\.tar: No such"), (3, "is empty")):
        with pytest.raises(ImageError, match=why):
            source.read(row)
    assert source.missing(range(4)) == [3]


# Parquet.


def write_parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def images_of(names: list[str]) -> list[bytes]:
    return [content(name) for name in names]


@pytest.mark.parametrize("column", ["jpeg", "image", "bytes", "img"])
@pytest.mark.parametrize("kind", ["binary", "large_binary", "struct"])
def test_a_parquet_column_is_read_anywhere(
    tmp_path: Path, store: Any, column: str, kind: str
) -> None:
    names = [str(i) for i in range(150)]
    data: Any = images_of(names)
    if kind == "struct":  # as Hugging Face writes images
        data = pa.array([{"bytes": value, "path": None} for value in data])
    else:
        data = pa.array(data, pa.binary() if kind == "binary" else pa.large_binary())
    columns = {"label": pa.array(range(150)), "image_id": pa.array(names), column: data}
    root = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), root, row_group_size=40)
    made = store([*names[::-1], "other"])
    source = open_images("parquet", root, made)
    for row in (0, 149, 64, 63, 7):
        assert source.read(row) == content(names[149 - row])
    assert source.missing(range(151)) == [150]
    with pytest.raises(ImageError, match="image other: is not in"):
        source.read(150)


def test_ids_are_brought_to_the_type_of_the_store(tmp_path: Path, store: Any) -> None:
    data = images_of(["1", "2"])
    numbers = np.array([2**63 + 1, 16], np.uint64)
    for ids, wanted in (
        (["8000000000000001", "0000000000000010"], numbers),
        (numbers, numbers),
        (np.array([5, 6], np.int32), np.array([5, 6])),
        (["5", "6"], np.array([5, 6])),
        (np.array([5, 6]), ["5", "6"]),
    ):
        root = write_parquet(tmp_path / "a.parquet", id=pa.array(ids), image=pa.array(data))
        source = open_images("parquet", root, store(wanted))
        assert [source.read(0), source.read(1)] == data
    root = write_parquet(tmp_path / "a.parquet", id=pa.array(["x", "y"]), image=pa.array(data))
    for wrong in (np.array([5, 6]), numbers):
        with pytest.raises(DataError, match="image ids of type string do not fit"):
            open_images("parquet", root, store(wrong))


def test_several_parquet_files(tmp_path: Path, store: Any) -> None:
    names = [str(i) for i in range(6)]
    paths = [
        write_parquet(tmp_path / f"{i}.parquet", id=names[i::2], img=images_of(names[i::2]))
        for i in range(2)
    ]
    made = store(names)
    listed = Path(f"{paths[0]}, {paths[1]}")
    for root in (tmp_path, tmp_path / "*.parquet", listed):
        check(open_images("parquet", root, made), names)
    with pytest.raises(DataError, match=r"2\.parquet: no such file"):
        open_images("parquet", Path(f"{paths[0]},{tmp_path / '2.parquet'}"), made)
    write_parquet(paths[1], id=[1, 3], img=[b"a", b"b"])
    with pytest.raises(DataError, match="not all of one type"):
        open_images("parquet", tmp_path, made)
    write_parquet(paths[1], id=["0"], img=[b"a"])
    with pytest.raises(DataError, match="image id 0 is there more than once"):
        open_images("parquet", tmp_path, made)


def test_images_that_are_null_or_empty_are_missing(tmp_path: Path, store: Any) -> None:
    names = ["a", "b", "c", "d"]
    for column in (
        pa.array([b"a", None, b"", b"ddd"], pa.binary()),
        pa.array([{"bytes": b"a"}, None, {"bytes": None}, {"bytes": b"ddd"}]),
        pa.array([b"x", b"a", None, b"", b"ddd"], pa.binary()).slice(1),
    ):
        root = write_parquet(tmp_path / "a.parquet", id=names, image=column)
        source = open_images("parquet", root, store(names))
        assert source.missing(range(4)) == [1, 2]
        assert [source.read(0), source.read(3)] == [b"a", b"ddd"]
        with pytest.raises(ImageError, match=r"image b in .*: is empty"):
            source.read(1)


def test_wrong_parquet_files_are_refused(tmp_path: Path, store: Any) -> None:
    made, path = store(["a"]), tmp_path / "a.parquet"
    for columns, why in (
        ({"id": ["a"], "picture": [b"x"]}, r"no column for images \(jpeg or image"),
        ({"name": ["a"], "jpeg": [b"x"]}, r"no column for image ids \(image_id or id\)"),
        ({"id": ["a"], "jpeg": ["text"]}, "'jpeg' is string, not bytes"),
        ({"id": ["a"], "image": [{"path": "x"}]}, "'image' is struct.*, not bytes"),
        ({"id": ["b"], "jpeg": [b"x"]}, "none of the store's 1 images.*there is b"),
        ({"id": pa.array([], pa.string()), "jpeg": pa.array([], pa.binary())}, "no images"),
    ):
        with pytest.raises(DataError, match=why):
            open_images("parquet", write_parquet(path, **columns), made)
    whole = write_parquet(path, id=["a"], jpeg=[b"x" * 9999]).read_bytes()
    for broken in (whole[:-40], b"PAR1" + whole[:400] + b"PAR1", b"", b"text"):
        path.write_bytes(broken)
        with pytest.raises(DataError, match="not readable as parquet"):
            open_images("parquet", path, made)


def copied(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Which files are copied from now on."""
    seen: list[Path] = []
    batches = image_parquet._batches
    monkeypatch.setattr(
        image_parquet, "_batches", lambda path: (seen.append(path), batches(path))[1]
    )
    return seen


def test_the_copy_is_kept_until_the_files_change(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, cache = copied(monkeypatch), tmp_path / "cache"
    root = write_parquet(tmp_path / "a.parquet", id=["a", "b"], jpeg=[b"1", b"22"])
    for ids, expected in ((["b"], b"22"), (["a", "b"], b"1"), (["b", "c"], b"22")):
        assert open_images("parquet", root, store(ids), cache=cache).read(0) == expected
    assert len(seen) == 1
    write_parquet(root, id=["a", "b"], jpeg=[b"333", b"4444"])
    assert open_images("parquet", root, store(["b"]), cache=cache).read(0) == b"4444"
    assert len(seen) == 2
    (flat,) = cache.glob("*.images")
    flat.write_bytes(flat.read_bytes()[:-1])  # cut short by a full disk, say
    assert open_images("parquet", root, store(["b"]), cache=cache).read(0) == b"4444"
    assert len(seen) == 3
    assert len(list(cache.glob("[!.]*"))) == 2


def test_several_processes_make_one_copy(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = copied(monkeypatch)
    names = [str(i) for i in range(500)]
    root = write_parquet(tmp_path / "a.parquet", id=names, jpeg=images_of(names))
    made, found = store(names), []

    def run() -> None:  # the lock is by open file, so that threads stand for processes
        found.append(open_images("parquet", root, made, cache=tmp_path / "cache"))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 1
    for source in found:
        check(source, names)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 with any thread
def test_a_temporary_copy_goes_with_its_source(tmp_path: Path, store: Any) -> None:
    root = write_parquet(tmp_path / "a.parquet", id=["a"], jpeg=[b"1"])
    source = open_images("parquet", root, store(["a"]))
    (flat,) = source.files
    assert flat.parent.parent == Path(tempfile.gettempdir())
    child = os.fork()
    if child == 0:  # a worker that lets go of it
        del source
        os._exit(0)
    os.waitpid(child, 0)
    assert source.read(0) == b"1"
    del source
    gc.collect()
    assert not flat.parent.exists()


def test_a_full_disk_is_said_and_leaves_nothing(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_parquet(tmp_path / "a.parquet", id=["a"], jpeg=[b"1"])

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(image_parquet, "_append", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    for cache in (None, tmp_path / "cache"):
        with pytest.raises(UsageError, match=r"No space left.*cache folder"):
            open_images("parquet", root, store(["a"]), cache=cache)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert list((tmp_path / "cache").glob("[!.]*")) == []
    assert list((tmp_path / "cache").glob("*.tmp")) == []
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file"):
        open_images("parquet", root, store(["a"]), cache=tmp_path / "file" / "x")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
def test_a_row_group_larger_than_memory_is_streamed(tmp_path: Path) -> None:
    rng, count, size = np.random.default_rng(0), 3000, 100_000
    schema = pa.schema({"image_id": pa.int64(), "jpeg": pa.binary()})
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, schema, write_batch_size=16) as writer:
        images = [rng.bytes(size) for _ in range(count)]
        table = pa.table({"image_id": np.arange(count), "jpeg": images}, schema=schema)
        writer.write_table(table, row_group_size=count)
    assert pq.ParquetFile(path).num_row_groups == 1
    script = """if True:
        import re, sys
        import numpy as np, pyarrow.parquet
        from pathlib import Path
        from partlabel import ClassTable, ImageTable, LabelStore
        from partlabel.images import open_images
        def peak():  # of this program; getrusage still counts the one that started it
            return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
        count = int(sys.argv[2])
        store = LabelStore(ClassTable(["c"]), ImageTable.make(np.arange(count)),
                           indptr=np.zeros(count + 1, np.int64), codes=np.zeros(0, np.uint16))
        before = peak()
        source = open_images("parquet", Path(sys.argv[1]), store)
        assert len(source.read(count - 1)) == 100_000
        print((peak() - before) // 1024)
    """
    command = [sys.executable, "-c", script, str(path), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100, f"{done.stdout.strip()} MiB for 286 MiB of images"


# Workers.


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 with any thread
@pytest.mark.parametrize("kind", ["folder", "tar", "parquet"])
@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_workers_read_what_the_parent_reads(
    tmp_path: Path, store: Any, kind: str, way: str
) -> None:
    names = [f"{i}.jpg" for i in range(20)]
    if kind == "folder":
        root = write_folder(tmp_path / "images", names)
    elif kind == "tar":
        root = tar_of(tmp_path / "a.tar", names)
    else:
        root = write_parquet(tmp_path / "a.parquet", id=names, jpeg=images_of(names))
    source = open_images(kind, root, store(names, names))
    assert source.read(3) == content(names[3])  # with a handle open
    with multiprocessing.get_context(way).Pool(2) as pool:
        assert pool.map(source.read, range(20), chunksize=1) == images_of(names)
    assert source.read(4) == content(names[4])
    again = pickle.loads(pickle.dumps(source))
    assert again.read(5) == content(names[5])
    del again
    gc.collect()
    assert source.read(6) == content(names[6])


def test_an_empty_store_has_no_images(tmp_path: Path) -> None:
    from partlabel import ClassTable

    empty = LabelStore(
        ClassTable(["c"]),
        ImageTable.make([]),
        indptr=np.zeros(1, np.int64),
        codes=np.zeros(0, np.uint16),
    )
    tar_of(tmp_path / "a.tar", ["a.jpg"])
    write_parquet(tmp_path / "a.parquet", id=["a"], jpeg=[b"x"])
    for kind in ("tar", "parquet"):
        assert open_images(kind, tmp_path, empty).missing([]) == []
