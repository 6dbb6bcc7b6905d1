"""Training with the loss auto: two stages and posteriors between, killed anywhere and resumed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

from partlabel import LabelStore
from partlabel.calibrate import HeldOut, calibrate, mixture, rescaled
from partlabel.compare import Comparison
from partlabel.config import Config
from partlabel.errors import ConfigError, StoreError, UsageError
from partlabel.histogram import LogitHistogram
from partlabel.holdout import held_out_share, hold_out
from partlabel.images import decode
from partlabel.prior import Prior
from partlabel.report import write_report
from partlabel.training import firststage, teacher
from partlabel.training.loop import Stopped
from partlabel.training.posteriors import Posteriors, PosteriorWriter
from partlabel.training.processes import Processes
from partlabel.training.runfolder import RunFolder
from partlabel.training.stages import Run
from partlabel.training.trained import load_model
from tests.runs import CLASSES, finish, lines, make_data, settings, start, weights
from tests.test_compare import Heard, complete_data, made
from tests.test_report import read
from tests.test_train import Quiet, read_csv, same, train
from tests.test_train_more import close

pytestmark = pytest.mark.slow

STEPS, EPOCHS = 6, 6  # of an epoch; of a run, so that the average is asked after 2 and 4


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make_data(folder)
    return folder


def linked(data: Path, folder: Path) -> Path:
    for name in ("data.labels", "images"):
        (folder / name).symlink_to(data / name)
    return folder


@pytest.fixture
def work(data: Path, tmp_path: Path) -> Path:
    """A folder with the data, to run in."""
    return linked(data, tmp_path)


def values(work: Path, out: str = "run", **sections: Any) -> dict[str, Any]:
    """The settings of a run with this loss; it takes what it needs of [prior] by itself."""
    made = settings(work, **{**sections, "train": {"epochs": EPOCHS, **sections.get("train", {})}})
    made["loss"] = {"name": "auto", "params": {}}
    made["prior"] = sections.get("prior", {})
    return {**made, "out": str(work / out)}


def auto(work: Path, out: str = "run", watcher: Quiet | None = None, **more: Any) -> dict[str, Any]:
    return train(values(work, out, **more), watcher)


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    folder = linked(data, tmp_path_factory.mktemp("whole"))
    watcher = Quiet()
    auto(folder, "run", watcher)
    (folder / "said.json").write_text(json.dumps(watcher.said))
    return folder / "run"


def same_run(one: Path, two: Path) -> None:
    """Weights bit for bit, log line for line, and what was estimated, in both stages."""
    for part in ("", "stage1"):
        same(one / part, two / part)
        assert lines(one / part) == lines(two / part)
    for name in ("prior.csv", "classes.csv", "thresholds.csv"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    assert not (two / "posteriors").exists()


# ---------------------------------------------------------------- a run


def test_a_run_has_two_stages_a_prior_and_no_tables_at_its_end(whole: Path) -> None:
    first, second = (RunFolder(folder).config for folder in (whole / "stage1", whole))
    focus = {"gamma_pos": 0, "gamma_neg": 1, "gamma_unknown": 4}
    assert (first.loss.name, first.loss.params) == ("selective", focus)
    assert first.prior.source == "online"
    assert first.train.hold_out
    assert not second.train.hold_out
    assert (first.train.epochs, second.train.epochs) == (EPOCHS, EPOCHS)
    assert lines(whole / "stage1")[-1]["step"] == STEPS * EPOCHS
    assert lines(whole)[-1]["step"] == STEPS * EPOCHS
    assert not (whole / "posteriors").exists()
    prior = Prior.read(whole / "prior.csv")
    assert list(prior.classes) == CLASSES
    assert {entry.method for entry in prior.classes.values()} == {"calibrated"}
    assert ((prior.values > 0) & (prior.values < 1)).all()
    counts = LabelStore.open(whole.parent / "data.labels").split("train").counts()
    found = [(entry.positives, entry.negatives) for entry in prior.classes.values()]
    assert found == list(zip(counts.positives.tolist(), counts.negatives.tolist(), strict=True))
    said = json.loads((whole.parent / "said.json").read_text())
    (found,) = (text for text in said if text.startswith("as it seems, "))
    assert "missing at random: of annotated labels" in found
    assert "asking it about 48 images" in said
    assert json.loads((whole / "result.json").read_text())["map_c"] > 0.8


def test_a_run_that_is_done_does_nothing(whole: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(whole, tmp_path / "run")
    (copy / "posteriors" / "epoch-0000").mkdir(parents=True)  # as a kill may leave them
    before = (copy / "metrics.jsonl").stat().st_mtime_ns
    watcher = Quiet()
    config = RunFolder(copy).config.replaced(out=str(copy))
    Run(config, processes=Processes(), watcher=watcher)()
    assert watcher.said == [f"{copy} is finished, nothing is left to do; --fresh starts anew"]
    assert (copy / "metrics.jsonl").stat().st_mtime_ns == before
    assert not (copy / "posteriors").exists()


def test_what_the_loss_is_told(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Posteriors of every batch, and held-out labels only from the last table on."""
    told: list[tuple[int, int, bool]] = []
    view = teacher.Teacher.view

    def noting(self: Any, batch: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        states, more = view(self, batch)
        posterior = more["posterior"]
        assert 1 <= more["alpha_pos"] <= 4
        assert (states != batch.states).sum() <= (batch.states != 0).sum()
        hidden = (states == 0) & (batch.states != 0)
        told.append((batch.plan.epoch, int(hidden.sum()), bool((posterior[hidden] > 0).all())))
        return states, more

    monkeypatch.setattr(teacher.Teacher, "view", noting)
    auto(work)
    store = LabelStore.open(work / "data.labels").split("train")
    _, held = hold_out(store, held_out_share(store.counts()), seed=0)
    assert len(held.codes) > 5
    for epoch in range(EPOCHS):
        hidden = sum(number for each, number, _ in told if each == epoch)
        assert hidden == (len(held.codes) if epoch < 4 else 0)
    assert all(there for _, _, there in told)


def test_one_head_counts_and_both_say_which(work: Path) -> None:
    """The first table, once more from the model that stage 1 left, image by image."""
    with pytest.raises(Stopped):
        auto(work, watcher=AtStep(1))
    table = Posteriors(work / "run" / "posteriors" / "epoch-0000")
    config = RunFolder(work / "run" / "stage1").config
    stage = Run(config, processes=Processes(), watcher=Quiet())
    store, held = stage.whole.store, stage.held_back(0)[1]
    rows = np.arange(len(store))
    model = load_model(stage.folder, torch.device("cpu")).model
    images = [decode(stage.whole.source.read(int(row)), 32) for row in rows]
    with torch.inference_mode():
        ranks, counts = model.both(model.normalise(torch.stack(images)))
    unknown = torch.from_numpy(store.dense(rows) == 0)
    position, classes, states = held.batch(rows)
    told = []
    for logits in (counts, ranks):
        seen = LogitHistogram(len(CLASSES))
        seen.update(logits, unknown)
        told.append((seen, HeldOut(logits[position, classes].double().numpy(), classes, states)))
    shares = calibrate(*told[0], store.counts(), images=len(store))
    parts = [(rescaled(shares, *each, store.counts()), each[1]) for each in (told[1], told[0])]
    odds = mixture(parts, store.counts())([ranks, counts])
    seen = LogitHistogram(len(CLASSES))
    seen.update(odds, unknown)
    held_odds = HeldOut(odds[position, classes].double().numpy(), classes, states)
    wanted = rescaled(shares, seen, held_odds, store.counts())
    for name in ("share", "prior", "shift", "slope"):
        found = getattr(table.calibration, name)
        np.testing.assert_allclose(found, getattr(wanted, name), rtol=1e-4, atol=1e-5)
    prior = Prior.read(work / "run" / "prior.csv")
    np.testing.assert_allclose(prior.values, shares.prior, rtol=1e-5)
    mean = [entry.mean for entry in prior.classes.values()]
    np.testing.assert_allclose(mean, told[0][0].mean(), rtol=1e-5)
    unknown[position, classes] = True
    posterior = wanted.posterior(odds) * unknown
    torch.testing.assert_close(table.dense(rows, posterior.device), posterior, rtol=0, atol=2e-3)


def test_it_differs_from_taking_all_that_is_unknown_as_absent(
    whole: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense = Posteriors.dense
    monkeypatch.setattr(Posteriors, "dense", lambda *given: dense(*given) * 0)
    auto(work, "absent")
    with pytest.raises(AssertionError):
        same(whole, work / "absent")


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_short_runs(work: Path, epochs: int) -> None:
    found = auto(work, train={"epochs": epochs})
    assert found["steps"] == epochs * STEPS
    assert not (work / "run" / "posteriors").exists()


# ---------------------------------------------------------------- stopped and killed


@pytest.mark.parametrize(
    ("backbone", "more"),
    [
        ("test_convnext", {}),
        ("test_resnet", {"model": {"drop": 0.2}, "train": {"accumulate": 2}}),
        ("test_convnext", {"images": {"device_resident": True, "augment": "paper"}}),
    ],
    ids=["plain", "batchnorm, dropout and parts", "resident"],
)
def test_stopped_anywhere_and_resumed_is_the_same(
    work: Path, backbone: str, more: dict[str, Any]
) -> None:
    """In stage 1; in the second epoch; when the average is asked, after that, in the last one."""
    more = {**more, "model": {"backbone": backbone, **more.get("model", {})}}
    auto(work, "whole", **more)

    class Stops(Quiet):
        def __init__(self, stage: int, step: int) -> None:
            super().__init__()
            self.stage, self.at = stage, step

        def stopping(self) -> bool:
            asked = any(text.startswith("asking it") for text in self.said)
            on = any(text.startswith("going on") for text in self.said)
            stage = 2 if asked or (on and self.stage == 2) else 1
            return stage == self.stage and self.done >= self.at

    for stage, step in ((1, 5), (2, 1), (2, 8), (2, 12), (2, 13), (2, 24), (2, 33), (2, 36)):
        with pytest.raises(Stopped):
            auto(work, "parts", Stops(stage, step), **more)
    auto(work, "parts", **more)
    same_run(work / "whole", work / "parts")


class Killed(BaseException):
    """Nothing of ours catches it."""


KILLED: dict[str, tuple[Any, str, int, bool]] = {
    # What is being done, how often it was done before, and whether it still is done.
    "while stage 1 is asked": (PosteriorWriter, "write", 2, False),
    "before the first table is there": (PosteriorWriter, "finish", 0, False),
    "when the first table is there": (PosteriorWriter, "finish", 0, True),
    "while the average is asked": (PosteriorWriter, "write", 8, False),
    "before the second table is there": (PosteriorWriter, "finish", 1, False),
    "before the last table is there": (PosteriorWriter, "finish", 2, False),
    "when the second table is there and no checkpoint": (PosteriorWriter, "finish", 1, True),
    "when the prior is written": (Prior, "write", 0, True),
    "in the first step of all": (teacher.Teacher, "view", 0, False),
    "in mid-epoch": (teacher.Teacher, "view", 15, True),
    "when the result is written": (RunFolder, "finish", 1, True),
}


@pytest.mark.parametrize("when", KILLED)
def test_killed_anywhere_and_resumed_is_the_same(
    whole: Path, work: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    kind, name, before, done = KILLED[when]
    calls = 0
    original = getattr(kind, name)

    def killing(*given: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == before + 1 and not done:
            raise Killed
        result = original(*given, **options)
        if calls == before + 1:
            raise Killed
        return result

    with monkeypatch.context() as patch:
        patch.setattr(kind, name, killing)
        with pytest.raises(Killed):
            auto(work)
    auto(work)
    same_run(whole, work / "run")


def test_a_damaged_checkpoint_before_a_table_is_passed_over(whole: Path, work: Path) -> None:
    """So that the run goes on from before the average was asked, with the table there already."""
    with pytest.raises(Stopped):
        auto(work, watcher=AtStep(STEPS * 4))
    (*_, last) = sorted((work / "run" / "checkpoints").iterdir())
    assert (work / "run" / "posteriors" / "epoch-0004").is_dir()
    (last / "average.safetensors").write_bytes(b"")
    watcher = Quiet()
    auto(work, watcher=watcher)
    assert f"going on from step {STEPS * 3} of 36" in watcher.said
    same_run(whole, work / "run")


class AtStep(Quiet):
    """Asks to stop at a step of the second stage."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.at = step

    def stopping(self) -> bool:
        return any(text.startswith("asking it") for text in self.said) and self.done >= self.at


@pytest.mark.parametrize(
    ("processes", "backbone"), [(1, "test_convnext"), (2, "test_resnet")], ids=["one", "two"]
)
def test_killed_at_random_moments_and_resumed_is_the_same(
    work: Path, processes: int, backbone: str
) -> None:
    """Two with BatchNorm, whose moving averages differ in mid-epoch: the main one's is asked."""
    more: dict[str, Any] = {"train": {"epochs": 4, "checkpoint_steps": 1, "log_steps": 1}}
    made = values(work, model={"backbone": backbone}, **more)
    path = work / "run.toml"
    path.write_text(tomli_w.dumps(made))
    finish(start("train", path, "--out", work / "whole", processes=processes))
    rng = np.random.default_rng(processes)
    for stage, target in (
        ("stage1", int(rng.integers(14))),
        (".", 1),
        (".", int(rng.integers(26))),
    ):
        process = start("train", path, "--out", work / "parts", processes=processes)
        log = work / "parts" / stage / "metrics.jsonl"
        began = time.monotonic()
        while process.poll() is None and time.monotonic() - began < 120:
            if log.exists() and log.read_text().count("\n") > target:
                break
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    finish(start("train", path, "--out", work / "parts", processes=processes))
    same_run(work / "whole", work / "parts")


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_a_table_that_is_lost_says_what_to_do(work: Path, how: str) -> None:
    with pytest.raises(Stopped):
        auto(work, watcher=AtStep(STEPS * 4 + 1))
    table = work / "run" / "posteriors" / "epoch-0004"
    if how == "gone":
        shutil.rmtree(table)
    else:
        (table / "logits.npy").write_bytes(b"")
    with pytest.raises(StoreError, match=r"epoch-0004: .*; start anew with --fresh"):
        auto(work)


def test_posteriors_for_other_settings_are_not_taken(work: Path) -> None:
    """The first table was made, and nothing of the second stage is there yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teacher.Teacher, "view", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            auto(work)
    assert (work / "run" / "posteriors" / "epoch-0000").is_dir()
    with pytest.raises(UsageError, match=r"stage1: has a run with other settings \(train.seed"):
        auto(work, train={"epochs": EPOCHS, "seed": 5})


# ---------------------------------------------------------------- processes, parts, pictures


def test_two_processes_are_one(work: Path) -> None:
    path = work / "run.toml"
    path.write_text(tomli_w.dumps(values(work, train={"epochs": 3})))
    for count in (1, 2):
        finish(start("train", path, "--out", work / f"p{count}", processes=count))
    for part in ("", "stage1"):
        close(work / "p1" / part, work / "p2" / part)
    one, two = (Prior.read(work / f"p{count}" / "prior.csv") for count in (1, 2))
    np.testing.assert_allclose(one.values, two.values, rtol=1e-3)
    assert not (work / "p2" / "posteriors").exists()


def test_one_process_begins_and_two_go_on(work: Path) -> None:
    more: dict[str, Any] = {"train": {"epochs": 3}}
    auto(work, "whole", **more)
    with pytest.raises(Stopped):
        auto(work, "mixed", AtStep(4), **more)
    path = work / "run.toml"
    path.write_text(tomli_w.dumps(values(work, "mixed", **more)))
    _, err = finish(start("train", path, processes=2))
    assert "going on from step 4 of 18" in err
    close(work / "whole", work / "mixed")


def test_parts_are_the_whole(work: Path) -> None:
    for parts in (1, 2):
        auto(work, f"parts{parts}", train={"accumulate": parts, "epochs": 3})
    close(work / "parts1", work / "parts2")


def test_resident_is_streamed(work: Path) -> None:
    for resident in (False, True):
        images = {"augment": "paper", "device_resident": resident}
        auto(work, f"resident-{resident}", images=images)
    same_run(work / "resident-False", work / "resident-True")


@pytest.mark.parametrize("resident", [False, True])
def test_an_image_that_cannot_be_read(tmp_path: Path, resident: bool) -> None:
    make_data(tmp_path)
    (tmp_path / "images" / "007.jpg").write_bytes(b"")
    more: dict[str, Any] = {"images": {"max_skipped": 0.1, "device_resident": resident}}
    found = auto(tmp_path, "whole", **more)
    assert found["steps"] == STEPS * EPOCHS
    names = ["skipped.csv"] if resident else ["skipped.csv", "skipped-posteriors.csv"]
    for name in names:
        assert [row["image_id"] for row in read_csv(tmp_path / "whole" / name)] == [
            "images/007.jpg"
        ]
    with pytest.raises(Stopped):
        auto(tmp_path, "parts", AtStep(13), **more)
    auto(tmp_path, "parts", **more)
    same_run(tmp_path / "whole", tmp_path / "parts")


def test_early_stop(work: Path) -> None:
    more: dict[str, Any] = {
        "optim": {"lr": 1e-12, "ema_decay": 0.0},  # nothing gets better
        "train": {"epochs": 9, "early_stop": 3},
    }
    found = auto(work, **more)
    assert found["steps"] == STEPS * 4
    assert not (work / "run" / "posteriors").exists()
    before = lines(work / "run")
    with pytest.raises(Stopped):
        auto(work, "parts", AtStep(20), **more)
    assert auto(work, "parts", **more) == found
    assert lines(work / "parts") == before


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision(work: Path, precision: str) -> None:
    found = auto(work, train={"precision": precision, "epochs": 3})
    assert found["steps"] == 3 * STEPS
    assert all(np.isfinite(line["loss"]) for line in lines(work / "run") if "loss" in line)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("images", ["streamed", "resident"])
@pytest.mark.parametrize("capture", [False, True])
def test_on_a_gpu(work: Path, images: str, capture: bool) -> None:
    more: dict[str, Any] = {
        "train": {"device": "cuda", "capture": capture},
        "images": {"device_resident": images == "resident"},
    }
    found = auto(work, "whole", **more)
    assert found["map_c"] > 0.8
    with pytest.raises(Stopped):
        auto(work, "parts", AtStep(STEPS * 4 + 2), **more)
    assert auto(work, "parts", **more)["map_c"] == pytest.approx(found["map_c"], abs=0.02)


# ---------------------------------------------------------------- the first stage


def test_the_first_stage_may_be_another(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With images of another size and another seed: it is asked with those it knows."""
    sizes: list[int] = []
    models: list[int] = []
    held: list[set[tuple[int, int, int]]] = []
    ask, calibrate = teacher.ask, firststage.calibrate

    def asking(source: Any, batches: Any, rows: Any, store: LabelStore, **more: Any) -> Any:
        sizes.append(next(iter(batches(rows[:1]))).images.shape[-1])
        held.append(set(zip(*(part.tolist() for part in store.batch(rows)), strict=True)))
        return ask(source, batches, rows, store, **more)

    for name in ("head_of", "heads_of"):
        source = getattr(teacher, name)

        def made_of(model: Any, precision: str, source: Any = source) -> Any:
            models.append(model.info.size)
            return source(model, precision)

        monkeypatch.setattr(teacher, name, made_of)

    def calibrating(seen: Any, there: Any, *given: Any, **more: Any) -> Any:
        assert len(there.logits) == len(held[0])
        return calibrate(seen, there, *given, **more)

    monkeypatch.setattr(teacher, "ask", asking)
    monkeypatch.setattr(firststage, "calibrate", calibrating)
    other = {
        "train": {"epochs": 1, "seed": 5},
        "model": {"backbone": "test_resnet"},
        "images": {"size": 24},
    }
    auto(work, prior={"stage1": other, "sample": 40})
    assert sizes == [24, 24, 32, 32, 32, 32]
    assert models == [24, 32, 32]
    config = RunFolder(work / "run" / "stage1").config
    assert (config.train.epochs, config.train.seed, config.train.hold_out) == (1, 5, True)
    store = LabelStore.open(work / "data.labels").split("train")
    _, wanted = hold_out(store, held_out_share(store.counts()), seed=5)
    rows = np.arange(len(store))
    not_shown = set(zip(*(part.tolist() for part in wanted.batch(rows)), strict=True))
    assert held == [not_shown] * 6  # and not what the seed of the second stage would hold out


def test_held_out_labels_are_not_trained_on(work: Path) -> None:
    """A run may hold them out by itself; they are those of its seed."""
    config = Config.from_dict(settings(work, train={"hold_out": True}, prior={"source": "none"}))
    run = Run(config, processes=Processes(), watcher=Quiet())
    rows = np.arange(len(run.whole.store))
    left, held = (store.dense(rows) for store in (run.train.store, run.held_back(0)[1]))
    assert (held != 0).sum() > 5
    assert not (left * held).any()
    np.testing.assert_array_equal(left + held, run.whole.store.dense(rows))
    run()
    train(settings(work, prior={"source": "none"}) | {"out": str(work / "all")})
    with pytest.raises(AssertionError):
        same(work / "run", work / "all")


def test_auto_with_labels_held_out_of_the_second_stage_too(work: Path) -> None:
    found = auto(work, train={"epochs": 3, "hold_out": True})
    assert found["steps"] == 3 * STEPS


# ---------------------------------------------------------------- what it needs, what it refuses


def relabelled(data: Path, folder: Path, keep: int | None) -> Path:
    """The same pictures with complete labels, or with one state of them."""
    (folder / "images").symlink_to(data / "images")
    if keep is None:
        (folder / "images").unlink()
        return complete_data(folder)
    store = LabelStore.open(data / "data.labels")
    position, _, states = store.batch(np.arange(len(store)))
    train = np.isin(position, store.images.rows("train"))
    chosen = (states == keep) | ~train
    lengths = np.bincount(position[chosen], minlength=len(store))
    made = store.with_labels(np.concatenate([[0], np.cumsum(lengths)]), store.codes[chosen])
    return made.save(folder / "data.labels")


def test_complete_labels_need_no_first_stage(data: Path, tmp_path: Path) -> None:
    relabelled(data, tmp_path, None)
    found = auto(tmp_path, train={"epochs": 3})
    assert found["steps"] == 3 * STEPS
    assert not (tmp_path / "run" / "stage1").exists()
    assert not (tmp_path / "run" / "posteriors").exists()
    text = write_report(tmp_path / "run", say=lambda _: None).read_text()
    assert "does not use one" not in text


def test_labels_without_an_absent_one_train_as_hill_does(data: Path, tmp_path: Path) -> None:
    """In one stage, since nothing can be calibrated by them; and it says so."""
    relabelled(data, tmp_path, 1)
    watcher = Quiet()
    made = values(tmp_path, train={"epochs": 3})
    made["loss"]["params"] = {"gamma_neg": 2.0, "reduction": "sum"}
    assert train(made, watcher)["steps"] == 3 * STEPS
    (warning,) = (text for text in watcher.said if "verified absent" in text)
    assert "no label is verified absent" in warning
    assert "hill" in warning
    assert not (tmp_path / "run" / "stage1").exists()
    hill = {"name": "hill", "params": {"reduction": "sum"}}
    train({**made, "loss": hill, "out": str(tmp_path / "other")})
    same(tmp_path / "run", tmp_path / "other")


def test_labels_without_a_present_one_train(data: Path, tmp_path: Path) -> None:
    """There is nothing to learn, but nothing to stumble over either."""
    relabelled(data, tmp_path, -1)
    watcher = Quiet()
    assert auto(tmp_path, watcher=watcher, train={"epochs": 3})["steps"] == 3 * STEPS
    assert any("annotations were held out" in text for text in watcher.said)


@pytest.mark.parametrize("source", ["none", "online", "./prior.csv"])
def test_another_prior_is_refused(in_tmp: Path, source: str) -> None:
    path = in_tmp / "run.toml"
    path.write_text(tomli_w.dumps(values(in_tmp, prior={"source": source})))
    with pytest.raises(
        ConfigError, match=r'\[prior\] source: must be "estimate" for the loss auto'
    ):
        Config.read(path)
    with pytest.raises(ConfigError, match=r"--set prior.source: must be"):
        Config.from_dict(values(in_tmp), sets=[f"prior.source={source}"])


def test_a_prior_cannot_be_calibrated_online(in_tmp: Path) -> None:
    made = settings(in_tmp, prior={"source": "online", "use": "calibrated"})
    with pytest.raises(ConfigError, match=r'\[prior\] use: cannot be "calibrated" with .*online'):
        Config.from_dict(made)


# ---------------------------------------------------------------- the prior alone


def same_prior(one: Path, two: Path) -> None:
    """To the digits that a csv has; and what they were estimated from."""
    first, second = Prior.read(one).classes.values(), Prior.read(two).classes.values()
    for name in ("prior", "mean", "em"):
        values = [[getattr(entry, name) for entry in prior] for prior in (first, second)]
        np.testing.assert_allclose(*values, rtol=1e-7)


CALIBRATED = {"source": "estimate", "top_n": 1, "use": "calibrated"}


def test_a_calibrated_prior_for_another_loss(work: Path) -> None:
    train(settings(work, prior=CALIBRATED))
    stage = RunFolder(work / "run" / "stage1").config
    assert stage.train.hold_out
    assert stage.train.epochs == 2  # it is the paper's first stage, not that of auto
    prior = Prior.read(work / "run" / "prior.csv")
    assert {entry.method for entry in prior.classes.values()} == {"calibrated"}
    same_prior(work / "run" / "stage1" / "prior-calibrated-all.csv", work / "run" / "prior.csv")
    chosen = weights(work / "run")["loss-0/frequent"]
    assert int(chosen.sum()) == 1


def test_a_calibrated_prior_needs_unknown_labels(data: Path, tmp_path: Path) -> None:
    relabelled(data, tmp_path, None)
    with pytest.raises(UsageError, match="complete labels, so there is nothing to estimate"):
        train(settings(tmp_path, prior=CALIBRATED))
    with pytest.raises(UsageError, match="complete labels, so there is nothing to estimate"):
        train(settings(tmp_path, prior={"source": "none"}, train={"hold_out": True}))


def test_the_command_estimates_a_calibrated_prior(work: Path) -> None:
    path = work / "run.toml"
    path.write_text(tomli_w.dumps(settings(work)))
    estimate = ("prior", "estimate", path)
    finish(start(*estimate, "--use", "calibrated", "--out", work / "a.csv"))
    first = Prior.read(work / "a.csv")
    assert {entry.method for entry in first.classes.values()} == {"calibrated"}
    stage = work / "run" / "stage1"
    by_run = ("prior", "estimate", "--run", stage)
    finish(start(*by_run, "--use", "calibrated", "--out", work / "b.csv"))
    same_prior(work / "b.csv", work / "a.csv")
    finish(start(*by_run, "--out", work / "c.csv"))
    third = Prior.read(work / "c.csv")
    assert {entry.method for entry in third.classes.values()} == {"mean"}


def test_the_command_gives_the_prior_that_a_run_with_auto_writes(whole: Path, work: Path) -> None:
    path = work / "run.toml"
    path.write_text(tomli_w.dumps(values(work)))
    finish(start("prior", "estimate", path, "--out", work / "a.csv"))
    same_prior(work / "a.csv", whole / "prior.csv")
    finish(start("prior", "estimate", path, "--use", "em", "--out", work / "b.csv"))
    assert {e.method for e in Prior.read(work / "b.csv").classes.values()} == {"em"}


def test_a_run_on_all_annotations_cannot_be_calibrated(work: Path) -> None:
    loss = {"name": "ce", "params": {"unknown": "ignore"}}
    train({**settings(work, prior={"source": "none"}), "loss": loss})
    command = ("prior", "estimate", "--run", work / "run", "--use", "calibrated")
    _, err = finish(start(*command, "--out", work / "a.csv"), code=2)
    assert "was trained on all annotations, none is left to calibrate it by" in err
    assert "[train] hold_out = true" in err
    assert len(err.splitlines()) == 1
    np.save(work / "scores.npy", np.zeros((64, 5), np.float32))
    by_scores = ("--scores", work / "scores.npy", "--labels", work / "data.labels")
    command = ("prior", "estimate", *by_scores, "--use", "calibrated")
    _, err = finish(start(*command, "--out", work / "a.csv"), code=2)
    assert "--use calibrated needs a model that was not shown some annotations" in err
    assert "give RUN.toml, or --run FOLDER" in err
    assert not (work / "a.csv").exists()


# ---------------------------------------------------------------- comparisons and reports


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("complete")
    complete_data(folder, images=24, val=12)
    return folder


def test_a_comparison_with_auto(tmp_path: Path, complete: Path) -> None:
    compared = {"methods": ["ignore", "auto"], "schemes": ["rpa:0.5"], "keep": "none"}
    comparison, heard = made(tmp_path, complete, compared, train={"epochs": 3}), Heard()
    assert comparison.run(heard) == []
    ignore, found = comparison.results()
    assert (ignore.method, found.method) == ("ignore", "auto")
    assert (found.title, found.steps, ignore.steps) == ("Auto", 9, 9)
    assert 0 < found.map_c <= 1
    assert np.isnan(ignore.prior_spearman)
    assert np.isfinite([found.prior_spearman, found.prior_sum]).all()
    folder = tmp_path / "out"
    assert (folder / "priors" / f"{found.key}.csv").is_file()
    runs = folder / "runs"
    assert (runs / "auto" / "rpa-0.5" / "seed0" / "stage1" / "config.toml").is_file()
    assert not list(runs.rglob("step-*"))
    assert not list(runs.rglob("posteriors"))
    heard = Heard()
    assert made(tmp_path, complete, compared, train={"epochs": 3}).run(heard) == []
    assert heard.cells() == []
    page = write_report(folder, say=lambda _: None).read_text()
    assert "Auto" in read(page, "methods")
    assert "the loss auto counts that part of its unknown labels" in read(page, "frequency")
    assert "selective loss" not in read(page, "frequency")
    assert "rank correlation" in read(page, "summary")


def test_the_cell_of_a_comparison_is_what_train_gives(tmp_path: Path, complete: Path) -> None:
    compared = {"methods": ["auto"], "schemes": ["fpc:6", "complete"], "keep": "all"}
    images = {"device_resident": True}
    comparison = made(tmp_path, complete, compared, train={"epochs": 3}, images=images)
    assert comparison.run(Heard()) == []
    for cell, row in zip(comparison.cells, comparison.results(), strict=True):
        assert np.isnan(row.prior_sum) == (str(cell.scheme) == "complete")
        config = cell.config.replaced(out=str(tmp_path / cell.key))
        Run(config, processes=Processes(), watcher=Quiet())()
        same(cell.folder, tmp_path / cell.key)


def test_a_comparison_that_was_moved_goes_on(tmp_path: Path, complete: Path) -> None:
    """Of the first stage, too, the paths are those of today."""
    (tmp_path / "one").mkdir()
    compared = {"methods": ["auto"], "schemes": ["rpa:0.5"], "keep": "all"}
    more: dict[str, Any] = {"train": {"epochs": 3}}

    class Stops(Heard):
        def stopping(self) -> bool:
            return self.steps >= 9 + 4

    with pytest.raises(Stopped):
        made(tmp_path / "one", complete, compared, **more).run(Stops())
    (tmp_path / "one").rename(tmp_path / "two")
    path = tmp_path / "two" / "file.toml"
    heard = Heard()
    again = Comparison.read(path, out=tmp_path / "two" / "out")
    assert again.run(heard) == []
    assert "going on from step 4 of 9" in heard.said
    other = made(tmp_path / "two", complete, {**compared, "keep": "all"}, **more)
    assert [row.key for row in other.results()] == [row.key for row in again.results()]


def test_what_a_comparison_takes_of_a_file(tmp_path: Path) -> None:
    define = {
        "mine": {"based_on": "auto", "loss": {"params": {"gamma_unknown": 2}}},
        "own": {"based_on": "ignore", "loss": {"name": "auto"}},
        "back": {"based_on": "auto", "loss": {"name": "selective"}},
    }
    prior = {
        "source": "none",
        "top_n": 1,
        "images": 9,
        "sample": 16,
        "stage1": {"train": {"epochs": 1}},
    }
    compared = {"methods": ["auto", "csl", *define], "define": define}
    configs = made(tmp_path, tmp_path / "no", compared, prior=prior).plan.configs
    for name in ("auto", "mine", "own"):
        config = configs[name]
        assert config.loss.name == "auto"
        assert config.prior.source == "estimate"
        assert (config.prior.top_n, config.prior.images) == (None, None)
    assert configs["auto"].loss.params == {}
    assert configs["auto"].prior.sample == 16
    assert configs["auto"].prior.stage1 == {"train": {"epochs": 1}}
    assert configs["mine"].loss.params == {"gamma_unknown": 2}
    assert (configs["back"].loss.name, configs["back"].prior.source) == ("selective", "estimate")
    assert (configs["csl"].prior.source, configs["csl"].prior.top_n) == ("estimate", 1)


def test_a_report_of_a_run(whole: Path, work: Path) -> None:
    page = write_report(whole, out=work / "page" / "r.html", say=lambda _: None).read_text()
    summary = read(page, "summary")
    assert re.search(
        r"The first stage, which was not shown some annotations, had "
        r"[\d.]+.%: a difference of", summary,
    )  # fmt: skip
    assert "Auto" in read(page, "methods")
    assert "Estimated" in read(page, "classes")
    assert "Probably missing" in read(page, "gallery")
    assert "ignored" not in read(page, "gallery").lower()
    assert "selective loss" not in read(page, "frequency")
    assert "does not use one" not in page


def test_a_report_of_a_run_that_has_just_begun(work: Path) -> None:
    with pytest.raises(Stopped):
        auto(work, watcher=Quiet(stop_after=5))
    heard: list[str] = []
    page = write_report(work / "run", say=heard.append).read_text()
    assert "the run has not come to it yet" in page
