from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from partlabel import ClassTable, ImageTable, LabelStore
from partlabel.errors import ClassMismatchError, StoreError, UsageError
from partlabel.store import Batch
from tests.conftest import MakeStore, store_from

SHAPE = st.tuples(st.integers(1, 8), st.integers(1, 9))
DENSE = hnp.arrays(np.int8, SHAPE, elements=st.integers(-1, 1))
FILES = {"meta.json", "classes.csv", "images.parquet", "indptr.npy", "codes.npy"}


def batch_as_dense(batch: Batch, rows: int, classes: int) -> np.ndarray:
    dense = np.zeros((rows, classes), np.int8)
    for position, which, state in zip(*batch, strict=True):
        dense[position, which] = state
    return dense


@given(states=DENSE, data=st.data())
def test_batch_dense_and_counts_agree_with_the_dense_array(
    states: np.ndarray, data: st.DataObject
) -> None:
    store = store_from(states)
    rows = data.draw(st.lists(st.integers(0, len(states) - 1), max_size=10))
    assert np.array_equal(store.dense(rows), states[rows])
    batch = store.batch(np.array(rows, np.int64))
    assert np.array_equal(batch_as_dense(batch, len(rows), states.shape[1]), states[rows])
    assert batch.states.dtype == np.int8
    counts = store.counts()
    assert np.array_equal(counts.positives, (states == 1).sum(0))
    assert np.array_equal(counts.negatives, (states == -1).sum(0))
    picked = store.select(rows)
    assert np.array_equal(picked.dense(range(len(rows))), states[rows])
    assert picked.images.ids.tolist() == [f"img{row}" for row in rows]


@given(states=DENSE)
def test_a_complete_store_lists_positives_and_knows_the_rest(states: np.ndarray) -> None:
    full = np.where(states > 0, 1, -1)
    store = store_from(full, complete=True)
    everything = np.arange(len(full))
    assert np.array_equal(store.dense(everything), full)
    assert set(store.batch(everything).states.tolist()) <= {1}
    assert store.counts().negatives.sum() == (full == -1).sum()
    assert len(store.codes) == (full == 1).sum()


@pytest.mark.parametrize("complete", [False, True])
def test_a_saved_store_opens_the_same(
    tmp_path: Path, random_states: Callable[..., np.ndarray], complete: bool
) -> None:
    states = random_states(20, 7, known=1.0 if complete else 0.3)
    store = store_from(states, complete=complete, splits=["train", "val"] * 10)
    path = store.save(tmp_path / "x.labels")
    assert {file.name for file in path.iterdir()} == FILES
    opened = LabelStore.open(path)
    assert np.array_equal(opened.dense(range(20)), states)
    assert opened.complete is complete
    assert opened.classes == store.classes
    assert opened.images.table.equals(store.images.table)
    assert isinstance(opened.codes.base, np.memmap)
    meta = json.loads((path / "meta.json").read_text())
    assert meta["format_version"] == 1
    assert meta["id_type"] == "string"
    assert meta["counts"] == {
        "images": 20,
        "classes": 7,
        "positives": int((states == 1).sum()),
        "negatives": int((states == -1).sum()),
    }


def test_codes_are_as_the_contract_says(tmp_path: Path, make_store: MakeStore) -> None:
    path = make_store([[1, 0, -1], [0, 0, 0]]).save(tmp_path / "x.labels")
    codes, indptr = np.load(path / "codes.npy"), np.load(path / "indptr.npy")
    assert (codes.dtype, indptr.dtype) == (np.uint16, np.int64)
    assert codes.tolist() == [0, 2 | 1 << 15]
    assert indptr.tolist() == [0, 2, 2]
    assert (path / "classes.csv").read_text().splitlines()[:2] == ["index,id,name", "0,c0,c0"]


def test_a_store_without_labels_or_without_images_can_be_saved(
    tmp_path: Path, make_store: MakeStore
) -> None:
    for name, count in (("none", 0), ("two", 2)):
        path = make_store(np.zeros((count, 3))).save(tmp_path / f"{name}.labels")
        opened = LabelStore.open(path)
        assert len(opened) == count
        assert opened.dense(range(count)).shape == (count, 3)
        assert opened.counts().positives.tolist() == [0, 0, 0]
        assert len(opened.images) == count


def test_splits_select_rows(make_store: MakeStore) -> None:
    store = make_store([[1, 0], [0, 1], [-1, 0]], splits=["train", "val", "train"])
    assert store.images.split_counts == {"train": 2, "val": 1}
    assert store.split("train").dense([0, 1]).tolist() == [[1, 0], [-1, 0]]
    assert store.split("val").images.ids.tolist() == ["img1"]
    with pytest.raises(UsageError, match="no split 'test'; the splits are: train, val"):
        store.split("test")


def test_consecutive_rows_are_selected_without_copying(make_store: MakeStore) -> None:
    store = make_store(np.ones((6, 4)))
    assert np.shares_memory(store.select([2, 3, 4]).codes, store.codes)
    assert not np.shares_memory(store.select([4, 2]).codes, store.codes)


@pytest.mark.parametrize(
    ("rows", "error", "text"),
    [
        ([3], IndexError, r"0\.\.2, got 3\.\.3"),
        ([-1], IndexError, r"got -1"),
        ([0.5], ValueError, "integers"),
        ([[0]], ValueError, "one dimension"),
    ],
)
def test_rows_that_are_not_there_are_refused(
    make_store: MakeStore, rows: list, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make_store(np.ones((3, 2))).batch(rows)


def test_chunks_cover_every_row_once(make_store: MakeStore) -> None:
    store = make_store(np.ones((10, 4)))
    for size in (1, 4, 9, 1000):
        parts = list(store.chunks(size))
        assert [i for part in parts for i in range(part.start, part.stop)] == list(range(10))


def test_arrays_that_do_not_fit_are_refused() -> None:
    classes, images = ClassTable(["a"]), ImageTable.make(["x"])
    good = {"indptr": np.array([0, 1]), "codes": np.array([0], np.uint16)}
    for wrong, text in (
        ({"codes": np.array([0], np.uint32)}, "codes must be uint16"),
        ({"indptr": np.array([0, 1], np.int32)}, "indptr must be int64"),
        ({"indptr": np.array([0, 2])}, "does not span"),
        ({"indptr": np.array([0, 1, 1])}, "1 images, but indptr has 2"),
    ):
        with pytest.raises(ValueError, match=text):
            LabelStore(classes, images, **(good | wrong))


def test_counting_a_class_that_does_not_exist_says_the_store_is_damaged() -> None:
    codes = np.array([5], np.uint16)
    store = LabelStore(
        ClassTable(["a"]), ImageTable.make(["x"]), indptr=np.array([0, 1]), codes=codes
    )
    with pytest.raises(StoreError, match="class 5 of 1"):
        store.counts()


def test_saving_twice_gives_the_same_bytes(tmp_path: Path, make_store: MakeStore) -> None:
    store = make_store([[1, 0, -1]], splits=["train"])
    one, two = store.save(tmp_path / "a" / "x.labels"), store.save(tmp_path / "b" / "x.labels")
    for name in FILES:
        assert (one / name).read_bytes() == (two / name).read_bytes()


class TestImages:
    def test_paths_come_from_the_template_unless_stored(self) -> None:
        images = ImageTable.make(
            np.array([1, 255], np.uint64),
            paths=[None, "odd.png"],
            splits=["train", "val"],
            template="{split}/{id:016x}.jpg",
        )
        assert images.paths([1, 0]) == ["odd.png", "train/0000000000000001.jpg"]
        assert images.show_id(1) == "00000000000000ff"
        assert images.id_type == "uint64"

    @pytest.mark.parametrize(
        "bad", ["{id.__class__}", "{0}", "{id!r}", "{name}", "{id:>{split}}", "{"]
    )
    def test_a_template_can_only_name_id_and_split(self, bad: str) -> None:
        with pytest.raises(UsageError, match="path template"):
            ImageTable.make([1], template=bad)

    def test_images_are_found_by_id(self) -> None:
        here, there = ImageTable.make(["a", "b", "c"]), ImageTable.make(["c", "x", "a"])
        assert here.find(there).tolist() == [2, -1, 0]
        with pytest.raises(UsageError, match="string and int64"):
            here.find(ImageTable.make(np.array([1])))

    def test_a_duplicate_is_named(self) -> None:
        assert ImageTable.make(["a", "b"]).duplicate() is None
        assert ImageTable.make(["a", "b", "a"]).duplicate() == "a"
        assert ImageTable.make(np.array([3, 1, 3])).duplicate() == 3
        assert ImageTable.make(np.array([1, 3])).duplicate() is None


class TestClasses:
    def test_a_table_comes_back_from_disk(self, tmp_path: Path) -> None:
        table = ClassTable(["a,b", 'q"x', "ü\nz"], ["A", "", "Ü"])
        table.write(tmp_path / "classes.csv")
        assert ClassTable.read(tmp_path / "classes.csv") == table

    def test_ids_are_unique(self) -> None:
        with pytest.raises(UsageError, match="'a' is there twice"):
            ClassTable(["a", "b", "a"])

    def test_other_classes_are_refused_with_the_difference(self) -> None:
        text = r"1 only in the first \(a\), 2 only in the second \(x, y\)"
        with pytest.raises(ClassMismatchError, match=text):
            ClassTable(["a", "b"]).positions_in(ClassTable(["x", "b", "y"]))
        assert ClassTable(["a", "b"]).positions_in(ClassTable(["b", "a"])).tolist() == [1, 0]
