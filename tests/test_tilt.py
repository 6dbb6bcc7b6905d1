"""Scores without the label itself, and shares by samples of scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from partlabel.calibrate import FeatureSums, HeldOut, Samples, calibrate, information, share_present
from partlabel.histogram import LogitHistogram
from partlabel.store import ClassCounts
from tests.test_calibrate import histogram


def discriminant(features: torch.Tensor, present: torch.Tensor) -> FeatureSums:
    sums = FeatureSums(features.shape[1], present.shape[1])
    sums.update(features, present)
    return sums


def plain_score(features: np.ndarray, learnt: np.ndarray, at: int) -> float:
    """The score of one image by the images that are known to show the class: the docs' formula."""
    mean = features.mean(0)
    covariance = np.cov(features.T, bias=True)
    ridge = 3 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    return float(
        (features[at] - mean) @ np.linalg.solve(covariance + ridge, features[learnt].mean(0) - mean)
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_a_label_is_left_out_of_its_own_score(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(30, 5)) * [1, 2, 0.5, 3, 1] + rng.normal(size=5)
    present = rng.random((30, 3)) < [0.2, 0.5, 0.3]
    found = discriminant(torch.from_numpy(features), torch.from_numpy(present)).discriminant()
    inputs = torch.from_numpy(features).float()
    scores = found.scores(inputs, torch.from_numpy(present)).numpy()
    plain = found.scores(inputs).numpy()
    for c in range(3):
        rows = np.flatnonzero(present[:, c])
        assert len(rows) > 1
        usual = np.std([plain_score(features, rows, i) for i in range(30)])
        for i in range(30):
            others = plain_score(features, rows[rows != i], i) / usual
            assert scores[i, c] == pytest.approx(2.5 * np.arcsinh(others / 2.5), abs=1e-4)
            both = plain_score(features, rows, i) / usual
            assert plain[i, c] == pytest.approx(2.5 * np.arcsinh(both / 2.5), abs=1e-4)


def test_the_only_label_of_a_class_scores_nothing() -> None:
    features, present = torch.randn(9, 4), torch.zeros(9, 2, dtype=torch.bool)
    present[3, 0] = True
    scores = discriminant(features, present).discriminant().scores(features, present)
    assert scores[3, 0] == 0
    assert scores[:, 0].abs().max() > 0.1
    assert (scores[:, 1] == 0).all()  # nothing is known of it


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
