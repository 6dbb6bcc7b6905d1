"""Two models mixed, and what present labels weigh: plain floats, and drawn worlds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partlabel.calibrate import Calibration, HeldOut, Mixture, mixture, rescaled, weight_of_present
from partlabel.store import ClassCounts
from tests.test_calibrate import NO_PAIRS, World, histogram, log_odds, plain_annotated, world
from tests.test_rescale import before_of, for_unknown, held_of

WEIGHTS = [0.0, 0.25, 0.5, 0.75, 1.0]
Part = tuple[Calibration, HeldOut]


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def plain_odds(part: Calibration, z: float, c: int) -> float:
    return part.slope * min(max(z, -16.0), 16.0) + part.offset + float(part.shift[c])


def plain_cost(weight: float, parts: Sequence[Part], counts: ClassCounts) -> float:
    """How unlikely held-out annotations are, label by label."""
    (one, held), (two, there) = parts
    k, m = counts.positives.tolist(), counts.negatives.tolist()
    total, usual = 0.0, plain_annotated(k, m)
    columns = (held.logits, there.logits, held.classes, held.states)
    for z, x, c, y in zip(*(column.tolist() for column in columns), strict=True):
        share = min(max(float(one.share[c]), 1e-5), 1 - 1e-5)
        more = log_odds(usual[c]) - log_odds(share)
        mean = (1 - weight) * plain_odds(one, z, c) + weight * plain_odds(two, x, c)
        total += softplus(-y * (mean + more))
    return total


def drawn_part(rng: np.random.Generator, share: np.ndarray) -> Calibration:
    slope, offset = rng.uniform(0.3, 2), rng.normal()
    shift = rng.normal(0, 1, len(share))
    return Calibration(slope, offset, shift, share, share, random=False, capped=False)


def some(held: HeldOut, state: int, kept: int) -> HeldOut:
    """Without all but a few labels of one state."""
    rare = np.flatnonzero(held.states == state)[:kept]
    return HeldOut(*(a[np.append(np.flatnonzero(held.states != state), rare)] for a in held))


def view(it: World, noise: float, seed: int) -> np.ndarray:
    """The exact log odds with normal noise; noise alone where that is infinite."""
    rng = np.random.default_rng(seed)
    if math.isinf(noise):
        return rng.normal(0, 3, it.truth.shape).astype(np.float32)
    return (for_unknown(it) + rng.normal(0, noise, it.truth.shape)).astype(np.float32)


def part_of(it: World, logits: np.ndarray) -> Part:
    held = held_of(it, logits, part=0.5)
    return rescaled(before_of(it), histogram(logits, ~it.known), held, it.counts), held


@pytest.mark.parametrize(
    "weights", [(1.0,), (0.25, 0.75), (0.5, 0.5), (1.0, 0.0), (0.0, 1.0), (0.2, 0.0, 0.8)]
)
def test_a_mixture_is_the_weighted_mean_in_plain_floats(weights: tuple[float, ...]) -> None:
    rng = np.random.default_rng(len(weights))
    parts = [drawn_part(rng, np.full(3, 0.1)) for _ in weights]
    logits = [torch.from_numpy(rng.normal(0, 15, (8, 3))) for _ in weights]
    found = Mixture(parts, weights)(logits)
    assert found.shape == (8, 3)
    for b in range(8):
        for c in range(3):
            odds = [plain_odds(p, float(z[b, c]), c) for p, z in zip(parts, logits, strict=True)]
            mean = sum(w * each for w, each in zip(weights, odds, strict=True))
            assert float(found[b, c]) == pytest.approx(mean, abs=2e-5)


@pytest.mark.parametrize("unread", [0, 1])
@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_logits_without_weight_are_not_read(unread: int, value: float | None) -> None:
    rng = np.random.default_rng(0)
    parts = [drawn_part(rng, np.full(3, 0.1)) for _ in range(2)]
    logits = torch.from_numpy(rng.normal(0, 3, (4, 3)))
    odd = torch.empty(0) if value is None else torch.full((4, 3), value)
    given_in = [odd, logits] if unread == 0 else [logits, odd]
    found = Mixture(parts, (0.0, 1.0) if unread == 0 else (1.0, 0.0))(given_in)
    assert torch.equal(found, parts[1 - unread].log_odds(logits))


@pytest.mark.parametrize("weights", [(0.5, 0.5), (1.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_other_numbers_of_logits_are_refused(weights: tuple[float, float], number: int) -> None:
    parts = [drawn_part(np.random.default_rng(0), np.full(3, 0.1)) for _ in range(2)]
    with pytest.raises(ValueError, match=r"argument 3 is (shorter|longer)"):
        Mixture(parts, weights)([torch.zeros(4, 3)] * number)


def test_the_likeliest_weight_is_chosen_in_plain_floats() -> None:
    chosen = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        counts = ClassCounts(rng.integers(0, 60, 6), rng.integers(0, 200, 6))
        share = np.append(rng.uniform(0, 0.5, 4), [0.0, 1.0])
        classes, states = rng.integers(0, 6, 80), np.where(np.arange(80) < 30, 1, -1)
        parts = []
        for noise in rng.uniform(1, 12, 2):
            held = HeldOut(rng.normal(6.0 * states, noise), classes, states.astype(np.int8))
            parts.append((drawn_part(rng, share), held))
        costs = [plain_cost(weight, parts, counts) for weight in WEIGHTS]
        best = WEIGHTS[costs.index(min(costs))]
        found = mixture(parts, counts)
        assert found.parts == [part for part, _ in parts]
        assert found.weights == (1 - best, best)
        chosen.append(best)
    assert set(chosen) == set(WEIGHTS)


NOISES = [((0.0, math.inf), 0.0), ((1.5, 2.5), 0.25), ((2.0, 2.0), 0.5), ((math.inf, 0.0), 1.0)]


@pytest.mark.parametrize("scheme", ["random", "positives"])
@pytest.mark.parametrize(("noises", "weight"), NOISES)
def test_a_view_weighs_what_it_is_worth(
    scheme: str, noises: tuple[float, float], weight: float
) -> None:
    it = world(scheme, 0.15, images=6000, classes=10, least=0.02)
    views = [view(it, noise, seed) for seed, noise in enumerate(noises)]
    found = mixture([part_of(it, logits) for logits in views], it.counts)
    assert found.weights == (1 - weight, weight)
    unknown, sign = ~it.known, np.where(it.truth, 1.0, -1.0)

    def cost(second: float) -> float:
        one = Mixture(found.parts, (1 - second, second))
        odds = one([torch.from_numpy(logits) for logits in views]).double().numpy()
        return float(np.logaddexp(0, -sign * odds)[unknown].mean())

    assert min(WEIGHTS, key=cost) == weight


def test_one_model_has_all_the_weight() -> None:
    it = world("positives", 0.1, images=500, classes=4)
    part = part_of(it, view(it, 1.0, 0))
    for held in (part[1], NO_PAIRS):
        found = mixture([(part[0], held)], it.counts)
        assert found.parts == [part[0]]
        assert found.weights == (1.0,)


@pytest.mark.parametrize("state", [1, -1])
@pytest.mark.parametrize(("kept", "few"), [(0, True), (19, True), (20, False)])
def test_few_held_out_labels_of_a_kind_tell_no_weight(state: int, kept: int, few: bool) -> None:
    it = world("positives", 0.1, images=2000, classes=8)
    parts = [part_of(it, view(it, noise, 0)) for noise in (0.0, math.inf)]
    found = mixture([(part, some(held, state, kept)) for part, held in parts], it.counts)
    first, second = found.weights
    assert first == second if few else first > second  # twenty do not say how much more


def held_at(present: Sequence[float]) -> HeldOut:
    """As many absent labels as present ones, between them."""
    logits = np.stack([present, np.linspace(-9, 9, len(present))], 1).ravel()
    states = np.tile(np.array([1, -1], np.int8), len(present))
    return HeldOut(logits, np.zeros(len(logits), np.int64), states)


@settings(max_examples=60)
@given(
    present=st.lists(st.floats(-30, 30) | st.floats(-1e300, 600), min_size=20, max_size=25),
    part=st.floats(0, 2),
)
def test_the_weight_of_present_labels_in_plain_floats(present: list[float], part: float) -> None:
    elsewhere = sum(softplus(-z) for z in present) / len(present)
    found = weight_of_present(part * elsewhere, held_at(present))
    assert found == pytest.approx(1 + 3 * min(part, 1.0) ** 2, rel=1e-9)
    assert 1 <= found <= 4


def test_the_weight_grows_with_what_shown_labels_cost() -> None:
    present = np.random.default_rng(0).normal(1, 4, 50).tolist()
    elsewhere = sum(softplus(-z) for z in present) / 50
    parts = [0.0, 0.001, 0.3, 0.9, 0.999, 1.001, 2.0, 1e6, math.inf]
    found = [weight_of_present(part * elsewhere, held_at(present)) for part in parts]
    assert found[0] == 1
    assert all(one < two for one, two in pairwise(found[:6]))
    assert found[5:] == [4.0] * 4


@pytest.mark.parametrize("shown", [0.0, 1.0])
def test_where_present_labels_cost_nothing_their_weight_is_the_most(shown: float) -> None:
    assert weight_of_present(shown, held_at([1e300] * 20)) == 4


@pytest.mark.parametrize("state", [1, -1])
@pytest.mark.parametrize(("kept", "weight"), [(0, 1.0), (19, 1.0), (20, 4.0)])
def test_few_held_out_labels_of_a_kind_give_no_weight(state: int, kept: int, weight: float) -> None:
    assert weight_of_present(9.0, some(held_at([0.0] * 40), state, kept)) == weight
