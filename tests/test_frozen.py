"""Scores by the features that a run begins with, and what becomes of them in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import interpolate, softplus

from partlabel import LabelStore
from partlabel.calibrate import FeatureSums, calibrate, information
from partlabel.config import Config
from partlabel.holdout import held_out_share, hold_out
from partlabel.model import build_model, trained_size
from partlabel.prior import Prior
from partlabel.training import firststage
from partlabel.training import frozen as frozen_module
from partlabel.training.asking import Source, Told, ask
from partlabel.training.frozen import Frozen
from partlabel.training.loop import Stopped
from partlabel.training.posteriors import Posteriors
from partlabel.training.processes import Processes
from partlabel.training.rundata import Part
from partlabel.training.runfolder import RunFolder
from partlabel.training.scoring import Seen
from partlabel.training.stages import Run
from partlabel.training.supply import Streamed
from tests.runs import make_data, settings
from tests.test_auto import AtStep, linked, same_run, values
from tests.test_dataset import COUNT, CPU, SIZE, make_part, make_supply
from tests.test_train import Quiet, train
from tests.test_train_more import close

BACKBONE = "test_convnext"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that nobody trained, but which are in a file."""
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    model = build_model(BACKBONE, 1, weights=None, seed=7, image_size=32)
    save_file(model.backbone.state_dict(), path)
    return path


def frozen(file: Path, **images: Any) -> Frozen:
    made = settings(file.parent, images={"size": SIZE, **images}, model={"weights": str(file)})
    return Frozen(Config.from_dict(made), CPU)


def features_of(file: Path, images: torch.Tensor) -> torch.Tensor:
    """By a model that is made by hand."""
    model = build_model(BACKBONE, 3, weights=file, image_size=160).eval()
    with torch.no_grad():
        large = interpolate(model.normalise(images), (160, 160), mode="bilinear")
        return model.forward_features(large)


def seen_of(part: Part) -> Any:
    return make_supply(Streamed, part, "none").listed


def test_small_images_are_enlarged_to_what_the_weights_know(file: Path) -> None:
    assert trained_size(BACKBONE) == 160  # timm's word
    assert frozen(file).size == 160
    assert frozen(file, size=200).size == 200
    images = torch.randint(0, 256, (3, 3, SIZE, SIZE), dtype=torch.uint8)
    found = frozen(file).features(images)
    torch.testing.assert_close(found.detach(), features_of(file, images), rtol=1e-4, atol=1e-5)


def test_a_backbone_of_unknown_size_takes_images_as_they_are() -> None:
    assert trained_size("small") == 0


@pytest.mark.parametrize("bad", [(), (3, 8, 9)], ids=["all", "unreadable"])
def test_scores_are_those_of_labels_that_were_not_held_out(
    file: Path, bad: tuple[int, ...]
) -> None:
    part = make_part(bad=bad)
    held = hold_out(part.store, 0.4, seed=1)[1]
    rows, heard = np.arange(COUNT), list[int]()
    seen_by = Seen(heard.append, lambda _: None)
    view, batches = frozen(file), seen_of(part)
    source = view.learned(batches, rows, held, processes=Processes(), seen_by=seen_by)
    there = [row for row in rows.tolist() if row not in bad]
    assert sum(heard) == len(there)
    features = torch.cat([features_of(file, batch.images) for batch in batches(rows)])
    states = torch.from_numpy(part.store.dense(there))
    position, classes, kinds = held.batch(np.array(there))
    shown = states.clone()
    shown[position, classes] = 0
    sums = FeatureSums(features.shape[1], 6)
    sums.update(features, shown)
    wanted = sums.discriminant().scores(features, shown)
    (told,) = ask(source, batches, rows, held, processes=Processes())
    found = wanted[position, classes].numpy()
    np.testing.assert_allclose(told.held.logits, found, rtol=1e-3, atol=1e-3)
    assert told.held.states.tolist() == kinds.tolist()
    assert told.samples is not None
    for histogram, state in zip(told.samples, (1, -1, 0), strict=True):
        where = states == state
        assert histogram.labels.tolist() == where.sum(0).tolist()
        sums_of = torch.where(where, wanted, 0.0).sum(0).double()
        torch.testing.assert_close(histogram.sums.sum(1), sums_of, rtol=1e-3, atol=1e-2)


def test_what_a_model_knows_is_measured_where_it_learnt() -> None:
    """Labels of images that were not sampled for the first stage were not shown to it."""
    part, rows = make_part(), np.arange(COUNT)
    held = hold_out(part.store, 0.4, seed=1)[1]
    states = torch.from_numpy(part.store.dense(rows))
    position, classes, _ = held.batch(rows)
    states[position, classes] = 0
    logits = torch.linspace(-3, 3, states.numel()).view(states.shape)
    source = Source(1, lambda batch, _: [logits[batch.there]])
    for learnt in (None, rows[1:COUNT:3]):
        there = rows if learnt is None else learnt
        wanted = softplus(-logits[there])[states[there] > 0].mean().item()
        processes = Processes()
        (told,) = ask(source, seen_of(part), rows, held, processes=processes, learnt=learnt)
        assert told.shown == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(("room", "passes"), [(1 << 30, 1), (100, 3)])
def test_features_are_computed_once_where_they_fit(
    file: Path, monkeypatch: pytest.MonkeyPatch, room: int, passes: int
) -> None:
    part, rows, asked = make_part(), np.arange(COUNT), list[int]()
    held = hold_out(part.store, 0.4, seed=1)[1]
    plain = Frozen.features
    monkeypatch.setattr(frozen_module, "_ROOM", room)

    def noting(self: Frozen, images: torch.Tensor) -> torch.Tensor:
        asked.append(len(images))
        return plain(self, images)

    monkeypatch.setattr(Frozen, "features", noting)
    source = frozen(file).learned(seen_of(part), rows, held, processes=Processes())
    told = [ask(source, seen_of(part), rows, held, processes=Processes())[0] for _ in "12"]
    assert sum(asked) == passes * COUNT
    assert told[0].held.logits.tolist() == told[1].held.logits.tolist()


def test_what_two_processes_add_up_is_what_one_has(file: Path) -> None:
    """Each takes its share of the images; sums of both are the whole."""
    part, rows = make_part(), np.arange(COUNT)
    held = hold_out(part.store, 0.4, seed=1)[1]
    added: list[list[torch.Tensor]] = []

    class Half(Processes):
        def add(self, tensor: torch.Tensor) -> torch.Tensor:
            added[-1].append(tensor.clone())
            return tensor

    for rank, world in ((0, 1), (0, 2), (1, 2)):
        added.append([])
        frozen(file).learned(seen_of(part), rows, held, processes=Half(rank, world))
    whole, first, second = added
    assert len(whole) == 5
    for one, a, b in zip(whole, first, second, strict=True):
        torch.testing.assert_close(a + b, one, rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make_data(folder, images=64)
    return folder


@pytest.fixture
def work(data: Path, tmp_path: Path) -> Path:
    return linked(data, tmp_path)


def begun(work: Path, file: Path, out: str = "run", **more: Any) -> dict[str, Any]:
    """The settings of a run with auto that begins with the weights of a file."""
    return values(work, out, **{"model": {"weights": str(file)}, **more})


@pytest.mark.slow
def test_a_run_asks_them_as_a_third(
    work: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[Told, Told | None]] = []
    samples: list[Any] = []
    own, counted = firststage.FirstStage._calibrated, firststage.calibrate

    def noting(self: Any, one: Told, beside: Told | None) -> Any:
        told.append((one, beside))
        return own(self, one, beside)

    def counting(*given: Any, **more: Any) -> Any:
        samples.append(more["samples"])
        return counted(*given, **more)

    monkeypatch.setattr(firststage.FirstStage, "_calibrated", noting)
    monkeypatch.setattr(firststage, "calibrate", counting)
    watcher = Quiet()
    train(begun(work, file), watcher)
    said = [text for text in watcher.said if "features" in text]
    assert said == ["learning classes from the features of 64 images"]
    ((head, features),) = told
    assert features is not None
    assert features.held.classes.tolist() == head.held.classes.tolist()
    counts = LabelStore.open(work / "data.labels").split("train").counts()
    by_features, by_head = (information(each.held, counts) for each in (features, head))
    enough = 0 < by_features >= 0.5 * by_head
    assert samples == [features.samples if enough else None]


@pytest.mark.slow
@pytest.mark.parametrize("as_much", [0.0, 1e9])
def test_they_say_how_many_where_they_know_enough(
    work: Path, file: Path, monkeypatch: pytest.MonkeyPatch, as_much: float
) -> None:
    """With labels that are not missing at random; the head has to know something, or any do."""
    monkeypatch.setattr(firststage, "_AS_MUCH", as_much)
    monkeypatch.setattr(firststage, "information", lambda *_: 1.0)
    given: list[tuple[Any, Any]] = []

    def counting(*told: Any, **more: Any) -> Any:
        given.append((told, more))
        return calibrate(*told, **more)

    monkeypatch.setattr(firststage, "calibrate", counting)
    train(begun(work, file))
    ((_, more),) = given
    assert (more["samples"] is not None) is (as_much == 0)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 20])
def test_stopped_and_resumed_is_the_same(work: Path, file: Path, stop: int) -> None:
    train(begun(work, file, "whole"))
    with pytest.raises(Stopped):
        train(begun(work, file, "parts"), AtStep(stop))
    assert (work / "parts" / "posteriors" / "epoch-0000").is_dir()
    train(begun(work, file, "parts"))
    same_run(work / "whole", work / "parts")


@pytest.mark.slow
def test_features_of_random_weights_are_not_looked_at(work: Path, file: Path) -> None:
    for name, kind in (("none", "none"), ("some", str(file))):
        watcher = AtStep(1)
        with pytest.raises(Stopped):
            train(begun(work, file, name, model={"weights": kind}), watcher)
        assert any("features" in text for text in watcher.said) is (name == "some")


@pytest.mark.slow
def test_features_make_another_table(
    work: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("with", "without"):
        if name == "without":
            monkeypatch.setattr(firststage.FirstStage, "_frozen", lambda *_: None)
        with pytest.raises(Stopped):
            train(begun(work, file, name), AtStep(1))
    tables = [Posteriors(work / name / "posteriors" / "epoch-0000") for name in ("with", "without")]
    assert not np.array_equal(tables[0].logits, tables[1].logits)


@pytest.mark.slow
def test_parts_and_other_pictures_are_the_whole(work: Path, file: Path) -> None:
    more: dict[str, Any] = {"epochs": 3}
    for resident in (False, True):
        images = {"augment": "paper", "device_resident": resident}
        train(begun(work, file, f"resident-{resident}", images=images, train=more))
    same_run(work / "resident-False", work / "resident-True")
    for parts in (1, 2):
        train(begun(work, file, f"parts{parts}", train={**more, "accumulate": parts}))
    close(work / "parts1", work / "parts2")


@pytest.mark.slow
def test_a_prior_for_another_loss(work: Path, file: Path) -> None:
    """Of a run; of the folder it leaves; and of one whose weights are no longer there."""
    prior = {"use": "calibrated"}
    copy = work / "copy.safetensors"
    copy.write_bytes(file.read_bytes())
    made = settings(work, model={"weights": str(copy)}, prior=prior, train={"epochs": 3})
    watcher = Quiet()
    train(made, watcher)
    assert "learning classes from the features of 64 images" in watcher.said
    found = Prior.read(work / "run" / "prior.csv")
    assert {entry.method for entry in found.classes.values()} == {"calibrated"}
    stage = RunFolder(work / "run" / "stage1")

    def again() -> tuple[Prior, list[str]]:
        heard = Quiet()
        run = Run(Config.from_dict(made), processes=Processes(), watcher=heard)
        return run.prior_of_model(stage), heard.said

    np.testing.assert_allclose(again()[0].values, found.values, rtol=1e-5)
    copy.unlink()
    alone, said = again()
    assert ((alone.values > 0) & (alone.values < 1)).all()
    (warning,) = (text for text in said if text.startswith("warning: without the weights"))
    assert "copy.safetensors" in warning


@pytest.mark.slow
def test_what_is_held_out_is_not_learnt_from(
    work: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[torch.Tensor] = []
    finished = FeatureSums.discriminant

    def noting(self: FeatureSums) -> Any:
        counts.append(self.labels.clone())
        return finished(self)

    monkeypatch.setattr(FeatureSums, "discriminant", noting)
    with pytest.raises(Stopped):
        train(begun(work, file), AtStep(1))
    store = LabelStore.open(work / "data.labels").split("train")
    left, held = hold_out(store, held_out_share(store.counts()), seed=0)
    assert held.counts().positives.sum() > 3
    assert counts[0][0].tolist() == left.counts().positives.tolist()
    assert counts[0][1].tolist() == left.counts().negatives.tolist()
