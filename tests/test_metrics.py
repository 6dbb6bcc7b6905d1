"""The metrics, held against a reference in plain Python, scikit-learn and torchmetrics."""

from __future__ import annotations

import io
import itertools
import math
import pickle
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from partlabel import ClassTable
from partlabel.errors import ClassMismatchError, DataError
from partlabel.metrics import (
    AveragePrecision,
    Thresholds,
    bootstrap,
    calibration_error,
    choose_thresholds,
    cut_in_groups,
    precision_recall,
)
from tests import metrics_reference as reference

FIELDS = (
    "per_class",
    "map_c",
    "map_o",
    "n_valid",
    "no_label",
    "no_positive",
    "no_negative",
    "positives",
    "negatives",
)
INF = math.inf
every_tie = pytest.mark.parametrize("ties", ["grouped", "reference"])
every_policy = pytest.mark.parametrize("policy", ["drop", "zero"])


@dataclass
class Batch:
    """Dense rows, each of another image."""

    scores: np.ndarray
    states: np.ndarray
    images: np.ndarray

    @property
    def classes(self) -> int:
        return self.scores.shape[1]

    def __getitem__(self, rows: Any) -> Batch:
        return Batch(self.scores[rows], self.states[rows], self.images[rows])

    def metric(self, **options: Any) -> AveragePrecision:
        return fill(AveragePrecision(self.classes, **options), self)

    def pairs(self, **options: Any) -> list[reference.Pair]:
        return reference.pairs_of(
            self.scores.tolist(), self.states.tolist(), self.images.tolist(), **options
        )

    def flat(self) -> dict[str, np.ndarray]:
        """What update_pairs takes, unknown pairs among it."""
        rows, classes = np.indices(self.scores.shape).reshape(2, -1)
        return {
            "scores": self.scores.ravel(),
            "classes": classes,
            "states": self.states.ravel(),
            "images": self.images[rows],
        }


def fill(metric: AveragePrecision, batch: Batch) -> AveragePrecision:
    metric.update(
        torch.tensor(batch.scores),
        torch.tensor(batch.states),
        images=torch.tensor(batch.images),
    )
    return metric


def fill_pairs(metric: AveragePrecision, **columns: Any) -> AveragePrecision:
    """Lists become columns of the obvious type."""
    kinds = {"scores": np.float32, "classes": np.int64, "states": np.int8, "images": np.int64}
    metric.update_pairs(**{name: np.asarray(v, kinds[name]) for name, v in columns.items()})
    return metric


def quiet(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call it where there may be nothing to score."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return function(*args, **options)


def computed(metric: AveragePrecision, **options: Any) -> dict[str, Any]:
    result = quiet(metric.compute, **options)
    return {name: getattr(result, name) for name in FIELDS}


def assert_same(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name in FIELDS:
        np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)


def assert_near(got: Any, wanted: Any, names: Any, **tolerance: float) -> None:
    for name in names:
        np.testing.assert_allclose(
            getattr(got, name),
            getattr(wanted, name),
            err_msg=name,
            **({"rtol": 1e-12, "atol": 1e-14} | tolerance),
        )


def random_batch(
    images: int, classes: int, *, seed: int = 0, known: float = 0.7, levels: int | None = None
) -> Batch:
    """Scores within 0 and 1 that say something; with levels they have ties."""
    rng = np.random.default_rng(seed)
    states = np.where(rng.random((images, classes)) < 0.4, 1, -1).astype(np.int8)
    scores = np.clip(rng.normal(0.5 + 0.1 * states, 0.2), 0, 1).astype(np.float32)
    if levels is not None:
        scores = (np.round(scores * levels) / levels).astype(np.float32)
    states[rng.random(states.shape) > known] = 0
    return Batch(scores, states, rng.permutation(10 * images)[:images])


FINITE = st.floats(-(2.0**64), 2.0**64, width=32)
KINDS = {
    "few": st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0]),
    "finite": FINITE,
    "wild": st.one_of(FINITE, st.sampled_from([-INF, INF, -0.0, 0.0, 3e38, 1e-45])),
    "unit": st.one_of(st.floats(0, 1, width=32), st.sampled_from([0.0, 0.25, 0.5, 1.0])),
    "float16": st.floats(width=16, allow_nan=False),
    "bfloat16": st.integers(-300, 300).map(lambda i: float(torch.tensor(i / 64).bfloat16())),
}


@st.composite
def batches(draw: st.DrawFn, *kinds: str, rows: int = 8, classes: int = 3) -> Batch:
    """Ties and none, any mix of states; no image at all is possible."""
    height, width = draw(st.integers(0, rows)), draw(st.integers(1, classes))
    score = KINDS[draw(st.sampled_from(kinds or ("few", "finite", "wild")))]
    state = st.sampled_from(draw(st.sampled_from([(1, -1), (0, 1, -1), (0, 0, 0, 1, -1), (0, 1)])))
    size = height * width
    scores = draw(st.lists(score, min_size=size, max_size=size))
    states = draw(st.lists(state, min_size=size, max_size=size))
    images = st.lists(st.integers(0, 10**6), min_size=height, max_size=height, unique=True)
    return Batch(
        np.array(scores, np.float32).reshape(height, width),
        np.array(states, np.int8).reshape(height, width),
        np.array(draw(images), np.int64),
    )


# ---------------------------------------------------------------- the value


@every_tie
@every_policy
@given(batch=batches())
def test_it_is_what_the_reference_says(batch: Batch, ties: str, policy: str) -> None:
    got = quiet(batch.metric(ties=ties, policy=policy).compute)
    wanted = reference.evaluate(batch.pairs(), batch.classes, ties=ties, policy=policy)
    assert_near(got, wanted, FIELDS)
    unscored = 0 if policy == "zero" else got.no_label + got.no_positive + got.no_negative
    assert got.n_valid + unscored == batch.classes


@pytest.mark.parametrize(
    ("scores", "states", "grouped", "other"),
    [
        ([0.9, 0.8, 0.7], [1, -1, 1], 5 / 6, 5 / 6),
        ([0.5, 0.5], [1, -1], 1 / 2, 1 / 2),  # the larger image first: the negative
        ([0.5, 0.5], [-1, 1], 1 / 2, 1),
        ([0.0, -0.0], [-1, 1], 1 / 2, 1),  # equal
        ([INF, 3e38, -INF, -INF], [1, -1, -1, 1], 1 / 2 + 1 / 4, 1 / 2 + 1 / 3),
        ([3.0, 2.0, 1.0], [-1, -1, 1], 1 / 3, 1 / 3),
    ],
)
def test_by_hand(scores: list[float], states: list[int], grouped: float, other: float) -> None:
    for ties, wanted in (("grouped", grouped), ("reference", other)):
        metric = AveragePrecision(1, ties=ties)
        rows = {"scores": scores, "classes": [0] * len(scores), "states": states}
        fill_pairs(metric, **rows, images=range(len(scores)))
        assert metric.compute().map_c == pytest.approx(wanted, rel=1e-7)
    positives = states.count(1)
    exact = other * positives / (positives + 1e-8)
    assert metric.compute().map_c == pytest.approx(exact, rel=1e-12)


def test_the_result_is_numpy() -> None:
    batch = random_batch(20, 4, known=1)
    metric = batch.metric()
    result = metric.compute()
    assert len(metric) == batch.states.size
    assert (result.per_class.dtype, result.per_class.shape) == (np.float64, (4,))
    assert result.positives.dtype == result.negatives.dtype == np.int64
    assert isinstance(result.map_c, float)
    assert isinstance(result.map_o, float)


@pytest.mark.parametrize("levels", [None, 8, 1])
def test_it_is_what_scikit_learn_says(levels: int | None) -> None:
    peer = pytest.importorskip("sklearn.metrics").average_precision_score
    batch = random_batch(300, 5, levels=levels)
    got = batch.metric().compute().per_class
    for c in range(5):
        known = batch.states[:, c] != 0
        wanted = peer(batch.states[known, c] > 0, batch.scores[known, c])
        assert got[c] == pytest.approx(wanted, rel=1e-12)


@pytest.fixture
def torchmetrics(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Without torchvision, which it imports for other metrics, and which may not fit torch."""
    for name in ("torchvision", "torchvision.transforms", "torchvision.models"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torchmetrics.classification")


@pytest.mark.parametrize("levels", [None, 8])
def test_it_is_what_torchmetrics_says(torchmetrics: ModuleType, levels: int | None) -> None:
    batch = random_batch(300, 5, levels=levels)
    peer = torchmetrics.MultilabelAveragePrecision(
        num_labels=5, average=None, thresholds=None, ignore_index=-1
    )
    target = np.select([batch.states > 0, batch.states < 0], [1, 0], -1)
    wanted = peer(torch.tensor(batch.scores), torch.tensor(target))
    result = batch.metric().compute()
    np.testing.assert_allclose(result.per_class, wanted, rtol=1e-5)
    assert result.map_c == pytest.approx(float(wanted.mean()), rel=1e-5)


# ---------------------------------------------------------------- what must not matter


def permuted(metric: AveragePrecision, batch: Batch) -> None:
    fill(metric, batch[np.random.default_rng(len(batch.images)).permutation(len(batch.images))])


def one_by_one(metric: AveragePrecision, batch: Batch) -> None:
    for row in range(len(batch.images)):
        fill(metric, batch[row : row + 1])


def uneven_parts(metric: AveragePrecision, batch: Batch) -> None:
    for part in (slice(5, None), slice(0, 0), slice(1, 5), slice(0, 1)):
        fill(metric, batch[part])


def as_pairs(metric: AveragePrecision, batch: Batch) -> None:
    metric.update_pairs(**{k: torch.tensor(v) for k, v in batch.flat().items()})


def some_as_pairs(metric: AveragePrecision, batch: Batch) -> None:
    fill_pairs(metric, **batch[3:].flat())
    fill(metric, batch[:3])


def without_the_unknown(metric: AveragePrecision, batch: Batch) -> None:
    flat = batch.flat()
    metric.update_pairs(**{name: column[flat["states"] != 0] for name, column in flat.items()})


def unknown_scores_changed(metric: AveragePrecision, batch: Batch) -> None:
    fill(metric, replace(batch, scores=np.where(batch.states == 0, np.nan, batch.scores)))


def unknown_images_added(metric: AveragePrecision, batch: Batch) -> None:
    nothing = np.zeros((4, batch.classes), np.int8)
    fill(metric, Batch(nothing.astype(np.float32), nothing, np.arange(-4, 0) + 10**7))
    fill(metric, batch)


def doubled(metric: AveragePrecision, batch: Batch) -> None:
    fill(metric, replace(batch, scores=batch.scores * 2))


def ranked(metric: AveragePrecision, batch: Batch) -> None:
    place = np.unique(batch.scores, return_inverse=True)[1].reshape(batch.scores.shape)
    fill(metric, replace(batch, scores=place.astype(np.float32)))


def as_float64(metric: AveragePrecision, batch: Batch) -> None:
    fill(metric, replace(batch, scores=batch.scores.astype(np.float64)))


def every_image_twice(metric: AveragePrecision, batch: Batch) -> None:
    fill(metric, batch)
    fill(metric, batch[np.arange(len(batch.images))[::-1]])


def lower_scores_beside(metric: AveragePrecision, batch: Batch) -> None:
    fill(metric, replace(batch, scores=np.nextafter(batch.scores, np.float32(-INF))))
    fill(metric, batch)
    fill(metric, replace(batch, scores=np.full_like(batch.scores, -INF)))


def numpy_turned_around(metric: AveragePrecision, batch: Batch) -> None:
    scores = np.asfortranarray(batch.scores)
    metric.update(scores[::-1], batch.states[::-1], images=batch.images[::-1])


def numpy_read_only(metric: AveragePrecision, batch: Batch) -> None:
    columns = batch.flat()
    for column in columns.values():
        column.flags.writeable = False
    torch.set_warn_always(True)  # it would say it once in a process
    try:
        metric.update_pairs(**columns)
    finally:
        torch.set_warn_always(False)


def reset_before(metric: AveragePrecision, batch: Batch) -> None:
    fill(metric, replace(batch, images=batch.images + 1))
    metric.reset()
    assert len(metric) == 0
    fill(metric, batch)


def merged(metric: AveragePrecision, batch: Batch) -> None:
    for part in (batch[2:6], batch[:0], batch[:2]):
        metric.merge(part.metric())
    fill(metric, batch[6:])


def merged_in_another_order(metric: AveragePrecision, batch: Batch) -> None:
    inner = batch[5:].metric()
    inner.merge(batch[:1].metric())
    fill(metric, batch[1:5])
    metric.merge(inner)


def buffers_reused(metric: AveragePrecision, batch: Batch) -> None:
    dense, pairs = batch[:4], {name: column.copy() for name, column in batch[4:].flat().items()}
    columns = [dense.scores.copy(), dense.states.copy(), dense.images.copy()]
    metric.update(columns[0], columns[1], images=columns[2])
    metric.update_pairs(**pairs)
    for column in (*columns, *pairs.values()):
        column[...] = 0


def with_gradient(metric: AveragePrecision, batch: Batch) -> None:
    scores = torch.tensor(batch.scores, requires_grad=True) * 1
    metric.update(scores, torch.tensor(batch.states), images=torch.tensor(batch.images))


def computed_between(metric: AveragePrecision, batch: Batch) -> None:
    for part in (batch[:4], batch[4:]):
        fill(metric, part)
        quiet(metric.compute)


VARIANTS = [
    permuted,
    one_by_one,
    uneven_parts,
    as_pairs,
    some_as_pairs,
    without_the_unknown,
    unknown_scores_changed,
    unknown_images_added,
    doubled,
    ranked,
    as_float64,
    every_image_twice,
    lower_scores_beside,
    numpy_turned_around,
    numpy_read_only,
    reset_before,
    merged,
    merged_in_another_order,
    buffers_reused,
    with_gradient,
    computed_between,
]


@every_tie
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
@settings(max_examples=40)
@given(batch=batches("few", "finite"))
def test_what_must_not_matter_does_not(
    batch: Batch, variant: Callable[[AveragePrecision, Batch], None], ties: str
) -> None:
    metric = AveragePrecision(batch.classes, ties=ties)
    variant(metric, batch)
    assert_same(computed(metric), computed(batch.metric(ties=ties)))


@every_tie
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@given(data=st.data())
def test_half_precision_is_not_rounded_again(
    data: st.DataObject, dtype: torch.dtype, ties: str
) -> None:
    batch = data.draw(batches(str(dtype).removeprefix("torch.")))
    half = torch.tensor(batch.scores).to(dtype)
    assert torch.equal(half.float(), torch.tensor(batch.scores))
    metric = AveragePrecision(batch.classes, ties=ties)
    metric.update(half, torch.tensor(batch.states), images=torch.tensor(batch.images))
    assert_same(computed(metric), computed(batch.metric(ties=ties)))


@given(batch=batches())
def test_images_are_optional(batch: Batch) -> None:
    dense, flat = AveragePrecision(batch.classes), AveragePrecision(batch.classes)
    dense.update(batch.scores, batch.states)
    columns = batch.flat()
    del columns["images"]
    flat.update_pairs(**columns)
    wanted = computed(batch.metric())
    assert_same(computed(dense), wanted)
    assert_same(computed(flat), wanted)
    assert len(dense) == len(flat) == np.count_nonzero(batch.states)


@given(batch=batches())
def test_without_images_the_same_row_counts_again(batch: Batch) -> None:
    metric = AveragePrecision(batch.classes)
    for _ in range(2):
        metric.update(batch.scores, batch.states)
    twice = computed(metric)
    np.testing.assert_array_equal(twice["positives"], 2 * (batch.states > 0).sum(0))
    wanted = computed(batch.metric())["per_class"]
    np.testing.assert_allclose(twice["per_class"], wanted, rtol=1e-12)


@every_tie
@given(batch=batches())
def test_a_class_nobody_annotated_changes_nothing_else(batch: Batch, ties: str) -> None:
    wider = AveragePrecision(batch.classes + 1, ties=ties)
    fill_pairs(wider, **batch.flat())
    got, wanted = computed(wider), computed(batch.metric(ties=ties))
    assert got["no_label"] == wanted["no_label"] + 1
    assert math.isnan(got["per_class"][-1])
    np.testing.assert_array_equal(got["per_class"][:-1], wanted["per_class"])
    for name in ("map_c", "map_o", "n_valid", "no_positive", "no_negative"):
        np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)


@every_tie
@every_policy
@given(batch=batches("few", "finite"), again=st.lists(st.integers(0, 7), max_size=5))
def test_of_a_duplicate_the_higher_score_stays(
    batch: Batch, again: list[int], ties: str, policy: str
) -> None:
    rows = [row for row in again if row < len(batch.images)]
    extra = replace(batch[rows], scores=batch.scores[rows][:, ::-1].copy())
    metric = fill(batch.metric(ties=ties, policy=policy), extra)
    wanted = reference.evaluate(
        batch.pairs() + extra.pairs(), batch.classes, ties=ties, policy=policy
    )
    assert_near(quiet(metric.compute), wanted, FIELDS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("float32_before", [False, True])
def test_float64_keeps_what_float32_would_lose(dtype: Any, float32_before: bool) -> None:
    metric = AveragePrecision(1)
    if float32_before:
        metric.update(np.array([[0.0]], np.float32), np.array([[-1]], np.int8))
    scores = np.array([[1.0], [1.0 + 1e-12]]).astype(dtype)
    metric.update(scores, np.array([[-1], [1]], np.int8))
    assert metric.compute().map_c == (1.0 if dtype == np.float64 else 0.5)


@pytest.mark.parametrize(("dtype", "top"), [(np.float32, [1, 1]), (np.float64, [0, 1])])
def test_float64_at_thresholds_and_in_the_top(dtype: Any, top: list[int]) -> None:
    metric = AveragePrecision(2, top_k=1)
    metric.update(np.array([[1, 1 + 1e-12]]).astype(dtype), np.ones((1, 2), np.int8))
    assert precision_recall(metric, None, top_k=True).tp.tolist() == top
    assert precision_recall(metric, float(dtype(1 + 1e-12))).tp.tolist() == top


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint16])
@every_tie
def test_many_classes(kind: Any, ties: str) -> None:
    wide = AveragePrecision(40_000, ties=ties)
    classes = np.array([39_999, 39_999, 39_998, 39_998, 32_768, 0, 39_999], kind)
    states = np.array([1, -1, 1, -1, 1, -1, 0], np.int8)
    scores = np.array([0.9, 0.1, 0.1, 0.9, 0.5, 0.5, 0.2], np.float32)
    images = np.array([2**40, 2**40 + 1, 2**40, 2**40 + 1, 3, 3, 4])
    wide.update_pairs(scores, classes, states, images=images)
    result = wide.compute()
    assert result.per_class[[39_999, 39_998]] == pytest.approx([1, 0.5])
    counts = (result.n_valid, result.no_negative, result.no_positive, result.no_label)
    assert counts == (2, 1, 1, 39_996)
    assert np.flatnonzero(result.positives).tolist() == [32_768, 39_998, 39_999]


@pytest.mark.parametrize(
    "states",
    [[], [[0, 0]], [[1, 1], [1, 0]], [[-1, -1]], [[1, -1]]],
    ids=["no image", "unknown", "positives", "negatives", "one of each"],
)
def test_nothing_to_score_is_said(states: list[list[int]]) -> None:
    known = np.array(states, np.int8).reshape(-1, 2)
    metric = AveragePrecision(2)
    metric.update(np.ones(known.shape, np.float32), known)
    with pytest.warns(UserWarning, match=r"(?i)\b(class|label|annotat|pair|score)"):
        result = metric.compute()
    assert math.isnan(result.map_c)
    assert math.isnan(result.map_o)
    assert np.isnan(result.per_class).all()
    assert result.n_valid == 0


def test_every_class_counts_in_the_zero_policy() -> None:
    metric = AveragePrecision(4, policy="zero")
    columns = {"classes": [0, 0, 1, 2], "states": [1, -1, 1, -1], "scores": [2, 1, 0, 0]}
    result = fill_pairs(metric, **columns).compute()
    assert result.per_class.tolist() == [1, 1, 0, 0]
    assert (result.map_c, result.map_o, result.n_valid) == (0.5, 1, 4)
    assert (result.no_label, result.no_positive, result.no_negative) == (1, 1, 1)


# ---------------------------------------------------------------- groups


@every_policy
@given(batch=batches(classes=5), data=st.data())
def test_groups(batch: Batch, policy: str, data: st.DataObject) -> None:
    chosen = st.lists(st.integers(0, batch.classes - 1), unique=True)
    groups = data.draw(st.dictionaries(st.sampled_from("abc"), chosen, max_size=3))
    got = quiet(quiet(batch.metric(policy=policy).compute).groups, groups)
    wanted = reference.evaluate(batch.pairs(), batch.classes, policy=policy).groups(groups)
    assert list(got) == list(groups)
    for name, (mean, scored) in wanted.items():
        np.testing.assert_allclose(got[name].map, mean, rtol=1e-12)
        assert (got[name].n_valid, got[name].classes) == (scored, len(groups[name]))


@given(counts=st.lists(st.integers(0, 3), max_size=12), parts=st.integers(1, 6))
def test_cut_in_groups(counts: list[int], parts: int) -> None:
    got = cut_in_groups(np.array(counts, np.int64), parts)
    wanted = reference.cut_in_groups(counts, parts)
    assert {name: list(group) for name, group in got.items()} == wanted
    assert list(got) == list(wanted)


def test_five_groups_unless_said() -> None:
    got = cut_in_groups(np.array([5, 1, 4, 1, 3, 9, 9]))
    assert [list(group) for group in got.values()] == [[1, 3], [4, 2], [0], [5], [6]]


# ---------------------------------------------------------------- keeping it


def reloaded(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@every_tie
@pytest.mark.parametrize("through", [dict, reloaded], ids=["as it is", "file"])
@settings(max_examples=30)
@given(batch=batches(), cut=st.integers(0, 8), wide=st.booleans())
def test_resuming_midway(
    batch: Batch, cut: int, wide: bool, through: Callable[[Any], Any], ties: str
) -> None:
    if wide:
        batch = replace(batch, scores=np.nextafter(batch.scores.astype(np.float64), 1))
    first = batch[:cut].metric(ties=ties)
    state = through(first.state_dict())
    fill(first, batch[cut:])  # must not reach the state taken before
    second = AveragePrecision(batch.classes, ties=ties)
    fill(second, replace(batch, images=batch.images + 1))  # gone after loading
    second.load_state_dict(state)
    assert len(second) == np.count_nonzero(batch.states[:cut])
    assert_same(computed(second), computed(batch[:cut].metric(ties=ties)))
    fill(second, batch[cut:])
    wanted = computed(batch.metric(ties=ties))
    assert_same(computed(second), wanted)
    assert_same(computed(first), wanted)


def test_the_state_knows_of_images_and_the_top() -> None:
    batch = random_batch(30, 5)
    metric = batch.metric(top_k=2)
    other = AveragePrecision(5, top_k=2)
    other.load_state_dict(reloaded(metric.state_dict()))
    kept = precision_recall(other, None, top_k=True)
    assert_near(kept, precision_recall(metric, None, top_k=True), ("tp", "fp", "fn"), rtol=0)
    assert_same(computed(fill(other, batch)), computed(metric))  # duplicates known as such


def test_merging_leaves_the_other_alone() -> None:
    batch = random_batch(20, 3)
    one, other = batch[:8].metric(), batch[8:].metric()
    one.merge(other)
    fill(one, replace(batch, images=batch.images + 1000))
    assert_same(computed(other), computed(batch[8:].metric()))
    assert len(other) == np.count_nonzero(batch.states[8:])


# ---------------------------------------------------------------- several processes


def dealt(world: int) -> list[list[int]]:
    return [list(range(rank, 23, world)) for rank in range(world)]


SPLIT: dict[str, Callable[[int], list[list[int]]]] = {
    "uneven": lambda world: [list(range(4)), list(range(4, 21)), [21, 22]][:world],
    "first has none": lambda world: [[], *dealt(world - 1)],
    "last has none": lambda world: [*dealt(world - 1), []],
    "shared": lambda world: [list(range(17)), list(range(12, 23)), [0, 22, 5]][:world],
    "nobody has any": lambda world: [[]] * world,
}


@dataclass(frozen=True)
class Job:
    split: str
    ties: str = "grouped"
    policy: str = "drop"
    images: bool = True
    dtype: str = "float32"
    fault: str | None = None

    def parts(self, world: int) -> list[list[int]]:
        return SPLIT[self.split](world)

    def metric(self, rows: list[int], rank: int | None = None) -> AveragePrecision:
        """With these rows; a process without any never calls update."""
        batch = random_batch(23, 5, seed=3, levels=6)
        scores = batch.scores.astype(self.dtype) + batch.images[:, None].astype(self.dtype) * 1e-12
        if rank == 0 and self.fault == "nan":
            scores[:] = np.nan
        states = -batch.states if rank == 0 and self.fault == "conflict" else batch.states
        metric = AveragePrecision(5, ties=self.ties, policy=self.policy)
        if rows:
            images = {"images": batch.images[rows]} if self.images else {}
            metric.update(scores[rows].astype(self.dtype), states[rows], **images)
        return metric


JOBS = [
    *itertools.starmap(Job, itertools.product(SPLIT, ["grouped", "reference"], ["drop", "zero"])),
    *[Job(split, images=False) for split in SPLIT],
    *[Job(split, ties="reference", dtype="float64") for split in SPLIT],
    *[Job(split, dtype="float64", images=False) for split in SPLIT],
]
FAULTS = [Job("shared", fault="conflict"), Job("shared", fault="nan"), Job("uneven", fault="nan")]


def refused(metric: AveragePrecision) -> str:
    try:
        return str(computed(metric))
    except Exception as error:
        return type(error).__name__


def worker(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=30),
    )
    done = []
    for job in JOBS:
        metric = job.metric(job.parts(world)[rank])
        size = len(metric)
        together = [computed(metric), computed(metric)]
        done.append((together, computed(metric, distributed=False), len(metric) == size))
    faults = [refused(job.metric(job.parts(world)[rank], rank)) for job in FAULTS]
    Path(folder, f"{rank}.pickle").write_bytes(pickle.dumps((done, faults)))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_processes_give_what_one_gives(world: int, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(worker, args=(world, str(tmp_path)), nprocs=world)
    ranks = [pickle.loads(Path(tmp_path, f"{r}.pickle").read_bytes()) for r in range(world)]
    for index, job in enumerate(JOBS):
        parts = job.parts(world)
        wanted = computed(job.metric(list(itertools.chain(*parts))))
        for (done, _), rows in zip(ranks, parts, strict=True):
            together, alone, unchanged = done[index]
            assert unchanged, job
            for got in together:
                assert_same(got, wanted)
            if rows:
                assert_same(alone, computed(job.metric(rows)))
    assert {fault for _, faults in ranks for fault in faults} == {"DataError"}


# ---------------------------------------------------------------- at thresholds

POOLED = ("op", "or_", "of1")
CLASS_MEANS = ("cp", "cr", "cf1", "cf1_mean")


def check_precision_recall(got: Any, wanted: reference.AtThreshold) -> None:
    assert_near(got, wanted, ("tp", "fp", "fn"), rtol=0)
    for name in ("precision", "recall", "f1"):
        mine, other = np.asarray(getattr(got, name)), np.asarray(getattr(wanted, name))
        np.testing.assert_allclose(mine[wanted.valid], other[wanted.valid], rtol=1e-12)
    if wanted.valid:
        assert_near(got, wanted, CLASS_MEANS)
    if sum(wanted.tp) + sum(wanted.fn):
        assert_near(got, wanted, POOLED)


@every_policy
@given(batch=batches("few", "wild", "unit"), data=st.data())
def test_precision_and_recall(batch: Batch, policy: str, data: st.DataObject) -> None:
    value = st.sampled_from([-INF, -1.0, 0.0, 0.25, 0.5, 1.0, 2.0, INF])
    each = st.lists(value, min_size=batch.classes, max_size=batch.classes)
    threshold = data.draw(st.one_of(value, each))
    given_as = np.array(threshold) if isinstance(threshold, list) else threshold
    got = quiet(precision_recall, batch.metric(policy=policy), given_as)
    listed = threshold if isinstance(threshold, list) else [threshold] * batch.classes
    check_precision_recall(got, reference.precision_recall(batch.pairs(), batch.classes, listed))


@given(
    batch=batches("few", "unit", classes=5),
    top_k=st.integers(1, 6),
    threshold=st.sampled_from([None, 0.0, 0.5]),
    cut=st.integers(0, 8),
)
def test_among_the_top_of_the_image(
    batch: Batch, top_k: int, threshold: float | None, cut: int
) -> None:
    metric = fill(batch[:cut].metric(top_k=top_k), batch[cut:])
    got = quiet(precision_recall, metric, threshold, top_k=True)
    each = None if threshold is None else [threshold] * batch.classes
    pairs = batch.pairs(top_k=top_k)
    wanted = reference.precision_recall(pairs, batch.classes, each, top_k=True)
    check_precision_recall(got, wanted)
    assert_near(quiet(metric.compute), quiet(batch.metric().compute), FIELDS)


def test_half_is_the_threshold_unless_said() -> None:
    columns = {"scores": [0.5, 0.49, 0.6, 0.1], "classes": [0, 0, 0, 1], "states": [1, 1, -1, -1]}
    got = precision_recall(fill_pairs(AveragePrecision(2), **columns))
    assert (got.tp.tolist(), got.fp.tolist(), got.fn.tolist()) == ([1, 0], [1, 0], [1, 0])
    assert (got.cp, got.cr, got.cf1, got.cf1_mean, got.op, got.or_, got.of1) == (0.5,) * 7


def test_the_two_f1_differ() -> None:
    columns = {"classes": [0] * 4 + [1] * 4, "states": [1, -1, -1, -1, 1, 1, 1, -1]}
    columns["scores"] = [1, 1, 1, 1, 1, 0, 0, 0]  # (p, r) = (1/4, 1) and (1, 1/3)
    got = precision_recall(fill_pairs(AveragePrecision(2), **columns))
    cp, cr = 5 / 8, 2 / 3
    assert (got.cp, got.cr) == pytest.approx((cp, cr))
    assert got.cf1 == pytest.approx(2 * cp * cr / (cp + cr))
    assert got.cf1_mean == pytest.approx((2 / 5 + 1 / 2) / 2)
    assert (got.op, got.or_) == pytest.approx((2 / 5, 2 / 4))


def table(classes: int) -> ClassTable:
    odd = ['a "b"', "c,d", "e\nf", "ü", " g ", "nan"]
    names = [odd[c] if c < len(odd) else f"name {c}" for c in range(classes)]
    return ClassTable([f"/m/{c}" for c in range(classes)], names)


@pytest.mark.parametrize("precision", [None, 0.5, 0.75, 0.9, 1.0])
@given(batch=batches("few", "wild", "unit", rows=14), min_support=st.integers(1, 4))
def test_chosen_thresholds(batch: Batch, precision: float | None, min_support: int) -> None:
    metric, classes = batch.metric(), table(batch.classes)
    assume((batch.states > 0).any())  # else every F1 is 0
    options = {"precision": precision, "min_support": min_support}
    got = quiet(choose_thresholds, metric, classes, **options)
    wanted = reference.choose_thresholds(batch.pairs(), batch.classes, **options)
    assert got.values.tolist() == [choice.threshold for choice in wanted]
    assert got.values.dtype == np.float64
    at = quiet(precision_recall, metric, got.values)
    for c, (entry, choice) in enumerate(zip(got.entries, wanted, strict=True)):
        assert (entry.class_id, entry.class_name) == (classes.ids[c], classes.names[c])
        assert (entry.threshold, entry.method) == (choice.threshold, choice.method)
        assert (entry.positives, entry.negatives) == (choice.positives, choice.negatives)
        if choice.method != "pooled" and choice.threshold < INF:
            said = (entry.precision, entry.recall, entry.f1)
            assert said == pytest.approx((at.precision[c], at.recall[c], at.f1[c]), rel=1e-12)


def test_ten_of_each_are_enough() -> None:
    states = [1] * 10 + [-1] * 10 + [1] * 10 + [-1] * 9
    columns = {"classes": [0] * 20 + [1] * 19, "states": states}
    columns["scores"] = [2.0] * 10 + [1.0] * 10 + [4.0] * 10 + [3.0] * 9
    metric = fill_pairs(AveragePrecision(2), **columns)
    got = choose_thresholds(metric, table(2))
    assert [(entry.threshold, entry.method) for entry in got.entries] == [
        (2.0, "f1"),
        (2.0, "pooled"),  # 20 of 29, against 10 of 19 at 3 and 20 of 39 at 1
    ]


@pytest.mark.parametrize(
    ("states", "wanted"),
    [
        ([1, -1, -1, 1, 1, -1], 2.0),  # 1/2, 2/5, 1/3, 4/7, 6/8, 6/9
        ([1, -1, -1, 1, -1, -1], 6.0),  # 2/3, 2/4, 2/5, 4/6, 4/7, 4/8: the first and the fourth
    ],
)
def test_of_equal_f1_the_highest_threshold(states: list[int], wanted: float) -> None:
    columns = {"classes": [0] * 6, "states": states, "scores": [6, 5, 4, 3, 2, 1]}
    metric = fill_pairs(AveragePrecision(1), **columns)
    assert choose_thresholds(metric, table(1), min_support=1).values.tolist() == [wanted]


def test_a_precision_that_is_never_reached(tmp_path: Path) -> None:
    columns = {"classes": [0, 0, 1, 1], "states": [-1, 1, 1, -1], "scores": [9, 1, 8, 7]}
    metric = fill_pairs(AveragePrecision(2), **columns)
    got = choose_thresholds(metric, table(2), precision=0.9, min_support=1)
    assert got.values.tolist() == [INF, 8.0]
    assert precision_recall(metric, got.values).tp.tolist() == [0, 1]
    got.write(tmp_path / "t.csv")
    assert Thresholds.read(tmp_path / "t.csv").values.tolist() == [INF, 8.0]


def entries(thresholds: Thresholds) -> list[tuple[Any, ...]]:
    names = ("class_id", "class_name", "threshold", "method", "precision", "recall", "f1")
    names += ("positives", "negatives")
    return [tuple(getattr(entry, name) for name in names) for entry in thresholds.entries]


def test_thresholds_are_kept_to_the_last_bit_and_matched_by_id(tmp_path: Path) -> None:
    batch = random_batch(60, 7)
    batch.states[5:, 3] = 0  # too few: pooled
    chosen = choose_thresholds(batch.metric(), table(7))
    assert {entry.method for entry in chosen.entries} == {"f1", "pooled"}
    chosen.write(tmp_path / "thresholds.csv")
    again = Thresholds.read(tmp_path / "thresholds.csv")
    assert entries(again) == entries(chosen)
    np.testing.assert_array_equal(again.values, chosen.values)
    order = [4, 0, 6, 1, 5, 3, 2]
    moved = again.align(ClassTable([f"/m/{c}" for c in order]))
    np.testing.assert_array_equal(moved, chosen.values[order])
    assert again.align(ClassTable(["/m/5"])).tolist() == [chosen.values[5]]
    for other in (["/m/0", "/m/x"], [f"/m/{c}" for c in range(8)], [f"c{c}" for c in range(7)]):
        with pytest.raises(ClassMismatchError):
            again.align(ClassTable(other))


# ---------------------------------------------------------------- bootstrap


def percentiles(samples: np.ndarray, level: float) -> list[float]:
    return np.nanquantile(samples, [(1 - level) / 2, (1 + level) / 2]).tolist()


@every_policy
def test_the_bootstrap_draws_images(policy: str) -> None:
    """Of three images there are 27 draws: the share of each result is known."""
    scores = np.array([[0.9, 0.1], [0.5, 0.1], [0.5, 0.7]], np.float32)
    states = np.array([[1, -1], [-1, 1], [1, -1]], np.int8)
    batch = Batch(scores, states, np.array([7, 70, 3]))

    def outcome(map_c: float, map_o: float) -> tuple[str, str]:
        return f"{map_c:.9f}", f"{map_o:.9f}"

    shares: Counter[tuple[str, str]] = Counter()
    for draw in itertools.product([7, 70, 3], repeat=3):
        result = reference.evaluate(reference.drawn(batch.pairs(), draw), 2, policy=policy)
        shares[outcome(result.map_c, result.map_o)] += 1
    assert len(shares) > 4
    samples = 5000
    got = quiet(bootstrap, batch.metric(policy=policy), samples=samples, seed=1)
    seen = Counter(map(outcome, got.samples_map_c, got.samples_map_o))
    assert set(seen) == set(shares)
    for key, ways in shares.items():
        p = ways / 27
        assert abs(seen[key] / samples - p) < 5 * math.sqrt(p * (1 - p) / samples), key


@every_policy
def test_the_bootstrap_is_that_of_brute_force(policy: str) -> None:
    batch = random_batch(40, 3, levels=10, seed=5)
    batch.states[:, 2][batch.states[:, 2] > 0] = 0
    batch.states[0, 2] = 1  # one positive: a third of the replicates leave the class out
    rng = np.random.default_rng(11)
    pairs, annotated = batch.pairs(), batch.images[batch.states.any(1)]
    brute = []
    for _ in range(600):
        draw = rng.choice(annotated, len(annotated)).tolist()
        brute.append(reference.evaluate(reference.drawn(pairs, draw), 3, policy=policy))
    got = bootstrap(batch.metric(policy=policy), samples=4000, seed=2)
    for name in ("map_c", "map_o"):
        mine = getattr(got, f"samples_{name}")
        other = np.array([getattr(result, name) for result in brute])
        spread = other.std(ddof=1)
        error = spread * math.sqrt(1 / len(other) + 1 / len(mine))
        assert abs(mine.mean() - other.mean()) < 4 * error
        assert abs(mine.std(ddof=1) - spread) < 4 * error  # its own error is about 0.7 of that


def test_the_bootstrap_is_the_same_whatever_the_order_of_pairs() -> None:
    batch = random_batch(50, 4, levels=10)
    wanted = bootstrap(batch.metric(), samples=50, seed=3)
    unknown = Batch(batch.scores, np.zeros_like(batch.states), batch.images + 10_000)
    for variant in (permuted, one_by_one, as_pairs, merged, every_image_twice):
        metric = AveragePrecision(4)
        variant(metric, batch)
        got = bootstrap(fill(metric, unknown), samples=50, seed=3)
        for name in ("samples_map_c", "samples_map_o", "low", "high"):
            np.testing.assert_array_equal(getattr(got, name), getattr(wanted, name))
    other = bootstrap(batch.metric(), samples=50, seed=4)
    assert not np.array_equal(other.samples_map_c, wanted.samples_map_c)


@pytest.mark.parametrize("level", [0.95, 0.5])
@every_policy
def test_the_interval_is_of_percentiles_and_holds_the_estimate(policy: str, level: float) -> None:
    batch = random_batch(200, 4)
    metric = batch.metric(policy=policy)
    got, result = bootstrap(metric, samples=300, level=level), metric.compute()
    assert got.samples_map_c.shape == got.samples_map_o.shape == (300,)
    for name in ("map_c", "map_o"):
        interval = getattr(got, name)
        samples = getattr(got, f"samples_{name}")
        assert [interval.low, interval.high] == pytest.approx(percentiles(samples, level))
        assert interval.low < getattr(result, name) < interval.high
    assert (got.low < got.high).all()
    if level == 0.95:
        assert ((got.low < result.per_class) & (result.per_class < got.high)).all()


def test_a_thousand_samples_of_level_95_unless_said() -> None:
    metric = random_batch(30, 2).metric()
    got, wanted = bootstrap(metric), bootstrap(metric, samples=1000, seed=0, level=0.95)
    np.testing.assert_array_equal(got.samples_map_c, wanted.samples_map_c)
    assert (got.map_c.low, got.map_c.high) == (wanted.map_c.low, wanted.map_c.high)


def test_of_one_class_both_intervals_are_the_same() -> None:
    got = bootstrap(random_batch(60, 1).metric(), samples=200)
    for interval in (got.map_c, got.map_o):
        assert (interval.low, interval.high) == pytest.approx((got.low[0], got.high[0]), rel=1e-12)


def test_more_images_make_the_interval_narrower() -> None:
    widths = []
    for images in (50, 200, 800):
        interval = bootstrap(random_batch(images, 3).metric(), samples=200).map_c
        widths.append(interval.high - interval.low)
    assert widths[0] > 1.5 * widths[1] > 1.5 * 1.5 * widths[2]


def test_the_bootstrap_of_one_image() -> None:
    columns = {"scores": [1, 2, 3], "classes": [0, 1, 2], "states": [1, -1, 1], "images": [5] * 3}
    zero = bootstrap(fill_pairs(AveragePrecision(4, policy="zero"), **columns), samples=20)
    assert zero.samples_map_c.tolist() == [0.5] * 20
    assert (zero.map_c.low, zero.map_c.high, zero.map_o.low) == (0.5, 0.5, 1)
    dropped = quiet(bootstrap, fill_pairs(AveragePrecision(4), **columns), samples=20)
    assert np.isnan(dropped.samples_map_c).all()
    assert np.isnan([dropped.map_c.low, dropped.map_c.high, *dropped.low, *dropped.high]).all()


def test_a_class_without_estimate_has_no_interval() -> None:
    batch = random_batch(60, 3)
    batch.states[:, 0] = 0
    batch.states[:, 1] = np.abs(batch.states[:, 1])
    got = bootstrap(batch.metric(), samples=50)
    assert np.isnan(got.low).tolist() == np.isnan(got.high).tolist() == [True, True, False]


# ---------------------------------------------------------------- calibration


@pytest.mark.parametrize("bins", [1, 4, 16])
@given(batch=batches("unit"))
def test_calibration(batch: Batch, bins: int) -> None:
    assume(batch.states.any())
    wanted = reference.calibration_error(batch.pairs(), bins)
    got = calibration_error(batch.metric(), bins=bins, scores_are="probabilities")
    names = ("ece", "confidence", "accuracy", "count")
    assert_near(got, wanted, names, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_calibration_of_logits(dtype: Any) -> None:
    batch = random_batch(200, 4)
    scores = (batch.scores.astype(dtype) - 0.5) * 40
    scores[:4, :4] = np.array([INF, -INF, 500, -500])
    batch = replace(batch, scores=scores)
    got = calibration_error(batch.metric(), scores_are="logits")
    wanted = reference.calibration_error(batch.pairs(), 15, logits=True)
    assert got.count.tolist() == wanted.count
    assert_near(got, wanted, ("ece", "confidence", "accuracy"), rtol=1e-5)


@pytest.mark.parametrize("bins", [10, 15, 100])
def test_a_border_belongs_to_the_bin_above(bins: int) -> None:
    scores = np.array([[i / bins] for i in range(bins + 1)])  # float64
    states = np.ones((bins + 1, 1), np.int8)
    metric = AveragePrecision(1)
    metric.update(scores, states)
    got = calibration_error(metric, bins=bins, scores_are="probabilities")
    assert got.count.tolist() == [1] * (bins - 1) + [2]


def test_calibration_by_hand() -> None:
    columns = {"classes": [0, 0, 1, 1], "states": [1, -1, -1, 1], "scores": [1, 0.75, 0.25, 0]}
    metric = fill_pairs(AveragePrecision(2), **columns)
    got = calibration_error(metric, bins=4, scores_are="probabilities")
    assert got.count.tolist() == [1, 1, 0, 2]
    np.testing.assert_allclose(got.confidence, [0, 0.25, np.nan, 0.875])
    np.testing.assert_allclose(got.accuracy, [1, 0, np.nan, 0.5])
    assert got.ece == pytest.approx((1 + 0.25 + 2 * 0.375) / 4)


@pytest.mark.parametrize("score", [-0.001, 1.001, INF, -INF])
def test_what_is_no_probability_may_be_a_logit(score: float) -> None:
    columns = {"classes": [0, 0], "states": [1, -1], "scores": [score, 0.5]}
    metric = fill_pairs(AveragePrecision(1), **columns)
    with pytest.raises(DataError, match="logits"):
        calibration_error(metric, scores_are="probabilities")


# ---------------------------------------------------------------- what is refused

F, S = np.zeros((2, 3), np.float32), np.ones((2, 3), np.int8)
ONE = {"scores": np.zeros(2, np.float32), "states": np.ones(2, np.int8)}
PAIRS = ONE | {"classes": np.arange(2)}


@pytest.mark.parametrize(
    ("scores", "states", "images"),
    [
        pytest.param(F.astype(np.int64), S, None, id="integer scores"),
        pytest.param(torch.zeros(2, 3, dtype=torch.int32), S, None, id="integer tensor"),
        pytest.param(F > 1, S, None, id="bool scores"),
        pytest.param(F, S[:, :2], None, id="other shape"),
        pytest.param(F[:, :2], S[:, :2], None, id="other classes"),
        pytest.param(F[0], S[0], None, id="one row"),
        pytest.param(F, S * 2, None, id="state 2"),
        pytest.param(F, S * -2, None, id="state -2"),
        pytest.param(F, S.astype(np.int64) * 257, None, id="state 257, which is 1 in int8"),
        pytest.param(F, S * 0.5, None, id="half a state"),
        pytest.param(F, S, np.arange(3), id="three images"),
        pytest.param(F, S, np.arange(2).reshape(2, 1), id="images of another shape"),
        pytest.param(F, S, np.arange(2.0), id="float images"),
    ],
)
def test_update_refuses(scores: Any, states: Any, images: Any) -> None:
    metric = AveragePrecision(3)
    with pytest.raises(ValueError, match=r"\w"):
        metric.update(scores, states, images=images)
    assert len(metric) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"classes": np.array([0, 3])},
        {"classes": np.array([-1, 0])},
        {"classes": np.array([0, 2**32])},
        {"classes": np.arange(3)},
        {"classes": np.arange(2.0)},
        {"scores": np.zeros(2, np.int64)},
        {"scores": np.zeros((2, 1), np.float32)},
        {"scores": np.zeros(1, np.float32)},
        {"states": np.array([1, 3], np.int8)},
        {"states": np.ones(3, np.int8)},
        {"images": np.arange(3)},
    ],
    ids=str,
)
def test_update_pairs_refuses(wrong: dict[str, Any]) -> None:
    metric = AveragePrecision(3)
    with pytest.raises(ValueError, match=r"\w"):
        metric.update_pairs(**(PAIRS | wrong))
    assert len(metric) == 0


@pytest.mark.parametrize(
    "wrong",
    [{"ties": "first"}, {"policy": "nan"}, {"num_classes": 0}, {"top_k": 0}],
    ids=str,
)
def test_the_options_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AveragePrecision(**({"num_classes": 3} | wrong))


def with_images() -> AveragePrecision:
    return fill_pairs(AveragePrecision(3), **PAIRS, images=[1, 2])


def without_images(**options: Any) -> AveragePrecision:
    return fill_pairs(AveragePrecision(3, **options), **PAIRS)


def unknown_then_images() -> None:
    metric = AveragePrecision(3)
    metric.update(F, S * 0)
    metric.update(F, S, images=np.arange(2))


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda: with_images().update(F, S), id="images, then none"),
        pytest.param(lambda: without_images().update(F, S, images=[1, 2]), id="none, then images"),
        pytest.param(lambda: with_images().update_pairs(**PAIRS), id="the same with pairs"),
        pytest.param(lambda: unknown_then_images(), id="unknown without, then images"),
        pytest.param(lambda: with_images().merge(without_images()), id="merging"),
        pytest.param(lambda: without_images().merge(with_images()), id="merging the other way"),
        pytest.param(lambda: without_images(ties="reference").compute(), id="reference"),
        pytest.param(lambda: bootstrap(without_images()), id="bootstrap"),
        pytest.param(
            lambda: AveragePrecision(2).merge(without_images()), id="merging other classes"
        ),
        pytest.param(lambda: precision_recall(with_images(), math.nan), id="nan threshold"),
        pytest.param(
            lambda: precision_recall(with_images(), np.array([0, np.nan, 0])), id="a nan threshold"
        ),
        pytest.param(lambda: precision_recall(with_images(), np.zeros(2)), id="two thresholds"),
        pytest.param(lambda: precision_recall(with_images(), None), id="no threshold"),
        pytest.param(lambda: precision_recall(with_images(), top_k=True), id="made without top_k"),
        pytest.param(
            lambda: precision_recall(without_images(top_k=1), top_k=True), id="top_k of pairs"
        ),
        pytest.param(
            lambda: calibration_error(with_images(), scores_are="percent"), id="scores_are"
        ),
        pytest.param(lambda: cut_in_groups(np.arange(3), 0), id="no parts"),
    ],
)
def test_what_does_not_fit_together(wrong: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        wrong()


def test_the_table_must_have_the_classes_of_the_metric() -> None:
    with pytest.raises((ValueError, ClassMismatchError)):
        choose_thresholds(with_images(), table(2))


def test_an_empty_metric_takes_any_other() -> None:
    batch = random_batch(9, 3)
    for other in (batch.metric(), without_images()):
        metric = AveragePrecision(3)
        metric.merge(other)
        metric.merge(AveragePrecision(3))
        assert_same(computed(metric), computed(other))


@every_tie
def test_a_nan_is_named(ties: str) -> None:
    batch = random_batch(40, 60, known=1)
    batch.scores[7, 41] = np.nan
    batch.images[7] = 987_654
    with pytest.raises(DataError, match=r"(?s)(?=.*\b41\b)(?=.*\b987[,_]?654\b)(?i:.*nan)"):
        batch.metric(ties=ties).compute()
    metric = AveragePrecision(60)
    metric.update(batch.scores, batch.states)
    with pytest.raises(DataError, match=r"\b41\b"):
        metric.compute()
    batch.states[7, 41] = 0
    assert batch.metric(ties=ties).compute().n_valid == 60


@pytest.mark.parametrize("how", ["one call", "two calls", "merged"])
def test_present_and_absent_at_once(how: str) -> None:
    one = {"scores": [0.5], "classes": [1], "states": [1], "images": [12]}
    other = one | {"states": [-1], "scores": [0.25]}
    metric = AveragePrecision(3)
    if how == "one call":
        fill_pairs(metric, **{name: one[name] + other[name] for name in one})
    else:
        fill_pairs(metric, **one)
        other_one = metric if how == "two calls" else AveragePrecision(3)
        fill_pairs(other_one, **other)
        if how == "merged":
            metric.merge(other_one)
    with pytest.raises(DataError, match=r"\b12\b"):
        metric.compute()
