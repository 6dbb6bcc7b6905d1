"""Random annotations, written as each data set is published, come back label by label."""

from __future__ import annotations

import hashlib
import json
import random
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from partlabel import LabelStore, PartlabelError
from partlabel.readers import import_labels, scan_csv, scan_json
from tests import formats
from tests.formats import Expected, Shape, Truth, Variant, Written

EXAMPLES = settings(deadline=None, max_examples=30)
FEW = settings(deadline=None, max_examples=12)

# --- what is written -----------------------------------------------------------------------------

NASTY = (
    "a,b",
    'say "hi"',
    "it's",
    "naïve café",
    "写真 館",
    "😀",
    "two words",
    "[x]",
    "back\\slash",
    "NA",
    "null",
    "nan",
    "1",
    "0",
    "-1",
    "#N/A",
    "=1+1",
    "a;b|c",
    "e\u0301",
    "a\tb",
)
# A carriage return and other ends of lines have tests of their own below.
_ODD = "\x00\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_TEXT = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters=_ODD), min_size=1, max_size=8
)
ANY_NAME = st.one_of(st.sampled_from((*NASTY, "two\nlines", " lead", "tail ")), _TEXT)
LINE_NAME = ANY_NAME.filter(lambda name: name == name.strip() and "\n" not in name)
COLUMNS = ("image_id", "path", "split", "Path", "Sex", "Age", "Frontal/Lateral", "AP/PA")
HEADER_NAME = ANY_NAME.filter(lambda name: name == name.strip() and name not in COLUMNS)
FILE_NAME = LINE_NAME.filter(lambda name: "/" not in name and name.isprintable())
BAR_NAME = ANY_NAME.filter(
    lambda name: name == name.strip().strip("'\"").strip() and "|" not in name and name[0] != "["
)
# An image id that is its own path must stay in the image folder.
IMAGE_NAME = ANY_NAME.filter(lambda name: not re.search(r"^[/\\]|^[A-Za-z]:|\.\.", name))
VARIANT = st.builds(Variant, gz=st.booleans(), bom=st.booleans(), crlf=st.booleans())
SEED = st.integers(0, 1 << 16)


@st.composite
def truths(
    draw: Callable[[Any], Any],
    names: st.SearchStrategy[str] = ANY_NAME,
    *,
    splits: tuple[str, ...] = ("train", "val"),
    highest: int = 10**11,
    repeats: bool = False,
    lowest: int = 0,
) -> Truth:
    classes = draw(st.lists(names, min_size=1, max_size=6, unique=True))
    numbers = draw(st.lists(st.integers(lowest, highest), min_size=1, max_size=7, unique=True))
    pairs = [(image, which) for image in range(len(numbers)) for which in range(len(classes))]
    states = draw(st.lists(st.sampled_from((1, 0, -1)), min_size=len(pairs), max_size=len(pairs)))
    triples = [(*pair, state) for pair, state in zip(pairs, states, strict=True) if state]
    if repeats:
        one = st.tuples(st.sampled_from(pairs), st.sampled_from((1, -1)))
        triples += [(*pair, state) for pair, state in draw(st.lists(one, max_size=8))]
        triples = draw(st.permutations(triples))
    return Truth(numbers, classes, [draw(st.sampled_from(splits)) for _ in numbers], list(triples))


# --- what must come back -------------------------------------------------------------------------


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rt") as name:
        yield Path(name)


def check(written: Written, out: Path, **more: Any) -> LabelStore:
    """Import, save, open again, compare everything."""
    saved = import_labels(written.reader, written.sources, out=out, **written.options, **more)
    wanted = {out: written.expected} | {
        out.with_name(out.name.removesuffix(".labels") + f".{layer}.labels"): expected
        for layer, expected in written.layers.items()
    }
    assert set(saved) == set(wanted)
    for path, expected in wanted.items():
        compare(LabelStore.open(path), expected)
        compare_meta(json.loads((path / "meta.json").read_text("utf-8")), expected)
        np.testing.assert_array_equal(
            saved[path].dense(np.arange(len(saved[path]))), dense_of(expected)
        )
    assert {path.name for path in out.parent.iterdir()} == {path.name for path in wanted}
    return LabelStore.open(out)


def dense_of(expected: Expected) -> np.ndarray:
    shape = (len(expected.ids), len(expected.classes))
    return np.array(expected.states, np.int8).reshape(shape)


def compare(store: LabelStore, expected: Expected) -> None:
    rows = np.arange(len(expected.ids))
    assert len(store) == len(expected.ids)
    assert list(store.classes.ids) == expected.classes
    assert list(store.classes.names) == (expected.names or expected.classes)
    assert store.images.id_type == expected.id_type
    assert store.images.ids.tolist() == expected.ids
    assert store.images.paths(rows) == (expected.paths or [None] * len(rows))
    assert store.images.splits(rows) == (expected.splits or [None] * len(rows))
    assert store.complete == expected.complete
    dense = dense_of(expected)
    np.testing.assert_array_equal(store.dense(rows), dense)
    np.testing.assert_array_equal(store.counts().positives, (dense == 1).sum(axis=0))
    np.testing.assert_array_equal(store.counts().negatives, (dense == -1).sum(axis=0))
    # What is on disk: each listed label once, classes ascending, the top bit for absent.
    wide = len(expected.classes) > 32_768
    assert store.codes.dtype == (np.uint32 if wide else np.uint16)
    bit = 1 << (31 if wide else 15)
    codes = []
    for row in dense.tolist():
        listed = [(c, s) for c, s in enumerate(row) if s == 1 or (s and not store.complete)]
        codes.append([c + bit * (s < 0) for c, s in listed])
    assert store.codes.tolist() == [code for row in codes for code in row]
    assert store.indptr.tolist() == np.cumsum([0, *map(len, codes)]).tolist()


def compare_meta(meta: dict[str, Any], expected: Expected) -> None:
    dense = dense_of(expected)
    assert meta["counts"] == {
        "images": dense.shape[0],
        "classes": dense.shape[1],
        "positives": int((dense == 1).sum()),
        "negatives": int((dense == -1).sum()),
    }
    assert meta["complete"] == expected.complete
    assert meta["id_type"] == expected.id_type
    assert meta["duplicates"] == expected.duplicates
    assert meta["conflicts"] == expected.conflicts
    recorded = Counter((one["name"], one["bytes"], one["sha256"]) for one in meta["sources"])
    assert recorded == Counter(
        (path.name, len(data), hashlib.sha256(data).hexdigest())
        for path in expected.files
        for data in [path.read_bytes()]
    )


# --- each format ---------------------------------------------------------------------------------

OPENIMAGES = truths(splits=formats.OI_SPLITS, highest=(1 << 64) - 1, repeats=True).filter(
    lambda truth: truth.triples  # a file without rows is refused
)


@EXAMPLES
@given(
    OPENIMAGES,
    st.sampled_from((6, 3)),
    st.sampled_from(("lower", "upper", "mixed")),
    st.booleans(),
    st.booleans(),
    st.sampled_from((None, "one", "each")),
    st.integers(0, 3),
    VARIANT,
    SEED,
)
def test_openimages(
    truth: Truth,
    version: int,
    case: str,
    class_list: bool,
    descriptions: bool,
    image_list: str | None,
    other: int,
    variant: Variant,
    seed: int,
) -> None:
    assume(class_list or truth.triples)
    with folder() as at:
        written = formats.openimages(
            at / "in",
            truth,
            version=version,
            case=case,
            class_list=class_list,
            descriptions=descriptions,
            image_list=image_list,
            other=other,
            variant=variant,
            seed=seed,
        )
        store = check(written, at / "out" / "oi.labels")
        left_out = [note for note in store.origin.notes if "class not in" in note]
        foreign = other if class_list and truth.triples else 0
        assert [note.split()[0] for note in left_out] == [str(foreign)] * bool(foreign)


@FEW
@given(
    OPENIMAGES,
    st.sampled_from((None, "one")),
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 5), st.integers(5, 10)), min_size=1, max_size=12
    ),
)
def test_openimages_machine_layer(
    truth: Truth, image_list: str | None, drawn: list[tuple[int, int, int]]
) -> None:
    machine = [
        (image % len(truth.numbers), which % len(truth.classes), tenths / 10)
        for image, which, tenths in drawn
    ]
    with folder() as at:
        written = formats.openimages(at / "in", truth, image_list=image_list, machine=machine)
        check(written, at / "out" / "oi.labels")


@FEW
@given(OPENIMAGES, SEED)
def test_openimages_row_order_does_not_matter(truth: Truth, seed: int) -> None:
    with folder() as at:
        first = check(formats.openimages(at / "a", truth), at / "outa" / "a.labels")
        triples = list(truth.triples)
        random.Random(seed).shuffle(triples)
        other = Truth(truth.numbers, truth.classes, truth.splits, triples)
        second = check(formats.openimages(at / "b", other), at / "outb" / "b.labels")
        for name in ("codes.npy", "indptr.npy", "classes.csv"):
            before = (at / "outa" / "a.labels" / name).read_bytes()
            assert (at / "outb" / "b.labels" / name).read_bytes() == before
        assert first.images.ids.tolist() == second.images.ids.tolist()


@EXAMPLES
@given(truths(), st.booleans(), VARIANT)
def test_csl(truth: Truth, class_list: bool, variant: Variant) -> None:
    assume(truth.triples)
    if class_list:
        assume(all(name == name.strip() and "\n" not in name for name in truth.classes))
    with folder() as at:
        written = formats.csl(at / "in", truth, class_list=class_list, variant=variant)
        check(written, at / "out" / "csl.labels")


@EXAMPLES
@given(
    truths(),
    st.sampled_from(("1", "0.5")),
    st.sampled_from((None, 1)),
    st.booleans(),
    VARIANT,
    SEED,
)
def test_lvis(
    truth: Truth, version: str, indent: int | None, ascii_only: bool, variant: Variant, seed: int
) -> None:
    with folder() as at:
        written = formats.lvis(
            at / "in",
            truth,
            version=version,
            indent=indent,
            ascii_only=ascii_only,
            variant=variant,
            seed=seed,
        )
        check(written, at / "out" / "lvis.labels")


@EXAMPLES
@given(
    truths(),
    st.sampled_from((2014, 2017)),
    st.booleans(),
    st.booleans(),
    st.sampled_from((None, 1)),
    VARIANT,
    SEED,
)
def test_coco(
    truth: Truth,
    year: int,
    urls: bool,
    keep_empty: bool,
    indent: int | None,
    variant: Variant,
    seed: int,
) -> None:
    with folder() as at:
        written = formats.coco(
            at / "in",
            truth,
            year=year,
            urls=urls,
            keep_empty=keep_empty,
            indent=indent,
            variant=variant,
            seed=seed,
        )
        store = check(written, at / "out" / "coco.labels")
        assert store.origin.image_root == str(at / "in")


@EXAMPLES
@given(
    truths(FILE_NAME, splits=("train", "val", "test"), highest=999_999),
    st.booleans(),
    st.sampled_from(("unknown", "absent", "present")),
)
def test_voc(truth: Truth, crlf: bool, difficult: str) -> None:
    with folder() as at:
        variant = Variant(crlf=crlf)
        written = formats.voc(at / "in", truth, variant=variant, difficult=difficult)
        check(written, at / "out" / "voc.labels")


@EXAMPLES
@given(truths(FILE_NAME, splits=("train", "test"), highest=9_999), st.booleans(), st.booleans())
def test_nuswide(truth: Truth, crlf: bool, bom: bool) -> None:
    with folder() as at:
        written = formats.nuswide(at / "in", truth, variant=Variant(crlf=crlf, bom=bom))
        check(written, at / "out" / "nus.labels")


@EXAMPLES
@given(
    truths(HEADER_NAME, splits=("train", "valid"), highest=99_999),
    st.sets(st.tuples(st.integers(0, 6), st.integers(0, 5))),
    st.sampled_from(("unknown", "present", "absent")),
    VARIANT,
)
def test_chexpert(
    truth: Truth, doubt: set[tuple[int, int]], uncertain: str, variant: Variant
) -> None:
    inside = {(i, c) for i, c in doubt if i < len(truth.numbers) and c < len(truth.classes)}
    with folder() as at:
        written = formats.chexpert(at / "in", truth, inside, uncertain=uncertain, variant=variant)
        store = check(written, at / "out" / "chexpert.labels")
        assert store.origin.image_root == str(at / "in")


SHAPES = st.builds(
    Shape,
    kind=st.sampled_from(("csv", "parquet", "tsv")),
    ids=st.sampled_from(("string", "int", "hex")),
    path=st.booleans(),
    split=st.booleans(),
    convention=st.sampled_from(("nan", "reference", "states")),
    classes=st.sampled_from((None, "table")),
    variant=VARIANT,
)
IMAGE_NAMES = st.lists(IMAGE_NAME, min_size=7, max_size=7, unique=True)


@EXAMPLES
@given(truths(repeats=True), IMAGE_NAMES, SHAPES, SEED)
def test_table_long(truth: Truth, names: list[str], shape: Shape, seed: int) -> None:
    with folder() as at:
        written = formats.table_long(at / "in", truth, names, shape, seed=seed)
        check(written, at / "out" / "long.labels")


@EXAMPLES
@given(truths(HEADER_NAME), IMAGE_NAMES, SHAPES)
def test_table_wide(truth: Truth, names: list[str], shape: Shape) -> None:
    with folder() as at:
        written = formats.table_wide(at / "in", truth, names, shape)
        check(written, at / "out" / "wide.labels")


@FEW
@given(truths(HEADER_NAME), IMAGE_NAMES, SHAPES)
def test_table_wide_complete(truth: Truth, names: list[str], shape: Shape) -> None:
    every = [
        (i, c, 1 if state > 0 else -1)
        for i, row in enumerate(truth.states())
        for c, state in enumerate(row)
    ]
    full = Truth(truth.numbers, truth.classes, truth.splits, every)
    with folder() as at:
        written = formats.table_wide(at / "in", full, names, shape, complete=True)
        check(written, at / "out" / "wide.labels")


@EXAMPLES
@given(truths(), IMAGE_NAMES, SHAPES, st.sampled_from(("python", "json")), st.booleans())
def test_table_lists(
    truth: Truth, names: list[str], shape: Shape, style: str, numbers: bool
) -> None:
    assume(truth.triples)
    if numbers:
        shape = Shape(**{**vars(shape), "classes": "table"})
    with folder() as at:
        written = formats.table_lists(at / "in", truth, names, shape, style=style, numbers=numbers)
        check(written, at / "out" / "lists.labels")


@FEW
@given(truths(BAR_NAME), IMAGE_NAMES)
def test_table_lists_with_separator(truth: Truth, names: list[str]) -> None:
    assume(truth.triples)
    with folder() as at:
        written = formats.table_lists(at / "in", truth, names, Shape(), style="separator")
        check(written, at / "out" / "lists.labels")


@FEW
@given(truths(LINE_NAME), IMAGE_NAMES)
def test_class_list_gives_the_order(truth: Truth, names: list[str]) -> None:
    classes = [f"c{name}" for name in truth.classes]
    renamed = Truth(truth.numbers, classes, truth.splits, truth.triples)
    with folder() as at:
        written = formats.table_wide(at / "in", renamed, names, Shape(classes="lines"))
        store = check(written, at / "out" / "wide.labels")
        assert list(store.classes.ids) == classes


# --- many classes, many images -------------------------------------------------------------------


def test_more_classes_than_sixteen_bits_can_tell_apart(tmp_path: Path) -> None:
    rng = random.Random(5)
    count = 40_000
    triples = [
        (image, rng.randrange(count), rng.choice((1, -1))) for image in range(20) for _ in range(30)
    ]
    triples += [(0, count - 1, 1), (1, count - 1, -1), (2, 32_768, -1), (3, 32_767, -1)]
    truth = Truth(
        numbers=[rng.getrandbits(64) for _ in range(20)],
        classes=[f"class {c}" for c in range(count)],
        splits=["train"] * 20,
        triples=triples,
    )
    store = check(formats.openimages(tmp_path / "in", truth), tmp_path / "out" / "oi.labels")
    assert store.codes.dtype == np.uint32


@pytest.mark.parametrize(("classes", "kind"), [(32_768, np.uint16), (32_769, np.uint32)])
def test_codes_grow_at_the_last_class(tmp_path: Path, classes: int, kind: type) -> None:
    names = [f"c{c}" for c in range(classes)]
    truth = Truth([7, 3], names, ["val", "val"], [(0, classes - 1, -1), (1, classes - 1, 1)])
    shape = Shape(ids="int", classes="lines", split=True)
    written = formats.table_long(tmp_path / "in", truth, [], shape)
    assert check(written, tmp_path / "out" / "x.labels").codes.dtype == kind


def test_thousands_of_shuffled_images(tmp_path: Path) -> None:
    """Enough runs for the assembler to deal them into buckets."""
    rng = random.Random(3)
    images, classes = 1_500, 12
    triples = [
        (rng.randrange(images), rng.randrange(classes), rng.choice((1, -1))) for _ in range(9_000)
    ]
    truth = Truth(
        numbers=list({rng.getrandbits(64): None for _ in range(images)}),
        classes=[f"class {c}" for c in range(classes)],
        splits=[rng.choice(("train", "test")) for _ in range(images)],
        triples=triples,
    )
    assert truth.conflicts() > 100
    assert truth.duplicates() > 100
    check(formats.openimages(tmp_path / "in", truth), tmp_path / "out" / "oi.labels")


# --- duplicates and contradictions ---------------------------------------------------------------


@FEW
@given(truths(splits=("train",), repeats=True), SEED)
def test_strict_refuses_exactly_the_contradictions(truth: Truth, seed: int) -> None:
    with folder() as at:
        written = formats.table_long(at / "in", truth, [], Shape(ids="int"), seed=seed)
        if not truth.conflicts():
            check(written, at / "out" / "x.labels", strict=True)
            return
        (at / "out").mkdir()
        with pytest.raises(PartlabelError, match=f"csv: {truth.conflicts()} labels are annotated"):
            check(written, at / "out" / "x.labels", strict=True)
        assert not any((at / "out").iterdir())


def test_lists_that_contradict_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("image_id,positives,negatives\na,\"['x','y','x']\",\"['y','z','z','z']\"\n")
    out = tmp_path / "out.labels"
    import_labels("table", [str(path)], out=out, layout="lists")
    store = LabelStore.open(out)
    assert store.dense([0]).tolist() == [[1, 1, -1]]
    assert (store.origin.duplicates, store.origin.conflicts) == (3, 1)


# --- blocks that end anywhere --------------------------------------------------------------------

SMALL = st.sampled_from((3, 5, 17, 64))


@contextmanager
def small_blocks(size: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan_csv, "BLOCK", size)
        patch.setattr(scan_json, "_BLOCK", size)
        yield


@EXAMPLES
@given(OPENIMAGES, st.sampled_from((None, "one")), VARIANT, SEED, SMALL)
def test_openimages_in_small_blocks(
    truth: Truth, image_list: str | None, variant: Variant, seed: int, size: int
) -> None:
    with folder() as at, small_blocks(size):
        written = formats.openimages(
            at / "in", truth, image_list=image_list, variant=variant, seed=seed
        )
        check(written, at / "out" / "oi.labels")


@EXAMPLES
@given(truths(repeats=True), IMAGE_NAMES, VARIANT, SEED, SMALL)
def test_table_long_in_small_blocks(
    truth: Truth, names: list[str], variant: Variant, seed: int, size: int
) -> None:
    with folder() as at, small_blocks(size):
        shape = Shape(variant=variant, path=True, split=True)
        written = formats.table_long(at / "in", truth, names, shape, seed=seed)
        check(written, at / "out" / "long.labels")


@FEW
@given(truths(), IMAGE_NAMES, VARIANT, SMALL)
def test_table_lists_in_small_blocks(
    truth: Truth, names: list[str], variant: Variant, size: int
) -> None:
    assume(truth.triples)
    with folder() as at, small_blocks(size):
        written = formats.table_lists(at / "in", truth, names, Shape(variant=variant))
        check(written, at / "out" / "lists.labels")


@FEW
@given(truths(HEADER_NAME, splits=("train", "valid"), highest=99_999), VARIANT, SMALL)
def test_chexpert_in_small_blocks(truth: Truth, variant: Variant, size: int) -> None:
    with folder() as at, small_blocks(size):
        written = formats.chexpert(at / "in", truth, {(0, 0)}, variant=variant)
        check(written, at / "out" / "chexpert.labels")


@EXAMPLES
@given(truths(), st.booleans(), st.sampled_from((None, 1)), VARIANT, st.sampled_from((1, 2, 7, 64)))
def test_json_in_small_blocks(
    truth: Truth, ascii_only: bool, indent: int | None, variant: Variant, size: int
) -> None:
    with folder() as at, small_blocks(size):
        written = formats.lvis(
            at / "lvis", truth, ascii_only=ascii_only, indent=indent, variant=variant
        )
        check(written, at / "out1" / "lvis.labels")
        written = formats.coco(
            at / "coco", truth, ascii_only=ascii_only, indent=indent, variant=variant
        )
        check(written, at / "out2" / "coco.labels")


@pytest.mark.parametrize("size", range(1, 24))
def test_json_numbers_cut_anywhere(tmp_path: Path, size: int) -> None:
    """Numbers that stand alone, not inside an object, may be cut between any two characters."""
    path = tmp_path / "x.json"
    path.write_text(
        '{"extent":[0.5,1e-3,-2.5E+7,12],"scale":1.25,"offset":-10,'
        '"images":[{"id":1,"file_name":"a.jpg"}],"categories":[{"id":3,"name":"c"}],'
        '"annotations":[{"image_id":1,"category_id":3}]}'
    )
    with small_blocks(size):
        import_labels("coco", [str(path)], out=tmp_path / "x.labels")
    assert LabelStore.open(tmp_path / "x.labels").dense([0]).tolist() == [[1]]


@FEW
@given(
    st.lists(st.sampled_from(("x", '"a,b"', '"two\nlines"', '"q""q"', "é", "写真")), max_size=12),
    st.booleans(),
    st.booleans(),
    SMALL,
)
@example(["x"] * 12, False, False, 3)
def test_line_numbers_of_errors(labels: list[str], crlf: bool, bom: bool, size: int) -> None:
    """A bad value, a row cut short and a byte that is not UTF-8: the line is right at any block."""
    end = "\r\n" if crlf else "\n"
    good = "".join(f"img{i},{label},1{end}" for i, label in enumerate(labels))
    start = ("\ufeff" if bom else "") + f"image_id,label,value{end}" + end + good
    line = start.count("\n") + 1
    after = f"z,x,0{end}" * 3
    with folder() as at, small_blocks(size):
        path = at / "a.csv"
        for bad in (b"z,x,7", b"z,x", b"z,x,what", b"z,\xff,1"):
            path.write_bytes(start.encode() + bad + end.encode() + after.encode())
            with pytest.raises(PartlabelError, match=rf"a\.csv line {line}: "):
                import_labels("table", [str(path)], out=at / "x.labels", layout="long")
        assert [entry.name for entry in at.iterdir()] == ["a.csv"]


@pytest.mark.parametrize("size", [3, 17, 64, 1 << 20])
@pytest.mark.parametrize(
    "bad",
    [
        "000000000000000g,v,/m/1,1",
        "00000000000000aa,v,/m/1,0.5",
        "0000000000000aa,v,/m/1,1",
        "00000000000000aa,v,/m/1",
        "00000000000000aa,v,/m/1,yes",
    ],
)
def test_line_numbers_of_openimages_errors(tmp_path: Path, size: int, bad: str) -> None:
    path = tmp_path / "train-annotations-human-imagelabels.csv"
    lines = ["ImageID,Source,LabelName,Confidence"]
    lines += [f"{i:016x},verification,/m/{i % 3},1" for i in range(20)]
    path.write_text("\n".join([*lines, bad, *lines[1:4]]) + "\n")
    with small_blocks(size), pytest.raises(PartlabelError, match=r"imagelabels\.csv line 22: "):
        import_labels("openimages", [str(path)], out=tmp_path / "x.labels")


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
def test_line_numbers_of_json_errors(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.json"
    text = '{\n"info": {"a":\n"é"},\n"images": [\n{"id": 1, "file_name": "a"},\n{"id": 2 oh}\n]}\n'
    path.write_text(text, "utf-8")
    with small_blocks(size), pytest.raises(PartlabelError, match=r"x\.json line 6: "):
        import_labels("coco", [str(path)], out=tmp_path / "x.labels")


# --- what the readers say they accept, case by case ----------------------------------------------


def put(at: Path, **files: str | bytes) -> Path:
    """Write files; a double underscore in a name stands for the dot."""
    for name, content in files.items():
        path = at / name.replace("__", ".")
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return at


def refusal(name: str, sources: Any, **options: Any) -> str | None:
    """What import says when it refuses, or None where it reads."""
    try:
        import_labels(name, sources, **options)
    except PartlabelError as error:
        return str(error)
    return None


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
def test_every_kind_of_line_end(tmp_path: Path, end: str) -> None:
    """A file with bare carriage returns is read or refused, never taken for an empty one."""
    text = "ImageID,Source,LabelName,Confidence\n000000000000000a,v,/m/1,1\n"
    put(tmp_path, a__csv=text.replace("\n", end), c__txt="/m/1\n")
    refused = refusal(
        "openimages",
        [str(tmp_path / "a.csv")],
        out=tmp_path / "x.labels",
        classes=tmp_path / "c.txt",
    )
    if refused is not None:
        assert end == "\r"
    else:
        store = LabelStore.open(tmp_path / "x.labels")
        assert store.dense(np.arange(len(store))).tolist() == [[1]]


@pytest.mark.parametrize("mark", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\x00"])
def test_odd_characters_in_class_ids(tmp_path: Path, mark: str) -> None:
    put(tmp_path, a__csv=f'image_id,label,value\na,"x{mark}y",1\na,z,0\n')
    import_labels("table", [str(tmp_path / "a.csv")], out=tmp_path / "x.labels", layout="long")
    store = LabelStore.open(tmp_path / "x.labels")
    assert list(store.classes.ids) == [f"x{mark}y", "z"]
    assert store.dense([0]).tolist() == [[1, -1]]


@pytest.mark.parametrize("mark", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_only_line_ends_end_a_line_of_a_class_list(tmp_path: Path, mark: str) -> None:
    put(tmp_path, a__csv=f"image_id,label,value\na,x{mark}y,1\n", c__txt=f"w\nx{mark}y\r\n")
    import_labels(
        "table",
        [str(tmp_path / "a.csv")],
        out=tmp_path / "x.labels",
        layout="long",
        classes=tmp_path / "c.txt",
    )
    assert list(LabelStore.open(tmp_path / "x.labels").classes.ids) == ["w", f"x{mark}y"]


def test_very_long_cells(tmp_path: Path) -> None:
    """An image with thousands of labels has a list longer than Python's csv limit."""
    names = [f"/m/{i:06d}" for i in range(20_000)]
    put(tmp_path, a__csv=f'filepath,label,label_neg,split_name\na.jpg,"{names}",[],train\n')
    import_labels("csl", [str(tmp_path / "a.csv")], out=tmp_path / "x.labels")
    assert LabelStore.open(tmp_path / "x.labels").counts().positives.tolist() == [1] * 20_000


def test_error_after_a_very_long_cell(tmp_path: Path) -> None:
    names = [f"/m/{i:06d}" for i in range(20_000)]
    text = f'filepath,label,label_neg,split_name\na.jpg,"{names}",[],train\nb.jpg,oh,[],val\n'
    put(tmp_path, a__csv=text)
    with pytest.raises(PartlabelError, match=r"a\.csv line 3: "):
        import_labels("csl", [str(tmp_path / "a.csv")], out=tmp_path / "x.labels")


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        (r'["\/m\/01"]', "/m/01"),
        (json.dumps(["😀"]), "😀"),
        (json.dumps(["é", "b"][:1]), "é"),
        (json.dumps(["a\nb"]), "a\nb"),
        (json.dumps(['"', "b"][:1]), '"'),
    ],
)
def test_json_lists_as_other_programs_write_them(tmp_path: Path, cell: str, name: str) -> None:
    put(tmp_path, a__csv=formats.csv_text([["image_id", "positives"], ["a", cell]]))
    import_labels("table", [str(tmp_path / "a.csv")], out=tmp_path / "x.labels", layout="lists")
    assert list(LabelStore.open(tmp_path / "x.labels").classes.ids) == [name]


def test_json_numbers_as_classes_keep_working_next_to_words(tmp_path: Path) -> None:
    put(tmp_path, a__csv="image_id,positives\na,\"['1','2']\"\nb,[]\nc,\n")
    import_labels("table", [str(tmp_path / "a.csv")], out=tmp_path / "x.labels", layout="lists")
    store = LabelStore.open(tmp_path / "x.labels")
    assert list(store.classes.ids) == ["1", "2"]
    assert store.dense([0, 1, 2]).tolist() == [[1, 1], [0, 0], [0, 0]]


def test_files_with_and_without_a_split(tmp_path: Path) -> None:
    """One file named SPLIT=FILE and one not: read with an empty split, or refused in words."""
    put(tmp_path, a__csv="image_id,label,value\na,x,1\n", b__csv="image_id,label,value\nb,x,0\n")
    files = [f"train={tmp_path / 'a.csv'}", str(tmp_path / "b.csv")]
    refused = refusal("table", files, out=tmp_path / "x.labels", layout="long")
    if refused is not None:
        assert "split" in refused
    else:
        store = LabelStore.open(tmp_path / "x.labels")
        assert store.images.splits(np.arange(2)) == ["train", None]
        assert store.dense([0, 1]).tolist() == [[1], [-1]]


OI_HEADER = "ImageID,Source,LabelName,Confidence\n"
A, B = "000000000000000a", "000000000000000b"


def test_openimages_image_in_two_splits_of_a_listed_set(tmp_path: Path) -> None:
    """As without a list: refused in words."""
    train, test = tmp_path / "train-annotations-h.csv", tmp_path / "test-annotations-h.csv"
    train.write_text(f"{OI_HEADER}{A},v,/m/1,1\n")
    test.write_text(f"{OI_HEADER}{A},v,/m/2,0\n")
    put(tmp_path, list__csv=f"ImageID,Subset\n{A},train\n{B},test\n")
    with pytest.raises(PartlabelError, match=A):
        import_labels(
            "openimages",
            [str(train), str(test)],
            out=tmp_path / "x.labels",
            image_list=[tmp_path / "list.csv"],
        )


def test_openimages_list_without_subset(tmp_path: Path) -> None:
    """The split of the label file, or no split: never a folder called None."""
    labels = tmp_path / "train-annotations-human-imagelabels.csv"
    labels.write_text(f"{OI_HEADER}{A},v,/m/1,1\n")
    put(tmp_path, ids__csv=f"ImageID\n{A}\n{B}\n")
    import_labels(
        "openimages", [str(labels)], out=tmp_path / "x.labels", image_list=[tmp_path / "ids.csv"]
    )
    paths = LabelStore.open(tmp_path / "x.labels").images.paths([0, 1])
    assert paths in ([f"train/{A}.jpg", f"train/{B}.jpg"], [f"{A}.jpg", f"{B}.jpg"])


@pytest.mark.parametrize(
    "where", ["latest/annotations", "test/images", "validation/annotations", "train-images"]
)
def test_openimages_split_comes_from_the_file_name(tmp_path: Path, where: str) -> None:
    path = tmp_path / where / "oidv6-train-annotations-human-imagelabels.csv"
    path.parent.mkdir(parents=True)
    path.write_text(f"{OI_HEADER}{A},v,/m/1,1\n")
    import_labels("openimages", [str(path)], out=tmp_path / "x.labels")
    assert LabelStore.open(tmp_path / "x.labels").images.splits([0]) == ["train"]


def test_openimages_keeps_images_without_trainable_label(tmp_path: Path) -> None:
    """They are labelled, only not with a class of the list; the prior is estimated on them."""
    path = tmp_path / "train-annotations-human-imagelabels.csv"
    path.write_text(f"{OI_HEADER}{A},v,/m/1,1\n{B},v,/m/2,1\n")
    put(tmp_path, c__txt="/m/1\n")
    import_labels("openimages", [str(path)], out=tmp_path / "x.labels", classes=tmp_path / "c.txt")
    store = LabelStore.open(tmp_path / "x.labels")
    assert store.images.ids.tolist() == [10, 11]
    assert store.dense([0, 1]).tolist() == [[1], [0]]


def test_splits_of_any_sequence_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "train-annotations-human-imagelabels.csv"
    path.write_text(f"{OI_HEADER}{A},v,/m/1,1\n{B},v,/m/1,1\n")
    import_labels("openimages", [str(path)], out=tmp_path / "x.labels")
    images = LabelStore.open(tmp_path / "x.labels").images
    assert images.splits(range(2)) == ["train", "train"]
    assert images.paths(range(2)) == [f"train/{A}.jpg", f"train/{B}.jpg"]


@pytest.mark.parametrize("difficult", ["unknown", "absent", "present"])
def test_voc_image_missing_from_one_class_is_not_absent(tmp_path: Path, difficult: str) -> None:
    main = tmp_path / "VOC2007" / "ImageSets" / "Main"
    main.mkdir(parents=True)
    put(main, train__txt="a\nb\n", cat_train__txt="a  1\nb -1\n", dog_train__txt="a -1\n")
    out = tmp_path / "x.labels"
    refused = refusal("voc", tmp_path / "VOC2007", out=out, difficult=difficult)
    if refused is not None:
        assert "dog" in refused
    else:
        assert LabelStore.open(out).dense([0, 1]).tolist() == [[1, -1], [-1, 0]]


@pytest.mark.parametrize("where", ["name", "file_name"])
def test_json_text_that_is_not_unicode(tmp_path: Path, where: str) -> None:
    """Half of a surrogate pair is valid json and no text: refused in words."""
    entries = {"name": "c", "file_name": "a.jpg", where: "@"}
    text = json.dumps(
        {
            "images": [{"id": 1, "file_name": entries["file_name"]}],
            "annotations": [{"image_id": 1, "category_id": 1}],
            "categories": [{"id": 1, "name": entries["name"]}],
        }
    ).replace("@", r"\ud800")
    put(tmp_path, x__json=text)
    with pytest.raises(PartlabelError, match=r"x\.json"):
        import_labels("coco", [str(tmp_path / "x.json")], out=tmp_path / "x.labels")


def test_wide_table_with_more_classes_than_the_class_list(tmp_path: Path) -> None:
    """As in the other layouts: refused, unless told to drop them."""
    put(tmp_path, a__csv="image_id,x,y\na,1,0\n", c__txt="x\n")
    options: dict[str, Any] = {"layout": "wide", "classes": tmp_path / "c.txt"}
    with pytest.raises(PartlabelError, match="'y'"):
        import_labels("table", [str(tmp_path / "a.csv")], out=tmp_path / "x.labels", **options)
    import_labels(
        "table",
        [str(tmp_path / "a.csv")],
        out=tmp_path / "y.labels",
        unknown_classes="drop",
        **options,
    )
    assert LabelStore.open(tmp_path / "y.labels").dense([0]).tolist() == [[1]]


def test_parquet_types_people_have(tmp_path: Path) -> None:
    """Dictionaries, large strings, booleans and nulls."""
    out = tmp_path / "x.labels"
    pq.write_table(
        pa.table(
            {
                "image_id": pa.array(["a", "b", "c"]).dictionary_encode(),
                "split": pa.array(["train", "val", None], pa.large_string()),
                "x": pa.array([True, False, None]),
                "y": pa.array([1, 0, None], pa.int64()),
            }
        ),
        tmp_path / "w.parquet",
    )
    import_labels("table", [str(tmp_path / "w.parquet")], out=out, layout="wide")
    store = LabelStore.open(out)
    assert store.images.ids.tolist() == ["a", "b", "c"]
    assert store.images.splits([0, 1, 2]) == ["train", "val", None]
    assert store.dense([0, 1, 2]).tolist() == [[1, 1], [-1, -1], [0, 0]]


@pytest.mark.parametrize("kind", ["list_", "large_list"])
def test_parquet_lists_with_nulls(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "x.labels"
    lists = getattr(pa, kind)
    pq.write_table(
        pa.table(
            {
                "image_id": pa.array([3, 1, 2], pa.int32()),
                "positives": pa.array([["b"], None, []], lists(pa.string())),
                "negatives": pa.array([None, ["a", "b"], None], lists(pa.large_string())),
            }
        ),
        tmp_path / "l.parquet",
    )
    import_labels("table", [str(tmp_path / "l.parquet")], out=out, layout="lists")
    store = LabelStore.open(out)
    assert store.images.ids.tolist() == [3, 1, 2]
    assert store.dense([0, 1, 2]).tolist() == [[0, 1], [-1, -1], [0, 0]]


def test_contradictions_of_images_that_are_left_out_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "train-annotations-human-imagelabels.csv"
    path.write_text(f"{OI_HEADER}{A},v,/m/1,1\n{A},v,/m/1,0\n{B},v,/m/1,1\n")
    put(tmp_path, list__csv=f"ImageID,Subset\n{B},train\n")
    out = tmp_path / "x.labels"
    import_labels(
        "openimages", [str(path)], out=out, image_list=[tmp_path / "list.csv"], strict=True
    )
    store = LabelStore.open(out)
    assert store.images.ids.tolist() == [11]
    assert store.origin.conflicts == 0


def test_strict_merge_of_stores_that_disagree(tmp_path: Path) -> None:
    paths = []
    for name, value in (("a", 1), ("b", 0)):
        put(tmp_path, **{f"{name}__csv": f"image_id,label,value\nimg,x,{value}\n"})
        paths.append(tmp_path / f"{name}.labels")
        import_labels("table", [str(tmp_path / f"{name}.csv")], out=paths[-1], layout="long")
    with pytest.raises(PartlabelError, match="1 label"):
        import_labels("stores", paths, out=tmp_path / "x.labels", strict=True)


def test_a_line_of_spaces_is_the_same_in_every_block(tmp_path: Path) -> None:
    put(tmp_path, a__csv="image_id,label,value\na,x,1\n   \n")
    said = set()
    for size in (3, 8, 64, 1 << 20):
        with small_blocks(size):
            out = tmp_path / f"{size}.labels"
            said.add(refusal("table", [str(tmp_path / "a.csv")], out=out, layout="long"))
    assert len(said) == 1


@pytest.mark.parametrize("more", ["", ', "it\'s"'])
def test_an_empty_entry_of_a_list_is_the_same_in_every_list(tmp_path: Path, more: str) -> None:
    """Left out or refused, but not a class in one column of lists and nothing in the other."""
    cell = f"['', 'x'{more}]"
    put(tmp_path, a__csv=formats.csv_text([["image_id", "positives"], ["a", cell]]))
    files, out = [str(tmp_path / "a.csv")], tmp_path / "x.labels"
    if refusal("table", files, out=out, layout="lists") is None:
        assert "" not in LabelStore.open(out).classes.ids


def test_escapes_in_lists_warn_nobody(tmp_path: Path) -> None:
    r"""A cell like ['a\d'] is Python with a doubtful escape: a matter of words, not of warnings."""
    put(tmp_path, a__csv="image_id,positives\na,\"['a\\d']\"\n")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        refusal("table", [str(tmp_path / "a.csv")], out=tmp_path / "x.labels", layout="lists")
    assert [str(one.message) for one in warned] == []


def test_nuswide_line_numbers_count_empty_lines(tmp_path: Path) -> None:
    truth = Truth([1, 2], ["sky"], ["train", "test"], [(0, 0, 1)])
    written = formats.nuswide(tmp_path / "in", truth)
    labels = tmp_path / "in" / "Groundtruth" / "TrainTestLabels" / "Labels_sky_Train.txt"
    labels.write_text("\n\n2\n")
    with pytest.raises(PartlabelError, match=r"Train\.txt line 3: "):
        import_labels("nuswide", written.sources, out=tmp_path / "x.labels")


@pytest.mark.parametrize("options", [{"delimiter": ";;"}, {"separator": ""}])
def test_impossible_separators(tmp_path: Path, options: dict[str, str]) -> None:
    put(tmp_path, a__csv="image_id,positives\na,x\n")
    with pytest.raises(PartlabelError):
        import_labels(
            "table",
            [str(tmp_path / "a.csv")],
            out=tmp_path / "x.labels",
            layout="lists",
            **options,
        )
