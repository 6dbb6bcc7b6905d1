from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from partlabel import LabelStore, simulate
from partlabel.errors import UsageError
from tests.conftest import MakeStore, store_from

FULL = np.where(np.random.default_rng(3).random((400, 6)) < [0.6, 0.3, 0.1, 0.05, 0.01, 0], 1, -1)


def everything(store: LabelStore) -> np.ndarray:
    return store.dense(range(len(store)))


@pytest.fixture(params=["complete", "listed"])
def full(request: pytest.FixtureRequest) -> LabelStore:
    """The same labels, once with the absent implied and once with them written out."""
    return store_from(FULL, complete=request.param == "complete")


SCHEMES: dict[str, Callable[[LabelStore, int], LabelStore]] = {
    "fpc": lambda s, seed: simulate.fixed_per_class(s, per_class=10, seed=seed),
    "rpa": lambda s, seed: simulate.random_per_annotation(s, drop=0.5, seed=seed),
    "single": lambda s, seed: simulate.single_positive(s, seed=seed),
    "drop": lambda s, seed: simulate.drop_positives(s, keep=0.4, rest="unknown", seed=seed),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_kept_is_true(full: LabelStore, scheme: str) -> None:
    partial = everything(SCHEMES[scheme](full, 0))
    assert partial.any()
    assert np.array_equal(partial[partial != 0], FULL[partial != 0])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_same_seed_same_store_byte_for_byte_other_seed_other_store(
    full: LabelStore, scheme: str, tmp_path: Path
) -> None:
    one, two, three = (
        SCHEMES[scheme](full, seed).save(tmp_path / name / "x.labels")
        for name, seed in (("one", 0), ("two", 0), ("three", 1))
    )
    for file in one.iterdir():
        assert file.read_bytes() == (two / file.name).read_bytes()
    assert (one / "codes.npy").read_bytes() != (three / "codes.npy").read_bytes()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_choice_depends_on_ids_not_on_order_or_company(
    make_store: MakeStore, scheme: str
) -> None:
    order = np.random.default_rng(0).permutation(len(FULL))
    turned = make_store(
        FULL[order][:, ::-1],
        complete=True,
        ids=[f"img{i}" for i in order],
        classes=[f"c{i}" for i in range(5, -1, -1)],
    )
    straight = everything(SCHEMES[scheme](make_store(FULL, complete=True), 0))
    assert np.array_equal(everything(SCHEMES[scheme](turned, 0)), straight[order][:, ::-1])
    if scheme != "fpc":  # per class, the others decide who is among the first
        part = SCHEMES[scheme](make_store(FULL, complete=True).select(range(100)), 0)
        assert np.array_equal(everything(part), straight[:100])


@pytest.mark.parametrize("per_class", [1, 7, 50, 10_000])
def test_fpc_keeps_that_many_of_each_or_all(full: LabelStore, per_class: int) -> None:
    counts = simulate.fixed_per_class(full, per_class=per_class, seed=4).counts()
    assert counts.positives.tolist() == np.minimum((FULL == 1).sum(0), per_class).tolist()
    assert counts.negatives.tolist() == np.minimum((FULL == -1).sum(0), per_class).tolist()


def test_fpc_does_not_depend_on_how_the_absent_are_written() -> None:
    one, two = (
        simulate.fixed_per_class(store_from(FULL, complete=complete), per_class=10, seed=0)
        for complete in (True, False)
    )
    assert np.array_equal(everything(one), everything(two))


def test_less_is_a_subset_of_more(full: LabelStore) -> None:
    few = everything(simulate.fixed_per_class(full, per_class=5, seed=0))
    many = everything(simulate.fixed_per_class(full, per_class=20, seed=0))
    assert np.array_equal(many[few != 0], few[few != 0])
    few = everything(simulate.random_per_annotation(full, drop=0.9, seed=0))
    many = everything(simulate.random_per_annotation(full, drop=0.3, seed=0))
    assert np.array_equal(many[few != 0], few[few != 0])


def test_rpa_drops_that_share_of_positives_and_negatives_alike() -> None:
    states = np.where(np.random.default_rng(0).random((4000, 20)) < 0.2, 1, -1)
    kept = everything(
        simulate.random_per_annotation(store_from(states, complete=True), drop=0.7, seed=0)
    )
    for sign in (1, -1):
        total = (states == sign).sum()
        share = (kept == sign).sum() / total
        assert abs(share - 0.3) < 5 * np.sqrt(0.21 / total)
    per_class = (kept != 0).mean(0)
    assert abs(per_class - 0.3).max() < 5 * np.sqrt(0.21 / 4000)


@pytest.mark.parametrize(("drop", "left"), [(0.0, FULL.size), (1.0, 0)])
def test_rpa_at_the_ends(full: LabelStore, drop: float, left: int) -> None:
    done = simulate.random_per_annotation(full, drop=drop, seed=0)
    assert len(done.codes) == left
    assert not done.complete


def test_single_positive_keeps_one_of_each_image_that_has_one(full: LabelStore) -> None:
    partial = everything(simulate.single_positive(full, seed=0))
    assert ((partial == 1).sum(1) == (FULL == 1).any(1)).all()
    assert not (partial == -1).any()
    two = np.flatnonzero((FULL[:, 0] == 1) & (FULL[:, 1] == 1))
    assert 0.3 < (partial[two, 0] == 1).mean() < 0.7


def test_drop_positives_calls_the_rest_unknown_or_negative(full: LabelStore) -> None:
    unknown = simulate.drop_positives(full, keep=0.4, rest="unknown", seed=0)
    negative = simulate.drop_positives(full, keep=0.4, rest="negative", seed=0)
    kept = everything(unknown)
    assert not (kept == -1).any()
    total = (FULL == 1).sum()
    assert abs((kept == 1).sum() / total - 0.4) < 5 * np.sqrt(0.24 / total)
    assert np.array_equal(everything(negative), np.where(kept == 1, 1, -1))
    assert negative.complete
    assert (
        simulate.drop_positives(full, keep=1, rest="unknown", seed=0).counts().positives.sum()
        == total
    )
    assert not len(simulate.drop_positives(full, keep=0, rest="unknown", seed=0).codes)


def test_scheme_parameters_and_seed_are_recorded(full: LabelStore, tmp_path: Path) -> None:
    path = simulate.fixed_per_class(full, per_class=3, seed=9).save(tmp_path / "x.labels")
    made_by = json.loads((path / "meta.json").read_text())["made_by"]
    assert made_by == {"simulate": "fpc", "per_class": 3, "seed": 9, "from": {}}


def test_long_stores_are_walked_through_in_pieces(
    full: LabelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = everything(simulate.random_per_annotation(full, drop=0.5, seed=0))
    monkeypatch.setattr(simulate, "_PAIRS", 37)
    assert np.array_equal(everything(simulate.random_per_annotation(full, drop=0.5, seed=0)), whole)


def test_empty_stores_stay_empty(make_store: MakeStore) -> None:
    for scheme in SCHEMES.values():
        assert len(scheme(make_store(np.zeros((0, 3))), 0)) == 0
        assert not len(scheme(make_store(np.zeros((4, 3))), 0).codes)


def test_wrong_numbers_are_refused(full: LabelStore) -> None:
    with pytest.raises(UsageError, match="--per-class must be at least 1, got 0"):
        simulate.fixed_per_class(full, per_class=0, seed=0)
    with pytest.raises(UsageError, match=r"--drop must be between 0 and 1, got 1\.5"):
        simulate.random_per_annotation(full, drop=1.5, seed=0)
    with pytest.raises(UsageError, match="--keep must be between 0 and 1, got -1"):
        simulate.drop_positives(full, keep=-1, rest="unknown", seed=0)
