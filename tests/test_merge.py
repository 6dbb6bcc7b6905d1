from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from partlabel import ImageTable, LabelStore, merge
from partlabel.errors import ClassMismatchError, UsageError
from tests.conftest import MakeStore, store_from

PAIR = st.integers(1, 6).flatmap(
    lambda classes: st.tuples(
        *[
            hnp.arrays(
                np.int8, st.tuples(st.integers(1, 5), st.just(classes)), elements=st.integers(-1, 1)
            )
        ]
        * 2
    )
)


def everything(store: LabelStore) -> np.ndarray:
    return store.dense(range(len(store)))


@given(pair=PAIR, offset=st.integers(0, 4))
def test_the_first_has_the_last_word_image_by_image(
    pair: tuple[np.ndarray, np.ndarray], offset: int
) -> None:
    first, second = pair
    one = store_from(first)
    two = store_from(
        second[:, ::-1],
        ids=[f"img{i + offset}" for i in range(len(second))],
        classes=[f"c{i}" for i in range(second.shape[1] - 1, -1, -1)],
    )
    both = merge(one, two)
    said = {f"img{i}": row.copy() for i, row in enumerate(first)}
    conflicts = 0
    for i, row in enumerate(second):
        known = said.setdefault(f"img{i + offset}", np.zeros_like(row))
        conflicts += int((known * row == -1).sum())
        known[:] = np.where(known != 0, known, row)
    assert both.images.ids.tolist() == list(said)
    assert np.array_equal(everything(both), np.stack(list(said.values())))
    assert both.origin.conflicts == conflicts


@pytest.mark.parametrize("complete", ["first", "second", "both"])
@given(pair=PAIR)
def test_complete_stores_know_what_they_do_not_list(
    complete: str, pair: tuple[np.ndarray, np.ndarray]
) -> None:
    rows = min(len(pair[0]), len(pair[1]))
    states = [array[:rows] for array in pair]
    stores = []
    for name, array in zip(("first", "second"), states, strict=True):
        whole = complete in (name, "both")
        if whole:
            array[:] = np.where(array > 0, 1, -1)
        stores.append(store_from(array, complete=whole))
    both = merge(*stores)
    assert both.complete
    assert np.array_equal(everything(both), np.where(states[0] != 0, states[0], states[1]))
    assert both.origin.conflicts == int((states[0] * states[1] == -1).sum())


def test_complete_stores_must_have_the_same_images(make_store: MakeStore) -> None:
    with pytest.raises(UsageError, match="same images"):
        merge(make_store([[1]], complete=True), make_store([[1], [1]]))


def test_other_classes_are_refused(make_store: MakeStore) -> None:
    with pytest.raises(ClassMismatchError, match=r"only in the second \(c1\)"):
        merge(make_store([[1]]), make_store([[1, 1]]))


def test_paths_and_splits_of_both_survive(make_store: MakeStore) -> None:
    one = make_store([[1]], ids=["a"], template="{id}.jpg", splits=["train"])
    two = make_store([[1], [-1]], ids=["b", "a"], template="more/{id}.png")
    both = merge(one, two)
    assert both.images.paths([0, 1]) == ["a.jpg", "more/b.png"]
    assert both.images.splits([0, 1]) == ["train", None]
    assert both.origin.conflicts == 1
    assert "the first was believed" in both.origin.notes[-1]


def test_sources_of_both_are_kept(make_store: MakeStore) -> None:
    one, two = make_store([[1]]), make_store([[1]])
    one.origin = type(one.origin)(sources=({"name": "human.csv"},), conflicts=2, duplicates=1)
    two.origin = type(one.origin)(sources=({"name": "machine.csv"},), conflicts=3)
    both = merge(one, two)
    assert [source["name"] for source in both.origin.sources] == ["human.csv", "machine.csv"]
    assert (both.origin.conflicts, both.origin.duplicates) == (5, 1)
    assert isinstance(both.images, ImageTable)
