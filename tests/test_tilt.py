"""Scores without the label itself, and shares by samples of scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from partlabel.calibrate import (
    Discriminant,
    FeatureSums,
    HeldOut,
    Samples,
    calibrate,
    information,
    share_present,
)
from partlabel.histogram import LogitHistogram
from partlabel.store import ClassCounts
from tests.test_calibrate import histogram


def discriminant(features: torch.Tensor, states: torch.Tensor) -> Discriminant:
    sums = FeatureSums(features.shape[1], states.shape[1])
    sums.update(features, states)
    return sums.discriminant()


class Plain:
    """One class, as the docs have it, image by image; ``without`` leaves an image's label out."""

    def __init__(self, features: np.ndarray, states: np.ndarray, ridge: float) -> None:
        self.x, self.states = features - features.mean(0), states
        covariance = np.cov(features.T, bias=True)
        size = np.trace(covariance) / len(covariance)
        self.metric = np.linalg.inv(covariance + ridge * size * np.eye(len(covariance)))
        self.k, self.absent = (states > 0).sum(), (states < 0).sum()
        mean_own = np.trace(covariance @ self.metric)
        self.share = 0.0
        if self.k > 1 and self.absent > 0:
            present, absent = self.x[states > 0].sum(0), self.x[states < 0].sum(0)
            square = (present @ self.metric @ present - self.k * mean_own) / self.k / (self.k - 1)
            across = present @ self.metric @ absent / self.k / self.absent
            noise = np.sqrt(np.trace(covariance @ self.metric @ covariance @ self.metric))
            across = min(across + noise / np.sqrt(self.k * self.absent), 0.0)
            if square > 2 * noise * np.sqrt(2 / self.k / (self.k - 1)):
                self.share = min(-across / (square - across), 0.9)
        self.every = [self.score(i) for i in range(len(features))]
        d, w = self.direction()
        self.parting = (d @ self.metric @ d - mean_own / w) / np.std(self.every)

    def direction(self, without: int = -1) -> tuple[np.ndarray, float]:
        d, w = np.zeros(self.x.shape[1]), 0.0
        for i, state in enumerate(self.states):
            if state and i != without:
                worth = 1 - self.share if state > 0 else -self.share
                d, w = d + worth * self.x[i], w + worth**2
        return d / (w or 1.0), w

    def score(self, at: int, without: int = -1) -> float:
        return float(self.x[at] @ self.metric @ self.direction(without)[0])


def drawn_labels(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of 60 images and states of a rare, a middling and a frequent class."""
    rng = np.random.default_rng(seed)
    present = rng.random((60, 3)) < [0.15, 0.4, 0.6]
    features = rng.normal(size=(60, 5)) * [1, 2, 0.5, 3, 1] + rng.normal(size=5)
    features += present @ rng.normal(size=(3, 5))
    return features, np.where(rng.random((60, 3)) < 0.6, np.where(present, 1, -1), 0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_label_is_left_out_of_its_own_score(seed: int) -> None:
    features, states = drawn_labels(seed)
    found = discriminant(torch.from_numpy(features), torch.from_numpy(states))
    inputs = torch.from_numpy(features).float()
    scores = found.scores(inputs, torch.from_numpy(states)).numpy()
    plain = found.scores(inputs).numpy()
    for c in range(3):
        tries = [Plain(features, states[:, c], ridge) for ridge in (1, 3, 10, 30)]
        best = max(tries, key=lambda each: each.parting)
        assert found.ridge[c] == tries.index(best)
        assert found.share[c] == pytest.approx(best.share, abs=1e-5)
        usual = np.std(best.every)
        for i in range(60):
            others = best.score(i, without=i) / usual
            assert scores[i, c] == pytest.approx(2.5 * np.arcsinh(others / 2.5), abs=1e-4)
            both = best.every[i] / usual
            assert plain[i, c] == pytest.approx(2.5 * np.arcsinh(both / 2.5), abs=1e-4)


def world(share: float, known: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Features of 3,000 images, so many known labels of each state, and who shows the class."""
    rng = np.random.default_rng(seed)
    present = rng.random(3000) < share
    features = rng.normal(size=(3000, 40)) + 0.5 * present[:, None] * (np.arange(40) < 8)
    states = np.zeros((3000, 1), np.int8)
    for state, where in ((1, present), (-1, ~present)):
        states[rng.choice(np.flatnonzero(where), known, replace=False)] = state
    return torch.from_numpy(features), torch.from_numpy(states), present


def parted(found: Discriminant, features: torch.Tensor, where: np.ndarray) -> float:
    """By how many deviations some images score above others."""
    scores = found.scores(features)[:, 0].numpy()
    return float(scores[where].mean() - scores[~where].mean())


def test_absent_labels_tell_of_a_frequent_class_and_leave_a_rare_one_alone() -> None:
    gains = {}
    for share in (0.02, 0.5):
        shares, by_both, by_present = [], [], []
        for seed in range(5):
            features, states, present = world(share, 40, seed)
            both = discriminant(features, states)
            shares.append(both.share.item())
            by_both.append(parted(both, features, present))
            by_present.append(
                parted(discriminant(features, states.clamp(min=0)), features, present)
            )
        assert share - 0.25 < np.mean(shares) < share + 0.05  # cautious
        gains[share] = np.mean(by_both) / np.mean(by_present)
    assert gains[0.5] > 1.05
    assert gains[0.02] == pytest.approx(1, abs=0.05)


def test_absent_labels_that_are_no_sample_are_left_alone() -> None:
    """People look where the class might be: those images are between the others."""
    features, states, _ = world(0.1, 40, 0)
    features[states[:, 0] < 0] += 0.3 * (torch.arange(40) < 8)
    found, without = (discriminant(features, each) for each in (states, states.clamp(min=0)))
    assert found.share.item() == 0
    torch.testing.assert_close(found.scores(features), without.scores(features))


def test_a_few_labels_say_nothing_of_a_share() -> None:
    shares = []
    for seed in range(20):
        features, states, _ = world(0.02, 4, seed)
        shares.append(discriminant(features, states).share.item())
    assert np.mean(shares) < 0.02


def test_scores_do_not_know_their_labels() -> None:
    """Where features say nothing, known labels score as unknown ones do, whatever the ridge."""
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.normal(size=(4000, 60)) * np.geomspace(1, 0.1, 60))
    states = torch.from_numpy(rng.choice([1, -1, 0], (4000, 40), p=[0.01, 0.02, 0.97]))
    scores = discriminant(features, states).scores(features, states)
    for state in (1, -1):
        there = scores[states == state]
        assert abs(there.mean()) < 4 / np.sqrt(len(there))


def test_the_only_label_of_a_class_scores_nothing() -> None:
    features, states = torch.randn(9, 4), torch.zeros(9, 3, dtype=torch.int8)
    states[3, 0], states[4, 2] = 1, -1
    scores = discriminant(features, states).scores(features, states)
    assert scores[3, 0] == 0
    assert scores[:, 0].abs().max() > 0.1
    assert (scores[:, 1:] == 0).all()  # nothing is known of it, or no label is present


def samples(
    rng: np.random.Generator, share: np.ndarray, k: int, m: int, n: int, slope: float = 2.0
) -> Samples:
    """Scores of present labels are normal, one ``slope`` above those of absent ones."""

    def drawn(rows: int, present: np.ndarray) -> LogitHistogram:
        return histogram(rng.normal(size=(rows, len(share))) + slope * present)

    there = rng.random((n, len(share))) < share
    return Samples(drawn(k, np.array(1.0)), drawn(m, np.array(0.0)), drawn(n, there))


@pytest.mark.parametrize(("classes", "k", "m"), [(40, 50, 50), (40, 300, 300), (3, 200, 200)])
def test_shares_are_those_that_were_drawn(classes: int, k: int, m: int) -> None:
    rng = np.random.default_rng(0)
    draws = [10 ** rng.uniform(-2, -0.4, classes) for _ in range(48 // classes)]
    every = np.ones(classes, np.bool_)
    found = np.concatenate([share_present(samples(rng, s, k, m, 4000), every) for s in draws])
    share = np.concatenate(draws)
    off = np.abs(np.log(found / share))
    assert np.median(off) < 0.25
    assert found.sum() == pytest.approx(share.sum(), rel=0.2)
    # not what annotated labels would make one think
    assert np.abs(np.log(0.5 / share)).mean() > 4 * off.mean()


def test_a_class_alone_and_hardly_any_labels() -> None:
    rng = np.random.default_rng(1)
    for k, m in ((1, 0), (1, 1), (3, 0)):
        (found,) = share_present(samples(rng, np.array([0.05]), k, m, 500), np.ones(1, np.bool_))
        assert 0 < found < 1
    some = share_present(samples(rng, np.full(4, 0.2), 100, 100, 3000), np.arange(4) == 2)
    assert some == pytest.approx([0.2], abs=0.1)


def test_scores_that_tell_nothing_say_nothing_of_a_share() -> None:
    """Then the classes are alike, whatever is true of them."""
    rng = np.random.default_rng(2)
    share = 10 ** rng.uniform(-2, -0.4, 30)
    found = share_present(samples(rng, share, 60, 60, 2000, slope=0.0), np.ones(30, np.bool_))
    assert np.isfinite(found).all()
    assert abs(np.corrcoef(np.log(found), np.log(share))[0, 1]) < 0.5


def test_classes_that_samples_say_nothing_of_move_as_the_others_do() -> None:
    """By the samples, and not as the head would have them that samples are there to replace."""
    rng = np.random.default_rng(3)
    share = np.append(10 ** rng.uniform(-2.5, -1.5, 30), np.full(10, 0.002))
    k = np.append(rng.integers(30, 60, 30), np.zeros(10, np.int64))
    told, rows = k > 0, 3000
    given = samples(rng, share, 60, 50, rows)
    nothing = LogitHistogram(40)
    scores = rng.normal(size=(60, 40)) + 2
    nothing.update(torch.from_numpy(scores), torch.from_numpy(np.tile(told, (60, 1))))
    given = Samples(nothing, given.absent, given.unknown)
    # A head that finds far too many of what is unknown likely.
    likely = rng.random((rows, 40)) < 0.08
    seen = histogram(np.where(likely, 1.5, -1.2) + rng.normal(size=(rows, 40)))
    classes, states = np.repeat(np.arange(30), 10), np.tile([1, -1], 150).astype(np.int8)
    held = HeldOut(0.75 * states + rng.normal(size=300), classes, states)
    counts = ClassCounts(k, np.full(40, 50))
    found = calibrate(seen, held, counts, images=rows + 200, samples=given)
    assert not found.random
    usual = (k + 0.5) / (k + 51)

    def moved(where: np.ndarray) -> float:
        odds = np.log(found.share / (1 - found.share)) - np.log(usual / (1 - usual))
        return float(odds[where].mean())

    assert moved(~told) == pytest.approx(moved(told), abs=0.3)
    assert found.share[told].sum() == pytest.approx(share[told].sum(), rel=0.4)


class TestInformation:
    def told(self, usual: np.ndarray, knows: bool, seed: int = 0) -> tuple[HeldOut, ClassCounts]:
        """One that knows what is usual for a class, or not, and as much of the image."""
        rng = np.random.default_rng(seed)
        classes = rng.integers(0, len(usual), 6000)
        states = np.where(rng.random(6000) < usual[classes], 1, -1).astype(np.int8)
        logits = 1.2 * rng.normal(size=6000) + 0.72 * states
        if knows:
            logits += np.log(usual / (1 - usual))[classes]
        counts = np.round(1000 * usual).astype(np.int64)
        return HeldOut(logits, classes, states), ClassCounts(counts, 1000 - counts)

    @pytest.mark.parametrize("usual", [[0.5] * 6, [0.02, 0.05, 0.1, 0.3, 0.5, 0.8]])
    def test_it_does_not_matter_whether_logits_know_the_class(self, usual: list[float]) -> None:
        one, other = (information(*self.told(np.array(usual), knows)) for knows in (True, False))
        assert one > 0.05
        assert other == pytest.approx(one, rel=0.05)

    def test_noise_tells_nothing(self) -> None:
        held, counts = self.told(np.array([0.1, 0.5]), True)
        noise = np.random.default_rng(9).normal(size=6000)
        assert information(held._replace(logits=noise), counts) < 0.01

    def test_classes_without_a_verified_negative_do_not_count(self) -> None:
        held, counts = self.told(np.array([0.5, 0.5]), True)
        bare = ClassCounts(counts.positives, counts.negatives * np.array([1, 0]))
        there = held.classes == 0
        alone = HeldOut(held.logits[there], held.classes[there], held.states[there])
        assert information(held, bare) == pytest.approx(information(alone, bare))

    def test_few_labels_tell_nothing(self) -> None:
        held, counts = self.told(np.array([0.5]), True)
        assert information(HeldOut(*(a[:30] for a in held)), counts) == 0
