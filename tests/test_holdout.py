from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partlabel import ClassTable, ImageTable, LabelStore, holdout
from partlabel.holdout import held_out_share, hold_out
from partlabel.store import ClassCounts
from tests.conftest import MakeStore, store_from

RandomStates = Callable[..., np.ndarray]


def everything(store: LabelStore) -> np.ndarray:
    return store.dense(range(len(store)))


@settings(max_examples=40)
@given(
    states=st.lists(
        st.lists(st.sampled_from([-1, 0, 1]), min_size=3, max_size=3), min_size=0, max_size=30
    ),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 5),
)
def test_the_two_are_disjoint_and_together_the_store(
    states: list[list[int]], share: float, seed: int
) -> None:
    store = store_from(np.array(states, np.int8).reshape(-1, 3))
    left, held = (everything(part) for part in hold_out(store, share, seed=seed))
    assert not ((left != 0) & (held != 0)).any()
    assert np.array_equal(left + held, everything(store))
    for sign in (1, -1):  # the last of a kind stays
        had = (everything(store) == sign).any(0)
        assert np.array_equal((left == sign).any(0), had)
    if share == 0:
        assert not held.any()
    if share == 1:
        assert ((left == 1).sum(0) <= 1).all()
        assert ((left == -1).sum(0) <= 1).all()


def test_that_share_is_held_out_of_positives_and_negatives_alike(
    random_states: RandomStates,
) -> None:
    store = store_from(random_states(3000, 12))
    _, held = hold_out(store, 0.1, seed=0)
    for total, taken in zip(store.counts(), held.counts(), strict=True):
        assert abs(taken.sum() / total.sum() - 0.1) < 5 * np.sqrt(0.09 / total.sum())


def test_same_seed_same_labels_other_seed_others(random_states: RandomStates) -> None:
    store = store_from(random_states(500, 5))
    one, two, three = (hold_out(store, 0.2, seed=seed)[1] for seed in (0, 0, 1))
    assert np.array_equal(one.codes, two.codes)
    assert np.array_equal(one.indptr, two.indptr)
    assert not np.array_equal(everything(one), everything(three))


def test_the_order_of_images_and_classes_does_not_matter(random_states: RandomStates) -> None:
    states = random_states(400, 6)
    order = np.random.default_rng(0).permutation(400)
    straight = store_from(states)
    turned = store_from(
        states[order][:, ::-1],
        ids=[f"img{i}" for i in order],
        classes=[f"c{i}" for i in range(5, -1, -1)],
    )
    for share in (0.1, 1.0):
        held, other = (hold_out(store, share, seed=3)[1] for store in (straight, turned))
        assert np.array_equal(everything(other), everything(held)[order][:, ::-1])


def test_a_smaller_share_is_part_of_a_larger_one(random_states: RandomStates) -> None:
    store = store_from(random_states(400, 6))
    few, many = (everything(hold_out(store, share, seed=0)[1]) for share in (0.05, 0.3))
    assert few.any()
    assert np.array_equal(many[few != 0], few[few != 0])


def test_long_stores_are_walked_through_in_pieces(
    random_states: RandomStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_from(random_states(300, 5))
    whole = [everything(part) for part in hold_out(store, 0.3, seed=0)]
    monkeypatch.setattr(holdout, "_LABELS", 17)
    for part, expected in zip(hold_out(store, 0.3, seed=0), whole, strict=True):
        assert np.array_equal(everything(part), expected)


def test_it_needs_a_few_bytes_a_label_not_a_hundred() -> None:
    images, each = 500_000, 6
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 1000, images * each).astype(np.uint16)
    codes |= rng.integers(0, 2, len(codes)).astype(np.uint16) << 15
    store = LabelStore(
        ClassTable([str(i) for i in range(1000)]),
        ImageTable.make(np.arange(images)),
        indptr=np.arange(0, len(codes) + 1, each),
        codes=codes,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holdout, "_LABELS", 1 << 16)
        tracemalloc.start()
        left, held = hold_out(store, 0.01, seed=0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len(left.codes) + len(held.codes) == len(codes)
    assert peak < 16 * len(codes)


def test_both_say_where_they_come_from_and_keep_images_and_classes(make_store: MakeStore) -> None:
    store = make_store([[1, -1], [1, -1], [0, 1]])
    left, held = hold_out(store, 0.5, seed=4)
    for part, name in ((left, "left"), (held, "held out")):
        assert part.origin.made_by == {"hold_out": 0.5, "seed": 4, "from": {}, "part": name}
        assert part.classes.ids == store.classes.ids
        assert part.images is store.images
        assert not part.complete


def test_what_cannot_be_held_out_is_refused(make_store: MakeStore) -> None:
    with pytest.raises(ValueError, match="store must be partial: a complete one has no unknown"):
        hold_out(make_store([[1, -1]], complete=True), 0.1, seed=0)
    for share in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="share must be between 0 and 1, got"):
            hold_out(make_store([[1, -1]]), share, seed=0)


@pytest.mark.parametrize(
    ("positives", "negatives", "share"),
    [
        ([3000, 3000], [9000, 0], 0.1),
        ([30_000, 30_000], [80_000, 0], 0.01),
        ([80_000, 0], [30_000, 30_000], 0.01),
        ([5, 5], [5, 5], 0.1),
        ([0, 0], [500, 0], 0.0),
        ([10, 0], [0, 0], 0.0),
    ],
)
def test_so_many_that_two_numbers_can_be_fitted(
    positives: list[int], negatives: list[int], share: float
) -> None:
    counts = ClassCounts(np.array(positives), np.array(negatives))
    assert held_out_share(counts) == pytest.approx(share)
