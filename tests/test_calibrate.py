"""Calibration against plain floats on small inputs, and against the truth in drawn worlds."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partlabel import ClassTable, Prior
from partlabel.agreement import spearman
from partlabel.calibrate import Calibration, HeldOut, calibrate, calibrated_prior
from partlabel.calibrate.fit import matching, platt, shifts
from partlabel.estimate import LogitHistogram
from partlabel.store import ClassCounts

NO_PAIRS = HeldOut(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int8))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def log_odds(p: float) -> float:
    return math.log(p / (1 - p))


# The method once more, in plain floats from its formulas.


def plain_annotated(positives: list[int], negatives: list[int]) -> list[float]:
    """The share of each class's annotated labels that are present, drawn to that of all."""
    k, n = sum(positives), sum(positives) + sum(negatives)
    share = min(max(k / n, 0.001), 0.999)
    more = 0.5 * max(1.0, share / (1 - share)), 0.5 * max(1.0, (1 - share) / share)
    pairs = zip(positives, negatives, strict=True)
    return [(p + more[0]) / (p + more[0] + m + more[1]) for p, m in pairs]


def plain_line_gradient(
    slope: float, offset: float, logits: list[float], present: list[bool]
) -> tuple[float, float]:
    by_slope, by_offset = 25 * (slope - 1), offset
    for z, y in zip(logits, present, strict=True):
        error = sigmoid(slope * z + offset) - y
        by_slope, by_offset = by_slope + error * z, by_offset + error
    return by_slope, by_offset


def plain_matching(logits: list[float], target: float) -> float:
    low, high = -200.0, 200.0
    for _ in range(100):
        middle = (low + high) / 2
        mean = sum(sigmoid(z + middle) for z in logits) / len(logits)
        low, high = (middle, high) if mean < target else (low, middle)
    return (low + high) / 2


def plain_shifts(columns: list[list[float]], trained: list[float]) -> list[float]:
    """Empirical Bayes over the log odds of each class's unknown labels."""
    grid = [i / 10 for i in range(-90, 91)]
    likelihood = []
    for logits, base in zip(columns, trained, strict=True):
        row = []
        for delta in grid:
            s = sigmoid(base + delta)
            total = sum(math.log(s * math.exp(z - base) + 1 - s) for z in logits)
            row.append(total / len(logits) * min(100, len(logits)))
        likelihood.append(row)

    def moments(middle: float, width: float) -> tuple[list[float], list[float]]:
        means, variances = [], []
        for row in likelihood:
            logs = [
                value - ((d - middle) / width) ** 2 / 2 for value, d in zip(row, grid, strict=True)
            ]
            weights = [math.exp(value - max(logs)) for value in logs]
            mean = sum(w * d for w, d in zip(weights, grid, strict=True)) / sum(weights)
            square = sum(w * (d - mean) ** 2 for w, d in zip(weights, grid, strict=True))
            means.append(mean)
            variances.append(square / sum(weights))
        return means, variances

    middle, width = 0.0, 3.0
    for _ in range(30):
        means, variances = moments(middle, width)
        middle = sum(means) / len(means)
        spread = [v + (m - middle) ** 2 for m, v in zip(means, variances, strict=True)]
        width = max(math.sqrt(sum(spread) / len(spread)), 0.1)
    return moments(middle, width)[0]


class World(NamedTuple):
    """Images of which everything is known, and what is annotated of it."""

    logits: np.ndarray
    truth: np.ndarray
    known: np.ndarray
    held: HeldOut
    exact: np.ndarray
    """The log odds that every label is present, were it annotated."""

    @property
    def counts(self) -> ClassCounts:
        return ClassCounts((self.known & self.truth).sum(0), (self.known & ~self.truth).sum(0))

    @property
    def images(self) -> int:
        return len(self.truth)

    @property
    def seen(self) -> LogitHistogram:
        return histogram(self.logits, ~self.known)

    def calibrated(self) -> Calibration:
        return calibrate(self.seen, self.held, self.counts, images=self.images)


def histogram(logits: np.ndarray, where: np.ndarray | None = None) -> LogitHistogram:
    seen = LogitHistogram(logits.shape[1])
    mask = None if where is None else torch.from_numpy(where)
    seen.update(torch.from_numpy(logits), mask)
    return seen


def annotated(truth: np.ndarray, scheme: str, amount: float, rng: Any) -> np.ndarray:
    """Who is annotated: at random, a fixed number per class, or positives more often."""
    if scheme == "random":
        return np.asarray(rng.random(truth.shape) < amount)
    if scheme == "positives":  # five times as often
        return np.asarray(rng.random(truth.shape) < np.where(truth, 5 * amount, amount))
    known = np.zeros(truth.shape, np.bool_)
    for column, mark in zip(truth.T, known.T, strict=True):
        for state in (True, False):
            mark[rng.permutation(np.flatnonzero(column == state))[: int(amount)]] = True
    return known


def world(
    scheme: str,
    amount: float,
    *,
    images: int = 12_000,
    classes: int = 40,
    apart: tuple[float, float] = (0.8, 1.8),
    line: tuple[float, float] = (0.6, 0.4),
    least: float = 0.003,
    seed: int = 0,
) -> World:
    """Scores from two normal distributions per class: their exact posteriors are known.

    The model's logits are the exact log odds among annotated labels, drawn out by a line, as those
    of a model that is too sure of itself.
    """
    rng = np.random.default_rng(seed)
    share = np.exp(rng.uniform(math.log(least), math.log(0.5), classes))
    middle = rng.uniform(*apart, classes)
    truth = rng.random((images, classes)) < share
    x = rng.normal(np.where(truth, middle, -middle), 1)
    known = annotated(truth, scheme, amount, rng)
    k, m = (known & truth).sum(0), (known & ~truth).sum(0)
    exact = 2 * middle * x + np.log(k + 0.5) - np.log(m + 0.5)
    logits = ((exact - line[1]) / line[0]).astype(np.float32)
    rows, which = np.nonzero(known & (rng.random(truth.shape) < 0.1))
    states = np.where(truth[rows, which], 1, -1).astype(np.int8)
    return World(
        logits, truth, known, HeldOut(logits[rows, which].astype(float), which, states), exact
    )


class TestLine:
    @settings(max_examples=50)
    @given(
        pairs=st.lists(st.tuples(st.floats(-16, 16), st.booleans()), min_size=1, max_size=30),
    )
    def test_the_gradient_of_the_objective_is_zero(self, pairs: list[tuple[float, bool]]) -> None:
        logits, present = [z for z, _ in pairs], [y for _, y in pairs]
        slope, offset = platt(np.array(logits), np.array(present))
        gradient = plain_line_gradient(slope, offset, logits, present)
        assert gradient == pytest.approx((0, 0), abs=1e-6)

    def test_many_pairs_tell_slope_and_offset(self) -> None:
        rng = np.random.default_rng(0)
        z = rng.normal(0, 3, 20_000)
        present = rng.random(len(z)) < 1 / (1 + np.exp(-(0.5 * z - 1)))
        assert platt(z, present) == pytest.approx((0.5, -1), abs=0.06)

    @pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 16.0])
    @pytest.mark.parametrize("count", [2, 100_000])
    def test_pairs_that_can_be_told_apart_stay_finite(self, scale: float, count: int) -> None:
        present = np.arange(count) % 2 == 0
        slope, offset = platt(np.where(present, scale, -scale), present)
        assert math.isfinite(slope)
        assert abs(offset) < 1e-3
        assert 1 <= slope < 50

    def test_constant_logits_give_the_share(self) -> None:
        slope, offset = platt(np.full(1000, 3.0), np.arange(1000) < 200)
        assert sigmoid(3 * slope + offset) == pytest.approx(0.2, abs=0.01)


class TestMatching:
    @settings(max_examples=50)
    @given(
        logits=st.lists(st.floats(-16, 16), min_size=1, max_size=20),
        target=st.floats(1e-5, 1 - 1e-5),
    )
    def test_the_mean_is_the_target(self, logits: list[float], target: float) -> None:
        weight = np.full((1, len(logits)), 1 / len(logits))
        found = matching(np.array([logits]), weight, np.array([target]))[0]
        mean = sum(sigmoid(z + found) for z in logits) / len(logits)
        assert mean == pytest.approx(target, rel=1e-6)

    def test_many_classes_and_one_without_labels(self) -> None:
        rng = np.random.default_rng(0)
        logits, target = rng.normal(0, 4, (200, 7)), rng.uniform(0, 1, 200)
        weight = np.full((200, 7), 1 / 7)
        weight[150] = 0
        found = matching(logits, weight, target)
        assert found[150] == 0
        for i in (0, 63, 64, 199):
            assert found[i] == pytest.approx(plain_matching(logits[i].tolist(), target[i]))

    def test_shares_of_none_and_all_are_finite(self) -> None:
        found = matching(np.zeros((2, 1)), np.ones((2, 1)), np.array([0.0, 1.0]))
        assert found == pytest.approx([log_odds(1e-5), log_odds(1 - 1e-5)])


class TestShifts:
    @settings(max_examples=15)
    @given(st.integers(0, 1000), st.integers(1, 5), st.sampled_from([1, 7, 130]))
    def test_they_are_those_of_plain_floats(self, seed: int, classes: int, labels: int) -> None:
        rng = np.random.default_rng(seed)
        logits = rng.normal(-2, 3, (classes, labels))
        trained = rng.normal(0, 1.5, classes)
        weight = np.full_like(logits, 1 / labels)
        found = shifts(logits, weight, trained, np.full(classes, labels))
        assert found == pytest.approx(plain_shifts(logits.tolist(), trained.tolist()), abs=1e-6)

    def test_a_class_that_tells_nothing_moves_as_the_others_do(self) -> None:
        rng = np.random.default_rng(0)
        present = rng.random((10, 2000)) < 0.02  # half of the annotated labels were
        logits = 2 * 3 * rng.normal(np.where(present, 3, -3), 1)
        logits[9] = 0.0
        found = shifts(logits, np.full_like(logits, 1 / 2000), np.zeros(10), np.full(10, 2000))
        assert found[:9].mean() == pytest.approx(log_odds(0.02), abs=0.6)
        assert found[9] == pytest.approx(found[:9].mean(), abs=0.3)


class TestWhole:
    """The steps together, against plain floats; logits that are bins of their own are exact."""

    @pytest.mark.parametrize(
        ("scheme", "amount", "random", "capped"),
        [
            ("random", 0.4, True, False),
            ("fixed", 12, False, True),
            ("positives", 0.15, False, False),
        ],
    )
    def test_it_is_what_the_formulas_give(
        self, scheme: str, amount: float, random: bool, capped: bool
    ) -> None:
        it = world(scheme, amount, images=400, classes=8, least=0.02, apart=(1.5, 2.0))
        logits = np.clip(np.round(it.logits * 32) / 32, -15, 15)
        held = it.held._replace(logits=np.clip(np.round(it.held.logits * 32) / 32, -15, 15))
        it = it._replace(logits=logits, held=held)
        found = it.calibrated()
        assert (found.random, found.capped) == (random, capped)

        line = plain_line_gradient(
            found.slope, found.offset, held.logits.tolist(), (held.states > 0).tolist()
        )
        assert line == pytest.approx((0, 0), abs=1e-6)
        columns = [
            [found.slope * z + found.offset for z in logits[~it.known[:, c], c].tolist()]
            for c in range(8)
        ]
        k, m = it.counts.positives.tolist(), it.counts.negatives.tolist()
        trained = plain_annotated(k, m)
        share = trained
        if not random:
            moved = plain_shifts(columns, [log_odds(t) for t in trained])
            share = [sigmoid(log_odds(t) + d) for t, d in zip(trained, moved, strict=True)]
        if capped:
            share = [s if p == max(k) else 0.0 for s, p in zip(share, k, strict=True)]
            assert 0.0 in share
        assert found.share == pytest.approx(np.maximum(share, 1e-5), abs=1e-7)
        for c in range(8):
            prior = (k[c] + (400 - k[c] - m[c]) * share[c]) / 400
            assert found.prior[c] == pytest.approx(prior, abs=1e-7)
            assert found.shift[c] == pytest.approx(
                plain_matching(columns[c], max(share[c], 1e-5)), abs=1e-5
            )


class TestWorlds:
    @pytest.mark.parametrize("keep", [0.003, 0.01])
    def test_few_labels_of_each_class_at_random_are_at_random(self, keep: float) -> None:
        """Many classes then have no present label; those that have one have it by luck."""
        for seed in range(3):
            rng = np.random.default_rng(seed)
            share = 10 ** rng.uniform(-3.3, -0.7, 300)
            truth = rng.random((5000, 300)) < share
            ratio = 1.5 * (rng.normal(size=truth.shape) + 1.5 * truth) - 1.5**2 / 2
            logits = ratio + np.log(share / (1 - share))
            known = rng.random(truth.shape) < keep
            rows, classes = np.nonzero(known & (rng.random(truth.shape) < 0.1))
            states = np.where(truth[rows, classes], 1, -1).astype(np.int8)
            held = HeldOut(logits[rows, classes], classes, states)
            counts = ClassCounts((truth & known).sum(0), (~truth & known).sum(0))
            assert (counts.positives == 0).sum() > 30
            found = calibrate(histogram(logits, ~known), held, counts, images=5000)
            assert found.random
            assert found.prior.sum() == pytest.approx(truth.mean(0).sum(), rel=0.3)

    @pytest.mark.parametrize("seed", [0, 1])
    @pytest.mark.parametrize(
        ("scheme", "amount"),
        [("random", 0.7), ("random", 0.3), ("random", 0.05), ("fixed", 50), ("fixed", 200),
         ("positives", 0.04), ("positives", 0.15)],
    )  # fmt: skip
    def test_prior_and_posteriors_are_near_the_truth(
        self, scheme: str, amount: float, seed: int
    ) -> None:
        it = world(scheme, amount, seed=seed)
        found = it.calibrated()
        assert found.random == (scheme == "random")
        assert found.capped == (scheme == "fixed")
        assert found.slope == pytest.approx(0.6, abs=0.15)  # 372 pairs in the smallest world
        true = it.truth.mean(0)
        assert found.prior.sum() == pytest.approx(true.sum(), rel=0.15)
        assert spearman(found.prior, true) > 0.95
        own, best, flat = losses(it, found)
        assert own < 1.12 * best
        assert own < 0.6 * flat

    @pytest.mark.parametrize("amount", [50, 200])
    def test_a_budget_is_seen_where_scores_tell_little(self, amount: int) -> None:
        it = world("fixed", amount, apart=(0.3, 0.6))
        found = it.calibrated()
        assert not found.random
        true = it.truth.mean(0).sum()
        shares_of_annotated = it.counts.positives / (it.counts.positives + it.counts.negatives)
        assert shares_of_annotated.sum() > 3.5 * true
        assert 0.4 < found.prior.sum() / true < 2.5

    @pytest.mark.parametrize("line", [(1.0, 0.0), (0.2, -1.0), (2.0, 1.0)])
    def test_how_sure_the_model_is_does_not_matter(self, line: tuple[float, float]) -> None:
        it = world("positives", 0.1, line=line)
        found = it.calibrated()
        assert not found.random
        assert found.prior.sum() == pytest.approx(it.truth.mean(0).sum(), rel=0.15)

    def test_classes_below_the_budget_are_counted(self) -> None:
        it = world("fixed", 200)
        found = it.calibrated()
        few = it.counts.positives < 200
        assert 0 < few.sum() < 40
        assert found.prior[few].tolist() == (it.counts.positives[few] / it.images).tolist()
        assert found.prior[few].tolist() == it.truth.mean(0)[few].tolist()
        assert (found.share[few] == 1e-5).all()
        assert (found.prior[~few] >= 200 / it.images).all()

    def test_three_classes_that_agree_on_a_small_number_are_no_budget(self) -> None:
        it = world("random", 0.3, classes=4)
        counts = ClassCounts(np.array([4, 4, 4, 1]), np.array([90, 91, 92, 93]))
        assert not calibrate(it.seen, it.held, counts, images=it.images).capped

    def test_a_sample_of_the_images_will_do(self) -> None:
        it = world("positives", 0.15)
        seen = histogram(it.logits[::3], ~it.known[::3])
        found = calibrate(seen, it.held, it.counts, images=it.images)
        assert found.prior == pytest.approx(it.calibrated().prior, rel=0.25)

    def test_merged_histograms_are_one(self) -> None:
        it = world("fixed", 50, images=3000, classes=10)
        merged = histogram(it.logits[2000:], ~it.known[2000:])
        merged.merge(histogram(it.logits[:2000], ~it.known[:2000]))
        found = calibrate(merged, it.held, it.counts, images=it.images)
        assert found.share == pytest.approx(it.calibrated().share, rel=1e-9)
        assert found.shift == pytest.approx(it.calibrated().shift, rel=1e-9)


def losses(it: World, found: Calibration) -> tuple[float, float, float]:
    """Log loss on unknown labels: of the posteriors, of the exact ones, of each class's share."""
    unknown = ~it.known
    share = np.clip((it.truth & unknown).sum(0) / unknown.sum(0), 1e-6, 1 - 1e-6)
    k, m = it.counts.positives + 0.5, it.counts.negatives + 0.5
    exact = it.exact - np.log(k / m) + np.log(share / (1 - share))
    tables = (
        found.posterior(torch.from_numpy(it.logits)).numpy(),
        1 / (1 + np.exp(-exact)),
        np.broadcast_to(share, exact.shape),
    )

    def loss(p: np.ndarray) -> float:
        p = np.clip(p, 1e-9, 1 - 1e-7)
        return float(-np.where(it.truth, np.log(p), np.log1p(-p))[unknown].mean())

    own, best, flat = (loss(np.asarray(table, np.float64)) for table in tables)
    return own, best, flat


class TestPosterior:
    def test_its_mean_over_unknown_labels_is_the_share(self) -> None:
        it = world("positives", 0.1, images=5000, classes=12)
        found = it.calibrated()
        posterior = found.posterior(torch.from_numpy(it.logits)).double().numpy()
        mean = (posterior * ~it.known).sum(0) / (~it.known).sum(0)
        assert mean == pytest.approx(found.share, rel=2e-3)

    def test_another_model_is_matched_to_the_same_shares(self) -> None:
        it = world("positives", 0.1, images=5000, classes=12)
        found = it.calibrated()
        other = 1.5 * it.exact.astype(np.float32) - 2
        again = found.matched(histogram(other, ~it.known))
        assert (again.slope, again.offset) == (1, 0)
        assert again.prior is found.prior
        assert (again.random, again.capped) == (found.random, found.capped)
        posterior = again.posterior(torch.from_numpy(other)).double().numpy()
        mean = (posterior * ~it.known).sum(0) / (~it.known).sum(0)
        assert mean == pytest.approx(found.share, rel=2e-3)
        with pytest.raises(ValueError, match="seen must have 12 classes, got 2"):
            found.matched(LogitHistogram(2))

    def test_form_dtype_and_reach(self) -> None:
        found = Calibration(0.5, 1.0, np.array([0.0, -2.0]), *[np.zeros(2)] * 2, True, False)
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
            logits = torch.tensor([[2.0, 2.0], [1e4, -1e4]], dtype=dtype, requires_grad=True)
            posterior = found.posterior(logits)
            assert posterior.dtype == torch.float32
            assert not posterior.requires_grad
            expected = [[sigmoid(2), sigmoid(0)], [sigmoid(9), sigmoid(-9)]]
            assert posterior.tolist() == [pytest.approx(row, rel=1e-5) for row in expected]
        assert found.posterior(torch.zeros(0, 2)).shape == (0, 2)
        for wrong in (torch.zeros(2), torch.zeros(1, 3)):
            with pytest.raises(ValueError, match=r"logits must be \(B, 2\), got"):
                found.posterior(wrong)

    def test_json_brings_it_back(self) -> None:
        found = world("fixed", 20, images=1000, classes=6).calibrated()
        again = Calibration.from_dict(json.loads(json.dumps(found.to_dict())))
        assert again.to_dict() == found.to_dict()
        assert again.shift.dtype == np.float64
        logits = torch.randn(4, 6)
        assert torch.equal(again.posterior(logits), found.posterior(logits))

    def test_other_dictionaries_are_refused(self) -> None:
        state = world("random", 0.5, images=300, classes=2).calibrated().to_dict()
        with pytest.raises(ValueError, match="state lacks shift, capped"):
            Calibration.from_dict({k: v for k, v in state.items() if k not in ("shift", "capped")})
        for wrong in ([1.0], [[1.0, 2.0]], 3.0):
            with pytest.raises(ValueError, match="must be lists of equal length"):
                Calibration.from_dict({**state, "shift": wrong})


class TestPrior:
    def test_it_says_how_it_was_made(self, tmp_path: Path) -> None:
        it = world("fixed", 40, images=3000, classes=6)
        known = it.known.copy()
        known[:, 2] &= it.truth[:, 2]
        it = it._replace(known=known)
        with pytest.warns(UserWarning, match="1 of 6 classes have no verified negative"):
            found = it.calibrated()
        classes = ClassTable([f"c{i}" for i in range(6)])
        prior = calibrated_prior(found, it.seen, classes, it.counts, images=it.images)
        methods = [entry.method for entry in prior.classes.values()]
        assert methods == ["calibrated"] * 2 + ["count"] + ["calibrated"] * 3
        assert prior.values.tolist() == found.prior.tolist()
        one = prior.classes["c0"]
        unknown = it.logits[~it.known[:, 0], 0].astype(float).clip(-16, 16)
        assert one.mean == pytest.approx((1 / (1 + np.exp(-unknown))).mean(), abs=1e-3)
        assert 0 <= one.em <= 1
        assert one.positives == it.counts.positives[0]
        assert one.estimated_images == pytest.approx(one.prior * 3000)
        assert one.deficiency >= 1
        prior.write(tmp_path / "prior.csv")
        again = Prior.read(tmp_path / "prior.csv")
        assert again.values == pytest.approx(prior.values, abs=1e-9)
        with pytest.raises(ValueError, match="calibration must have 1 classes, got 6"):
            calibrated_prior(found, it.seen, ClassTable(["a"]), it.counts, images=3000)


class TestOddData:
    def test_no_held_out_pairs_leave_the_logits_as_they_are(self) -> None:
        it = world("random", 0.5, line=(1.0, 0.0), images=4000, classes=10)
        with pytest.warns(
            UserWarning, match="0 annotations were held out, 0 of them present: too few"
        ):
            found = it._replace(held=NO_PAIRS).calibrated()
        assert (found.slope, found.offset) == (1, 0)
        assert found.random
        assert found.prior.sum() == pytest.approx(it.truth.mean(0).sum(), rel=0.15)

    def test_held_out_pairs_of_one_state_are_not_fitted(self) -> None:
        it = world("random", 0.5, images=500, classes=3)
        only = it.held.states < 0
        with pytest.warns(UserWarning, match="held out, 0 of them present: too few"):
            found = it._replace(held=HeldOut(*(column[only] for column in it.held))).calibrated()
        assert (found.slope, found.offset) == (1, 0)

    def test_separable_pairs(self) -> None:
        it = world("fixed", 50, apart=(20.0, 20.0), images=3000, classes=6)
        found = it.calibrated()
        assert np.isfinite(found.shift).all()
        assert found.prior.sum() == pytest.approx(it.truth.mean(0).sum(), rel=0.15)

    @pytest.mark.parametrize("value", [0.0, -40.0, 40.0])
    def test_constant_logits(self, value: float) -> None:
        it = world("random", 0.5, images=2000, classes=6)
        flat = np.full_like(it.logits, value)
        found = it._replace(
            logits=flat, held=it.held._replace(logits=np.full(len(it.held.states), value))
        ).calibrated()
        assert found.random
        assert found.prior == pytest.approx(it.truth.mean(0), abs=0.05)
        posterior = found.posterior(torch.from_numpy(flat[:1])).numpy()[0]
        assert posterior == pytest.approx(found.share, rel=1e-3)

    def test_a_class_without_negatives_counts_as_annotated(self) -> None:
        it = world("random", 0.3, images=2000, classes=6)
        known = it.known.copy()
        known[:, 1] &= it.truth[:, 1]
        logits = it.logits.copy()
        logits[:, 1] = 30.0  # a model that ignores unknown labels predicts it always
        others = it.held.classes != 1
        kept = int(known[:, 1].sum())
        told = HeldOut(*(column[others] for column in it.held))
        expected = platt(told.logits.clip(-16, 16), told.states > 0)
        odd = (np.full(kept, -30.0), np.full(kept, 1), np.ones(kept, np.int8))
        held = HeldOut(*(np.append(one, two) for one, two in zip(told, odd, strict=True)))
        with pytest.warns(UserWarning, match="1 of 6 classes have no verified negative"):
            found = it._replace(known=known, logits=logits, held=held).calibrated()
        assert (found.slope, found.offset) == pytest.approx(expected)  # what it says is left out
        assert found.random
        assert found.share[1] == 1e-5
        assert found.prior[1] == kept / 2000
        posterior = found.posterior(torch.from_numpy(logits)).numpy()
        assert posterior[:, 1].max() < 2e-5

    def test_a_class_without_annotations_is_as_frequent_as_the_median(self) -> None:
        it = world("positives", 0.1, images=4000, classes=9)
        known = it.known.copy()
        known[:, 4] = False
        there = it.held.classes != 4
        it = it._replace(known=known, held=HeldOut(*(column[there] for column in it.held)))
        with pytest.warns(UserWarning, match="1 of 9 classes have no annotation at all"):
            found = it.calibrated()
        assert not found.random
        assert found.share[4] == np.median(np.delete(found.share, 4))
        assert found.prior[4] == pytest.approx(found.share[4])

    def test_classes_without_positives_move_as_the_others_do(self) -> None:
        it = world("positives", 0.1, images=4000, classes=9)
        known = it.known.copy()
        known[:, 4] &= ~it.truth[:, 4]
        there = it.held.classes != 4
        it = it._replace(known=known, held=HeldOut(*(column[there] for column in it.held)))
        found = it.calibrated()
        n = it.counts.negatives[4]
        base = np.log(0.5 / (n + 0.5))
        assert np.log(found.share[4] / (1 - found.share[4])) < base - 0.5

    def test_annotations_of_one_state_only(self) -> None:
        it = world("random", 0.3, images=1000, classes=4)
        positives = it._replace(known=it.known & it.truth, held=NO_PAIRS)
        with (
            pytest.warns(UserWarning, match="0 annotations were held out"),
            pytest.warns(UserWarning, match="4 of 4 classes have no verified negative"),
        ):
            found = positives.calibrated()
        assert not found.random
        assert found.prior.tolist() == (positives.counts.positives / 1000).tolist()
        assert (found.share == 1e-5).all()
        negatives = it._replace(known=it.known & ~it.truth, held=NO_PAIRS)
        with pytest.warns(UserWarning, match="0 annotations were held out"):
            found = negatives.calibrated()
        assert (found.prior < 0.01).all()
        nothing = it._replace(known=np.zeros_like(it.known), held=NO_PAIRS)
        with (
            pytest.warns(UserWarning, match="0 annotations were held out"),
            pytest.warns(UserWarning, match="4 of 4 classes have no annotation at all"),
        ):
            found = nothing.calibrated()
        assert (found.prior == 0).all()
        assert np.isfinite(found.shift).all()

    def test_nothing_unknown_is_counted(self) -> None:
        it = world("random", 1.1, images=500, classes=3)
        found = it.calibrated()
        assert found.prior.tolist() == it.truth.mean(0).tolist()
        assert np.isfinite(found.shift).all()
        prior = calibrated_prior(found, it.seen, ClassTable("abc"), it.counts, images=500)
        assert math.isnan(prior.classes["a"].mean)

    @settings(max_examples=40)
    @given(
        states=st.lists(
            st.lists(st.sampled_from([-1, 0, 0, 1]), min_size=4, max_size=4),
            min_size=1,
            max_size=25,
        ),
        seed=st.integers(0, 100),
        scale=st.sampled_from([0.0, 1.0, 30.0]),
    )
    def test_whatever_is_annotated_shares_are_shares(
        self, states: list[list[int]], seed: int, scale: float
    ) -> None:
        rng = np.random.default_rng(seed)
        dense = np.array(states)
        logits = scale * rng.normal(size=dense.shape)
        counts = ClassCounts((dense > 0).sum(0), (dense < 0).sum(0))
        rows, which = np.nonzero(dense * (rng.random(dense.shape) < 0.5))
        held = HeldOut(logits[rows, which], which, dense[rows, which].astype(np.int8))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = calibrate(histogram(logits, dense == 0), held, counts, images=len(dense))
        for value in (found.share, found.prior):
            assert ((value >= 0) & (value <= 1)).all()
        assert (found.prior * len(dense) >= counts.positives - 1e-9).all()
        assert (found.prior * len(dense) <= len(dense) - counts.negatives + 1e-9).all()
        assert np.isfinite(found.shift).all()
        assert torch.isfinite(found.posterior(torch.from_numpy(logits))).all()
        json.dumps(found.to_dict())


class TestRefusals:
    @pytest.fixture
    def it(self) -> World:
        return world("random", 0.5, images=200, classes=3)

    def test_what_does_not_fit_together(self, it: World) -> None:
        one, pairs = ClassCounts(np.array([1]), np.array([1])), it.held
        with pytest.raises(ValueError, match="counts must be of 3 classes, got 1"):
            calibrate(it.seen, pairs, one, images=200)
        with pytest.raises(ValueError, match=r"images must be at least \d+, got 5"):
            calibrate(it.seen, pairs, it.counts, images=5)
        with pytest.raises(ValueError, match="seen has no labels"):
            calibrate(LogitHistogram(3), pairs, it.counts, images=200)

    def test_held_out_pairs_that_are_none(self, it: World) -> None:
        wrong = {
            "the arrays of held must be of equal length": {"logits": it.held.logits[1:]},
            r"classes of held must be in 0\.\.2": {"classes": it.held.classes + 1},
            r"states of held must be \+1 or -1": {"states": it.held.states * 0},
            r"logits of class \d had NaN": {"logits": it.held.logits * math.nan},
        }
        for match, change in wrong.items():
            with pytest.raises(ValueError, match=match):
                calibrate(it.seen, it.held._replace(**change), it.counts, images=200)

    def test_logits_that_are_not_numbers(self, it: World) -> None:
        logits = it.logits.copy()
        logits[np.flatnonzero(~it.known[:, 1])[0], 1] = math.nan
        with pytest.raises(ValueError, match="logits of class 1 had NaN"):
            it._replace(logits=logits).calibrated()


class TestMaskedHistogram:
    @settings(max_examples=25)
    @given(st.integers(0, 1000), st.sampled_from([0.0, 0.2, 1.0]))
    def test_only_what_counts_is_counted(self, seed: int, share: float) -> None:
        rng = np.random.default_rng(seed)
        logits, where = rng.normal(0, 6, (30, 3)), rng.random((30, 3)) < share
        seen = histogram(logits, where)
        assert seen.labels.tolist() == where.sum(0).tolist()
        assert seen.images == where.sum(0).max()
        for c in range(3):
            chosen = logits[where[:, c], c]
            expected = np.mean(1 / (1 + np.exp(-chosen))) if len(chosen) else 0
            assert seen.mean()[c] == pytest.approx(expected, abs=1e-3)
            assert seen.corrected(np.full(3, 0.3))[c] == pytest.approx(
                histogram(chosen[:, None]).corrected(np.array([0.3]))[0], abs=1e-12
            )

    def test_all_is_the_same_as_no_mask(self) -> None:
        logits = np.random.default_rng(0).normal(0, 6, (50, 4))
        one, two = histogram(logits), histogram(logits, np.ones((50, 4), np.bool_))
        assert torch.equal(one.counts, two.counts)
        assert torch.equal(one.sums, two.sums)

    def test_what_does_not_count_may_be_anything(self) -> None:
        seen = histogram(
            np.array([[math.nan, 1.0], [2.0, math.inf]]), np.array([[0, 1], [1, 0]], np.bool_)
        )
        assert seen.mean() == pytest.approx([sigmoid(2), sigmoid(1)], abs=1e-9)

    def test_other_masks_are_refused(self) -> None:
        seen = LogitHistogram(2)
        for wrong in (torch.ones(3, 2), torch.ones(2, 2, dtype=torch.bool)):
            with pytest.raises(ValueError, match=r"where must be bool \(3, 2\), got torch\."):
                seen.update(torch.zeros(3, 2), wrong)


def test_a_calibration_is_not_to_be_changed() -> None:
    found = world("random", 0.5, images=200, classes=2).calibrated()
    with pytest.raises(AttributeError):
        found.slope = 2.0  # type: ignore[misc]
    assert replace(found, slope=2.0).slope == 2.0
