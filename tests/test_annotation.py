"""What counts tell of how a set was annotated, and the loss that is recommended for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from partlabel.annotation import has_budget, recommend
from partlabel.assemble import absent_bit
from partlabel.losses import LOSSES, build_loss
from partlabel.simulate import (
    drop_positives,
    fixed_per_class,
    random_per_annotation,
    single_positive,
)
from partlabel.store import LabelStore
from partlabel.tables import ClassTable, ImageTable

IMAGES, CLASSES = 400, 12


def complete(seed: int = 0) -> LabelStore:
    """Classes of which each is half as frequent as the one before it, down to a few images."""
    draws = np.random.default_rng(seed)
    there = draws.random((IMAGES, CLASSES)) < 0.6 * 0.7 ** np.arange(CLASSES)
    return LabelStore(
        ClassTable([f"class {i}" for i in range(CLASSES)]),
        ImageTable.make([f"{i}.jpg" for i in range(IMAGES)]),
        indptr=np.concatenate([[0], np.cumsum(there.sum(1))]),
        codes=np.nonzero(there)[1].astype(np.uint16),
        complete=True,
    )


def one_state(flag: int) -> LabelStore:
    """One label, present or absent."""
    return LabelStore(
        ClassTable(["a", "b"]),
        ImageTable.make(["x.jpg", "y.jpg"]),
        indptr=np.array([0, 1, 1]),
        codes=np.array([1 | flag], np.uint16),
    )


@pytest.mark.parametrize(
    ("positives", "wanted"),
    [
        ([100] * 12, True),
        ([100] * 3 + [7] * 9, True),
        ([100] * 2 + [7] * 10, False),  # two may be alike by chance
        ([100] * 3 + [7] * 27, False),  # a tenth and not more
        ([100] * 4 + [7] * 27, True),
        ([4] * 12, False),  # so few are alike by chance
        ([5] * 12, True),
        (list(range(90, 102)), False),
        ([0, 0, 0], False),
        ([], False),
    ],
)
def test_a_budget_is_a_largest_number_that_many_classes_have(
    positives: list[int], wanted: bool
) -> None:
    assert has_budget(np.array(positives, np.int64)) is wanted


@pytest.mark.parametrize("kind", ["uniform", "few", "some"])
def test_numbers_that_are_alike_by_chance_are_no_budget(kind: str) -> None:
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(500):
        if kind == "uniform":
            positives = rng.integers(10, 20, 20)
        else:
            positives = rng.poisson(3 if kind == "few" else 10, 20)
        found += has_budget(positives)
    assert found <= 10


def test_a_budget_that_most_classes_do_not_use_up_is_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        drawn = np.minimum(rng.poisson(rng.gamma(1, 40, 80)), 20)
        assert has_budget(drawn)


def test_what_is_complete_needs_no_choice() -> None:
    found = recommend(complete())
    assert (found.loss, found.annotation, found.one_training) == ("ce", "complete", "")
    # and so where every label happens to be listed
    full = random_per_annotation(complete(), drop=0.0, seed=0)
    assert not full.complete
    assert recommend(full).annotation == "complete"


def test_tags_without_a_verified_absent_label() -> None:
    tags = drop_positives(complete(), keep=0.4, seed=0)
    for store in (single_positive(complete(), seed=0), tags, one_state(0)):
        assert recommend(store).loss == "hill"
        assert "verified absent" in recommend(store).why[0]


def test_only_absent_labels_teach_nothing() -> None:
    found = recommend(one_state(absent_bit(np.dtype(np.uint16))))
    assert found.annotation == "only absent labels"
    assert "nothing to learn" in found.why[0]


def test_a_number_of_labels_per_class_is_seen() -> None:
    found = recommend(fixed_per_class(complete(), per_class=20, seed=0))
    assert found.loss == "auto"
    assert found.annotation == "a number of labels per class"
    full = (complete().counts().positives >= 20).sum()
    assert f"{full} of 12 classes have exactly 20 verified present labels" in found.why[0]
    assert "online" in found.one_training


def test_else_the_number_that_decides_is_said() -> None:
    """What an image would show if unknown labels were like annotated ones."""
    full = complete()
    truth = full.counts().positives.sum() / IMAGES
    found = recommend(random_per_annotation(full, drop=0.5, seed=1))
    assert (found.loss, "counts do not tell" in found.annotation) == ("auto", True)
    said = float(found.why[0].split("shows about ")[1].split()[0])
    assert said == pytest.approx(truth, rel=0.1)
    assert 'unknown = "ignore"' in found.one_training


def test_a_class_that_nobody_looked_at_counts_for_nothing() -> None:
    store = random_per_annotation(complete(), drop=0.5, seed=1)
    more = LabelStore(
        ClassTable([*store.classes.ids, "unseen"]),
        ImageTable.make([f"{i}.jpg" for i in range(IMAGES)]),
        indptr=store.indptr,
        codes=store.codes,
    )
    before, after = (recommend(each).why[0] for each in (store, more))
    assert after == before.replace("of 12 classes", "of 13 classes")


def test_every_recommended_loss_is_one() -> None:
    stores = [complete(), single_positive(complete(), seed=0), one_state(1 << 15)]
    stores.append(fixed_per_class(complete(), per_class=20, seed=0))
    for found in map(recommend, stores):
        assert found.loss in LOSSES
        build_loss(found.loss)


def test_info_says_it_to_people_and_programs(tmp_path: Path) -> None:
    path = fixed_per_class(complete(), per_class=20, seed=0).save(tmp_path / "some.labels")

    def info(*more: str) -> str:
        command = [sys.executable, "-m", "partlabel", "info", str(path), *more]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    text = " ".join(info().split())
    assert "recommended (docs/choosing.md)" in text
    assert "loss auto" in text
    assert "20 verified present labels" in text
    found = json.loads(info("--json"))["recommendation"]
    assert found == recommend(LabelStore.open(path)).to_dict()


def test_the_page_it_names_is_there() -> None:
    page = Path(__file__).parents[1] / recommend(complete()).to_dict()["more"]
    text = page.read_text(encoding="utf-8")
    for name in ("hill", "auto", "selective", "ce"):
        assert f"`{name}`" in text
