"""Damaged files: each import succeeds or is refused in words, and a refusal leaves nothing behind.

The loops are seeded, so a failure comes back; its text has the number of the mutation.
"""

from __future__ import annotations

import gc
import random
import shutil
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partlabel import LabelStore, PartlabelError
from partlabel.readers import READERS, import_labels, scan_csv, scan_json
from tests import formats
from tests.formats import Shape, Truth, Variant, Written

pytestmark = pytest.mark.slow  # the whole file: many processes, many bytes

ROUNDS = 160
TOKENS = (
    b'"',
    b"'",
    b",",
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"\t",
    b" ",
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"[",
    b"]",
    b"{",
    b"}",
    b"[]",
    b"{}",
    b":",
    b"\\",
    b"\\d",
    b"\\ud800",
    b"\\N{DASH}",
    b"null",
    b"true",
    b"NaN",
    b"-1",
    b"0.5",
    b"1e999",
    b"9" * 30,
    b"-" * 200,
    b"[" * 300,
    b"../",
    b"/",
    "é😀\u2028".encode(),
)


# --- what is damaged -----------------------------------------------------------------------------


def truth(
    *, splits: tuple[str, ...], highest: int = 10**6, names: tuple[str, ...] | None = None
) -> Truth:
    rng = random.Random(11)
    classes = list(names or ("cat", "a,b", 'say "hi"', "it's", "写真", "two words", "[x]"))
    numbers = rng.sample(range(highest), 9)
    triples = [
        (image, which, rng.choice((1, -1)))
        for image in range(len(numbers))
        for which in range(len(classes))
        if rng.random() < 0.5
    ]
    triples += triples[3:6] + [(image, which, -state) for image, which, state in triples[7:9]]
    return Truth(numbers, classes, [rng.choice(splits) for _ in numbers], triples)


NAMES = [f"folder/image {i}, ü.jpg" for i in range(9)]
FILE_CLASSES = ("cat", "a,b", "it's", "写真", "two words", "[x]")
MACHINE = [(i % 9, i % 5, 0.5 + i % 6 / 10) for i in range(20)]


def _openimages(at: Path) -> Written:
    made = truth(splits=formats.OI_SPLITS, highest=1 << 60)
    return formats.openimages(at, made, image_list="one", other=3, machine=MACHINE)


def _openimages_v3(at: Path) -> Written:
    made = truth(splits=formats.OI_SPLITS, highest=1 << 60)
    return formats.openimages(at, made, version=3, class_list=False, variant=Variant(crlf=True))


def _openimages_gz(at: Path) -> Written:
    made = truth(splits=("train",), highest=1 << 60)
    return formats.openimages(at, made, variant=Variant(gz=True))


def _chexpert(at: Path) -> Written:
    made = truth(splits=("train", "valid"))
    return formats.chexpert(at, made, {(0, 1), (3, 2), (4, 4)})


def _table(layout: str, **shape: Any) -> Callable[[Path], Written]:
    def write(at: Path) -> Written:
        made = truth(splits=("train", "val"))
        chosen = Shape(**{"path": True, "split": True, "classes": "table", **shape})
        return getattr(formats, f"table_{layout}")(at, made, NAMES, chosen)

    return write


def _stores(at: Path) -> Written:
    """Two stores to be merged; only the first is damaged."""
    at.mkdir(parents=True)
    made = truth(splits=("train", "val"))
    paths = []
    for name, seed in (("first", 1), ("second", 2)):
        rng = random.Random(seed)
        kept = [triple for triple in made.triples if rng.random() < 0.6]
        one = Truth(made.numbers, made.classes, made.splits, kept)
        shape = Shape(split=True, classes="table")
        written = formats.table_wide(at / "made" / name, one, NAMES, shape)
        paths.append(at / f"{name}.labels")
        import_labels("table", written.sources, out=paths[-1], **written.options)
    # A changed indptr can ask for any amount of memory; it has a test of its own.
    files = [path for path in sorted(paths[0].iterdir()) if path.name != "indptr.npy"]
    expected = formats.Expected([], [], [], "string", files=files)
    return Written("stores", paths, expected)


CASES: dict[str, Callable[[Path], Written]] = {
    "openimages": _openimages,
    "openimages-v3": _openimages_v3,
    "openimages-gz": _openimages_gz,
    "csl": lambda at: formats.csl(at, truth(splits=("train", "val"))),
    "lvis": lambda at: formats.lvis(at, truth(splits=("train", "val"))),
    "coco": lambda at: formats.coco(at, truth(splits=("train", "val")), indent=1),
    "voc": lambda at: formats.voc(at, truth(splits=("train", "val"), names=FILE_CLASSES)),
    "nuswide": lambda at: formats.nuswide(at, truth(splits=("train", "test"), names=FILE_CLASSES)),
    "chexpert": _chexpert,
    "long": _table("long"),
    "long-ids": _table("long", ids="int", path=False, classes=None, kind="tsv"),
    "wide": _table("wide", ids="hex", convention="states"),
    "lists": _table("lists"),
    "lists-gz": _table("lists", classes=None, variant=Variant(gz=True, bom=True, crlf=True)),
    "long-parquet": _table("long", kind="parquet"),
    "wide-parquet": _table("wide", kind="parquet", ids="int"),
    "lists-parquet": _table("lists", kind="parquet", ids="hex"),
    "stores": _stores,
}


# --- how it is damaged ---------------------------------------------------------------------------


def mutated(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice(MUTATIONS)(data, rng)
    return data


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _replace(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]


def _delete(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.choice((1, 1, 2, 5, 30)) :]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(TOKENS) + data[at:]


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _double(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at : at + rng.choice((1, 4, 40))] * 2 + data[at:]


def _lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.choice(("swap", "drop", "double"))
    if kind == "swap":
        lines[first], lines[second] = lines[second], lines[first]
    elif kind == "drop":
        del lines[first]
    else:
        lines.insert(second, lines[first])
    return b"\n".join(lines)


MUTATIONS = (_flip, _replace, _delete, _insert, _insert, _truncate, _double, _lines)


# --- what may happen -----------------------------------------------------------------------------


def outcome(written: Written, out: Path) -> str | None:
    """None where the import did what it may do, else what it did instead."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    store = out / "x.labels"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            saved = import_labels(written.reader, written.sources, out=store, **written.options)
            for path in saved:
                opened = LabelStore.open(path)
                rows = np.arange(len(opened))
                opened.dense(rows)
                opened.images.paths(rows)
            left = {path.name for path in out.iterdir()} - {path.name for path in saved}
        except PartlabelError as error:
            left = {path.name for path in out.iterdir()}
            if not str(error) or "\n" in str(error):
                return f"refused, but not in one line: {error!r}"
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)
            place = next((f for f in reversed(last) if "partlabel" in f.filename), last[-1])
            where = f"{Path(place.filename).name}:{place.lineno}"
            return f"{type(error).__name__} at {where}: {str(error).splitlines()[:1]}"
    if warned:
        return f"warns {warned[0].category.__name__}: {warned[0].message}"
    return f"leaves {sorted(left)} behind" if left else None


def damage(
    case: str, at: Path, rounds: int, seed: int, patch: pytest.MonkeyPatch | None = None
) -> tuple[dict[str, list[int]], int]:
    """Mutate files of a case one after the other; what went wrong, with the rounds of each."""
    written = CASES[case](at / "in")
    files = [*written.expected.files]
    files += [file for layer in written.layers.values() for file in layer.files]
    files = sorted(set(files))
    assert outcome(written, at / "out") is None, "the files are not valid to begin with"
    wrong: dict[str, list[int]] = {}
    read = 0
    for number in range(rounds):
        rng = random.Random(f"{case} {seed} {number}")
        if patch is not None:
            patch.setattr(scan_csv, "BLOCK", rng.choice((3, 16, 64, 256)))
            patch.setattr(scan_json, "_BLOCK", rng.choice((1, 16, 64, 256)))
        path = rng.choice(files)
        intact = path.read_bytes()
        path.write_bytes(mutated(intact, rng))
        problem = outcome(written, at / "out")
        read += (at / "out" / "x.labels").is_dir()
        path.write_bytes(intact)
        if problem is not None:
            wrong.setdefault(problem, []).append(number)
    return wrong, read


def listed(wrong: dict[str, list[int]]) -> str:
    return "\n".join(f"{problem} (mutations {rounds[:5]})" for problem, rounds in wrong.items())


def test_every_reader_is_here() -> None:
    readers = {case.split("-")[0] for case in CASES}
    assert set(READERS) <= readers | {"table"}


@pytest.mark.parametrize("case", CASES)
def test_damaged_files(case: str, tmp_path: Path) -> None:
    wrong, read = damage(case, tmp_path, ROUNDS, seed=0)
    assert not wrong, listed(wrong)
    assert 0 < read < ROUNDS  # some damage is harmless, some is not


@pytest.mark.parametrize("case", ["openimages-v3", "csl", "long", "lists", "chexpert", "lvis"])
def test_damaged_files_in_small_blocks(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, read = damage(case, tmp_path, ROUNDS // 2, seed=1, patch=monkeypatch)
    assert not wrong, listed(wrong)
    assert 0 < read < ROUNDS // 2


@pytest.mark.parametrize("case", CASES)
def test_refusing_leaves_no_file_open(case: str, tmp_path: Path) -> None:
    """Python says so when an open file is thrown away; here it must have nothing to say."""
    written = CASES[case](tmp_path / "in")
    path = written.expected.files[0]
    path.write_bytes(path.read_bytes()[:-20] + b'"\xff')
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(3):
            outcome(written, tmp_path / "out")
        gc.collect()
    assert [str(one.message) for one in warned] == []


@pytest.mark.parametrize("case", CASES)
def test_missing_and_empty_files(case: str, tmp_path: Path) -> None:
    written = CASES[case](tmp_path / "in")
    wrong = []
    for path in written.expected.files:
        intact = path.read_bytes()
        for change in (lambda path: path.write_bytes(b""), Path.unlink):
            change(path)
            wrong.append(outcome(written, tmp_path / "out"))
            path.write_bytes(intact)
    assert [problem for problem in wrong if problem is not None] == []
    assert outcome(written, tmp_path / "out") is None


@pytest.mark.parametrize("case", ["lvis", "csl", "chexpert", "voc", "long-parquet"])
def test_refusing_leaves_the_old_store(case: str, tmp_path: Path) -> None:
    written = CASES[case](tmp_path / "in")
    assert outcome(written, tmp_path / "out") is None
    path = written.expected.files[0]
    path.write_bytes(path.read_bytes()[:-9] + b"\xff\x00oh\n")
    before = contents(tmp_path / "out")
    with pytest.raises(PartlabelError):
        import_labels(
            written.reader,
            written.sources,
            out=tmp_path / "out" / "x.labels",
            overwrite=True,
            **written.options,
        )
    assert contents(tmp_path / "out") == before


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("name", ["indptr.npy", "codes.npy"])
@pytest.mark.parametrize("value", [5_000, 40_000])
def test_merging_a_store_with_impossible_numbers(tmp_path: Path, name: str, value: int) -> None:
    written = _stores(tmp_path / "in")
    path = written.sources[0] / name
    array = np.load(path)
    array[len(array) // 2] = value  # a class or a place that does not exist
    np.save(path, array)
    assert outcome(written, tmp_path / "out") is None
    assert not list((tmp_path / "out").iterdir())
