"""Training as people run it: two stages, killed and resumed, on one process and two."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from partlabel import LOSSES, LabelStore, Prior
from partlabel.config import Config
from partlabel.errors import PartlabelError, UsageError
from partlabel.losses import takes_posterior
from partlabel.training.loop import Stopped
from partlabel.training.processes import Processes
from partlabel.training.stages import Run
from tests.runs import finish, lines, make_data, settings, start, weights, write_run

pytestmark = pytest.mark.slow


class Quiet:
    """Watches a run without a word; can ask it to stop after some steps."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.said: list[str] = []
        self.done = 0
        self.stop_after = stop_after

    def step(self, done: int, total: int, *, images: int, loss: float | None) -> None:
        self.done = done

    def within(self, what: str, done: int, total: int) -> None:
        assert 0 <= done <= total

    def say(self, text: str) -> None:
        self.said.append(text)

    def stopping(self) -> bool:
        return self.stop_after is not None and self.done >= self.stop_after


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make_data(folder)
    return folder


@pytest.fixture
def work(data: Path, tmp_path: Path) -> Path:
    """A folder with the data, to run in."""
    for name in ("data.labels", "images"):
        (tmp_path / name).symlink_to(data / name)
    return tmp_path


def train(values: dict[str, Any], watcher: Quiet | None = None) -> dict[str, Any]:
    config = Config.from_dict(values)
    return Run(config, processes=Processes(), watcher=watcher or Quiet())()


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def same(one: Path, two: Path) -> None:
    """Bit for bit."""
    first, second = weights(one), weights(two)
    assert first.keys() == second.keys()
    for key, value in first.items():
        assert torch.equal(value, second[key]), key


def test_a_run_leaves_everything_and_a_second_one_does_nothing(work: Path) -> None:
    path = write_run(work, eval={"classes": ["red"]})
    out, _ = finish(start("train", path))
    assert "mAP(C)" in out
    assert "AP of red" in out
    run = work / "run"
    wanted = {"config.toml", "metrics.jsonl", "environment.json", "prior.csv", "checkpoints"}
    wanted |= {"predictions.parquet", "thresholds.csv", "classes.csv", "result.json", "stage1"}
    assert wanted <= {entry.name for entry in run.iterdir()}
    assert Config.read(run / "config.toml").hash() == Config.read(path).hash()
    steps = [line["step"] for line in lines(run) if line["kind"] == "train"]
    assert steps == [3, 6, 9, 12]
    evaluated = [line for line in lines(run) if line["kind"] == "eval"]
    assert [line["step"] for line in evaluated] == [6, 12]
    assert all(0 < line["map_c"] <= 1 for line in evaluated)
    before = (run / "metrics.jsonl").stat().st_mtime_ns
    again, _ = finish(start("train", path))
    assert "mAP(C)" in again
    assert (run / "metrics.jsonl").stat().st_mtime_ns == before
    scored, _ = finish(
        start("evaluate", "--scores", run / "predictions.parquet", "--labels", work / "data.labels",
              "--split", "val", "--json")
    )  # fmt: skip
    assert json.loads(scored)["map_c"] == pytest.approx(evaluated[-1]["map_c"], abs=1e-12)
    by_model, _ = finish(start("evaluate", "--run", run, "--top-k", "2", "--json"))
    assert json.loads(by_model)["map_c"] == pytest.approx(evaluated[-1]["map_c"], abs=1e-6)
    assert "top 2" in json.loads(by_model)["points"]
    _, err = finish(start("evaluate", "-r", work), code=2)
    assert "is not a run folder" in err


def test_the_first_stage_alone_and_the_prior_of_a_run(work: Path) -> None:
    path = write_run(work)
    out, _ = finish(start("prior", "estimate", path, "--out", work / "a.csv"))
    assert "5 classes, sum of priors" in out
    assert not (work / "run" / "metrics.jsonl").exists()
    stage = work / "run" / "stage1"
    finish(start("prior", "estimate", "--run", stage, "--out", work / "b.csv"))
    first, second = (Prior.read(work / name) for name in ("a.csv", "b.csv"))
    np.testing.assert_allclose(first.values, second.values, rtol=1e-7)
    finish(start("train", path))
    assert (work / "run" / "prior.csv").read_text() == (work / "a.csv").read_text()


def test_it_learns(work: Path) -> None:
    found = train(settings(work, train={"epochs": 12}, prior={"source": "none"}))
    assert found["map_c"] > 0.8


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_trains(work: Path, name: str) -> None:
    params: dict[str, Any] = {"entropy_max": {"warmup": 1}}.get(name, {})
    prior = {"source": "estimate" if takes_posterior(name) else "none"}
    values = settings(work, prior=prior, train={"epochs": 2})
    values["loss"] = {"name": name, "params": params}
    found = train(values)
    assert found["steps"] == 12
    assert all(np.isfinite(line["loss"]) for line in lines(work / "run") if "loss" in line)


@pytest.mark.parametrize(
    ("backbone", "extra"),
    [
        ("test_convnext", {}),
        ("test_resnet", {"model": {"drop": 0.2}}),
        ("test_convnext", {"prior": {"source": "online", "top_n": 1}}),
        ("test_convnext", {"loss": {"name": "large_loss", "params": {"variant": "permanent"}}}),
        ("test_convnext", {"loss": {"name": "role", "params": {}}}),
        ("test_convnext", {"images": {"augment": "paper"}, "train": {"accumulate": 2}}),
    ],
    ids=["plain", "batchnorm and dropout", "online prior", "corrections", "role", "paper"],
)
def test_stopped_anywhere_and_resumed_is_the_same(
    work: Path, backbone: str, extra: dict[str, Any]
) -> None:
    def values(out: str) -> dict[str, Any]:
        made = settings(work, **{"prior": {"source": "none"}, **extra})
        made["model"] = {**made["model"], "backbone": backbone}
        return {**made, "out": str(work / out)}

    train(values("whole"))
    from partlabel.training.loop import Stopped

    for stop in (1, 4, 8):
        with pytest.raises(Stopped):
            train(values("parts"), Quiet(stop_after=stop))
    train(values("parts"))
    same(work / "whole", work / "parts")
    assert lines(work / "whole") == lines(work / "parts")


@pytest.mark.parametrize("processes", [1, 2])
def test_killed_at_a_random_moment_and_resumed_is_the_same(work: Path, processes: int) -> None:
    more: dict[str, Any] = {
        "prior": {"source": "none"},
        "train": {"epochs": 4, "checkpoint_steps": 5},
    }
    values = settings(work, **more)
    import tomli_w

    path = work / "run.toml"
    path.write_text(tomli_w.dumps(values))
    finish(start("train", path, "--out", work / "whole", processes=processes))
    rng = np.random.default_rng(processes)
    for _ in range(2):
        process = start("train", path, "--out", work / "parts", processes=processes)
        target = int(rng.integers(1, 20))
        began = time.monotonic()
        while process.poll() is None and time.monotonic() - began < 120:
            log = work / "parts" / "metrics.jsonl"
            if log.exists() and log.read_text().count("\n") * 3 > target:
                break
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    finish(start("train", path, "--out", work / "parts", processes=processes))
    same(work / "whole", work / "parts")
    assert lines(work / "whole") == lines(work / "parts")


def test_two_processes_are_one(work: Path) -> None:
    values = settings(work, prior={"source": "none"}, images={"augment": "paper"})
    import tomli_w

    path = work / "run.toml"
    path.write_text(tomli_w.dumps(values))
    for count in (1, 2):
        finish(start("train", path, "--out", work / f"p{count}", processes=count))
    one, two = weights(work / "p1"), weights(work / "p2")
    for key, value in one.items():
        if key.startswith(("model", "average")):
            torch.testing.assert_close(value, two[key], rtol=1e-3, atol=1e-4, msg=key)
    first, second = (lines(work / f"p{count}") for count in (1, 2))
    assert [line["step"] for line in first] == [line["step"] for line in second]
    for a, b in zip(first, second, strict=True):
        for key in ("loss", "map_c"):
            if key in a:
                assert a[key] == pytest.approx(b[key], rel=1e-3)


def test_ctrl_c_saves_and_the_same_command_goes_on(work: Path) -> None:
    path = write_run(work, train={"epochs": 40}, prior={"source": "none"})
    process = start("train", path)
    log = work / "run" / "metrics.jsonl"
    while process.poll() is None and not (log.exists() and log.read_text().count("\n") > 2):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    out, _ = finish(process, code=130)
    assert "the same command goes on" in out
    _, err = finish(start("train", path, "--set", "train.epochs=40"))
    assert "going on from step" in err


def test_unreadable_images_are_listed_and_too_many_stop_the_run(data: Path, tmp_path: Path) -> None:
    store = LabelStore.open(make_data(tmp_path, images=200, val=8))
    assert len(store) == 208
    (tmp_path / "images" / "003.jpg").write_bytes(b"")
    whole = (tmp_path / "images" / "004.jpg").read_bytes()
    (tmp_path / "images" / "004.jpg").write_bytes(whole[: len(whole) // 2])
    values = settings(tmp_path, prior={"source": "none"}, train={"epochs": 1})
    train(values)
    rows = read_csv(tmp_path / "run" / "skipped.csv")
    assert {row["image_id"] for row in rows} == {"images/003.jpg", "images/004.jpg"}
    for i in range(10, 200, 25):
        (tmp_path / "images" / f"{i:03d}.jpg").unlink()
    with pytest.raises(PartlabelError, match=r"images cannot be read, more than .*max_skipped"):
        train({**values, "out": str(tmp_path / "second")})
    rows = read_csv(tmp_path / "second" / "skipped.csv")
    assert len(rows) > 2


def test_a_loss_that_is_not_finite_stops_and_saves_the_ids(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from partlabel.training import loop as training

    calls = []

    def broken(self: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(batch.plan.rows)
        loss, whole = original(self, batch)
        return (loss, whole * float("nan")) if len(calls) == 3 else (loss, whole)

    original = training.Trainer._loss_of
    monkeypatch.setattr(training.Trainer, "_loss_of", broken)
    values = settings(work, prior={"source": "none"})
    with pytest.raises(PartlabelError, match=r"the loss is nan at step 2; the ids"):
        train(values)
    ids = (work / "run" / "not-finite-step-2.csv").read_text().splitlines()
    store = LabelStore.open(work / "data.labels").split("train")
    assert ids[1:] == [store.images.show_id(int(row)) for row in calls[2]]


def test_other_settings_in_the_same_folder_are_refused_with_the_difference(work: Path) -> None:
    path = write_run(work)
    finish(start("train", path, "--set", "prior.source=none"))
    _, err = finish(
        start("train", path, "--set", "prior.source=none",
              "--set", "optim.lr=0.5"),
        code=2,
    )  # fmt: skip
    assert "optim.lr" in err
    assert "--fresh" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("when", ["stage 1", "stage 2", "finished"])
@pytest.mark.parametrize("purpose", ["training", "validation"])
def test_other_labels_in_the_same_folder_are_refused(work: Path, when: str, purpose: str) -> None:
    """As many of the same images and classes: labels that were imported again, and are others."""
    values = settings(work)
    if when == "finished":
        train(values)
    else:
        with pytest.raises(Stopped):
            train(values, StopIn(second=when == "stage 2"))
    split = "train" if purpose == "training" else "val"
    swapped(work / "data.labels", split)
    with pytest.raises(UsageError, match=f"its {purpose} labels are others than they were") as seen:
        train(values)
    assert "--fresh" in str(seen.value)


def test_evaluation_on_other_labels_than_in_training_warns(work: Path) -> None:
    train(settings(work))
    evaluate = ("evaluate", "--run", work / "run")
    assert "other validation labels" not in finish(start(*evaluate))[1]
    swapped(work / "data.labels", "val")
    assert "has other validation labels than when" in finish(start(*evaluate))[1]
    # labels that are named are wanted
    named = ("--labels", work / "data.labels", "--split", "train")
    assert "other validation labels" not in finish(start(*evaluate, *named))[1]


class StopIn(Quiet):
    """Asks to stop in a stage."""

    def __init__(self, *, second: bool) -> None:
        super().__init__()
        self.second = second

    def stopping(self) -> bool:
        there = any("estimating the prior" in text for text in self.said)
        return there == self.second and self.done >= 3


def swapped(path: Path, split: str) -> None:
    """Turn one label of a split from present to absent or back."""
    store = LabelStore.open(path)
    ids = [store.images.show_id(row) for row in range(len(store))]
    row = ids.index(store.split(split).images.show_id(0))
    codes = np.array(store.codes)
    codes[store.indptr[row]] ^= 1 << (8 * codes.itemsize - 1)
    made = store.with_labels(np.array(store.indptr), codes)
    shutil.rmtree(path) if not path.is_symlink() else path.unlink()
    made.save(path)


@pytest.mark.gpu
@pytest.mark.parametrize("loss", ["selective", "large_loss"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_stopped_and_resumed_on_a_gpu(work: Path, loss: str, precision: str) -> None:
    from partlabel.training.loop import Stopped

    made = settings(
        work, prior={"source": "none"}, train={"device": "cuda", "precision": precision}
    )
    made["loss"] = {
        "name": loss,
        "params": {"variant": "permanent"} if loss == "large_loss" else {},
    }
    processes = Processes(device=torch.device("cuda", 0))
    config = Config.from_dict(made)
    with pytest.raises(Stopped):
        Run(config, processes=processes, watcher=Quiet(stop_after=8))()
    found = Run(config, processes=processes, watcher=Quiet())()
    assert found["steps"] == 12
    whole = Config.from_dict({**made, "out": str(work / "whole")})
    again = Run(whole, processes=processes, watcher=Quiet())()
    assert found["map_c"] == pytest.approx(again["map_c"], abs=0.1)
