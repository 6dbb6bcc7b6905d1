"""A calibration carried over to another model, against plain floats and in drawn worlds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from partlabel.calibrate import Calibration, HeldOut, rescaled
from partlabel.store import ClassCounts
from tests.test_calibrate import (
    World,
    histogram,
    log_odds,
    plain_annotated,
    plain_matching,
    sigmoid,
    world,
)

STEEPEST = 3.0


def for_unknown(it: World) -> np.ndarray:
    """The exact log odds that every label is present, were it unknown."""
    unknown = ~it.known
    share = np.clip((it.truth & unknown).sum(0) / unknown.sum(0), 1e-5, 1 - 1e-5)
    k, m = it.counts.positives + 0.5, it.counts.negatives + 0.5
    return np.asarray(it.exact - np.log(k / m) + np.log(share / (1 - share)))


def held_of(it: World, logits: np.ndarray, *, part: float = 0.1, seed: int = 1) -> HeldOut:
    rng = np.random.default_rng(seed)
    rows, which = np.nonzero(it.known & (rng.random(it.truth.shape) < part))
    states = np.where(it.truth[rows, which], 1, -1).astype(np.int8)
    return HeldOut(logits[rows, which].astype(float), which, states)


def before_of(it: World) -> Calibration:
    """What a first stage would say that had the shares right."""
    unknown = ~it.known
    share = np.clip((it.truth & unknown).sum(0) / np.maximum(unknown.sum(0), 1), 1e-5, 1.0)
    nothing = np.zeros(len(share))
    return Calibration(0.7, 0.3, nothing, share, it.truth.mean(0), random=False, capped=False)


def plain_cost(
    slope: float, it: World, logits: np.ndarray, held: HeldOut, before: Calibration
) -> float:
    """How unlikely held-out annotations are: the formula of the docs, label by label."""
    k, m = it.counts.positives.tolist(), it.counts.negatives.tolist()
    shift = [
        plain_matching([slope * z for z in logits[~it.known[:, c], c].tolist()], before.share[c])
        for c in range(len(k))
    ]
    total, annotated = 0.0, plain_annotated(k, m)
    for z, c, y in zip(*(part.tolist() for part in held), strict=True):
        more = log_odds(annotated[c]) - log_odds(before.share[c])
        total -= math.log(max(sigmoid(y * (slope * z + shift[c] + more)), 1e-300))
    return total


@pytest.mark.parametrize("scheme", ["random", "positives"])
@pytest.mark.parametrize("stretched", [0.75, 1.0, 1.3])
def test_it_is_the_best_of_a_grid_in_plain_floats(scheme: str, stretched: float) -> None:
    it = world(scheme, 0.15, images=500, classes=5, least=0.03, apart=(0.6, 1.2))
    logits = np.clip(for_unknown(it) / stretched, -15, 15).astype(np.float32)
    held, before = held_of(it, logits, part=0.5), before_of(it)
    found = rescaled(before, histogram(logits, ~it.known), held, it.counts)
    grid = [STEEPEST ** (i / 12) for i in range(-12, 13)]
    costs = [plain_cost(slope, it, logits, held, before) for slope in grid]
    best = grid[int(np.argmin(costs))]
    assert abs(math.log(found.slope / best)) < math.log(STEEPEST) / 12
    assert plain_cost(found.slope, it, logits, held, before) < min(costs) + 0.02
    for c in range(5):
        column = [found.slope * z for z in logits[~it.known[:, c], c].tolist()]
        assert found.shift[c] == pytest.approx(plain_matching(column, before.share[c]), abs=0.01)


@pytest.mark.parametrize("stretched", [0.7, 0.85, 1.0, 1.2, 1.4])
@pytest.mark.parametrize(
    ("scheme", "amount"), [("random", 0.2), ("positives", 0.1), ("fixed", 200)]
)
def test_how_much_logits_were_stretched_is_found(
    scheme: str, amount: float, stretched: float
) -> None:
    it = world(scheme, amount, images=6000, classes=20)
    logits = (for_unknown(it) / stretched).astype(np.float32)
    found = rescaled(before_of(it), histogram(logits, ~it.known), held_of(it, logits), it.counts)
    assert found.slope == pytest.approx(stretched, rel=0.12)


@pytest.mark.parametrize("seed", range(3))
def test_the_mean_posterior_of_unknown_labels_is_the_share(seed: int) -> None:
    it = world("positives", 0.1, images=4000, classes=12, seed=seed)
    logits = (1.2 * for_unknown(it) - 1).astype(np.float32)
    before = before_of(it)
    found = rescaled(before, histogram(logits, ~it.known), held_of(it, logits), it.counts)
    posterior = found.posterior(torch.from_numpy(logits)).double().numpy()
    mean = (posterior * ~it.known).sum(0) / (~it.known).sum(0)
    assert mean == pytest.approx(before.share, rel=3e-3)
    assert found.offset == 0
    for name in ("share", "prior", "random", "capped"):
        assert getattr(found, name) is getattr(before, name)


@pytest.mark.parametrize("extreme", [0.01, 100.0])
def test_the_slope_stays_within_bounds(extreme: float) -> None:
    it = world("positives", 0.1, images=2000, classes=8)
    logits = (for_unknown(it) / extreme).astype(np.float32)
    found = rescaled(before_of(it), histogram(logits, ~it.known), held_of(it, logits), it.counts)
    assert 1 / STEEPEST <= found.slope <= STEEPEST
    wanted = 1 / STEEPEST if extreme < 1 else STEEPEST
    assert found.slope == pytest.approx(wanted, rel=2e-3)


def test_few_held_out_labels_of_a_kind_tell_no_slope() -> None:
    it = world("positives", 0.1, images=2000, classes=8)
    logits = (for_unknown(it) / 1.4).astype(np.float32)
    held = held_of(it, logits)
    for state in (1, -1):
        rare = np.flatnonzero(held.states == state)
        for kept, slope_of_one in ((19, True), (20, False), (0, True)):
            some = np.concatenate([np.flatnonzero(held.states != state), rare[:kept]])
            part = HeldOut(*(column[some] for column in held))
            found = rescaled(before_of(it), histogram(logits, ~it.known), part, it.counts)
            assert (found.slope == 1) is slope_of_one
            assert np.isfinite(found.shift).all()


def test_classes_without_unknown_labels_or_without_any_annotation() -> None:
    it = world("positives", 0.1, images=1000, classes=6)
    known = it.known.copy()
    known[:, 0], known[:, 1] = True, False
    it = it._replace(known=known)
    logits = it.exact.astype(np.float32)
    before = replace(before_of(it), share=np.array([1e-5, 0.1, 1e-5, 0.2, 0.1, 1.0]))
    counts = ClassCounts(it.counts.positives, it.counts.negatives)
    found = rescaled(before, histogram(logits, ~it.known), held_of(it, logits), counts)
    assert np.isfinite(found.shift).all()
    assert found.shift[0] == 0
    posterior = found.posterior(torch.from_numpy(logits)).double().numpy()
    mean = (posterior * ~it.known).sum(0)[1:5] / (~it.known).sum(0)[1:5]
    assert mean == pytest.approx(before.share[1:5], rel=1e-2)
