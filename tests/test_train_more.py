"""Training, the rest: parts and processes, early stop, evaluation, priors, refusals."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from partlabel import ClassTable, LabelStore
from partlabel.cli import main
from partlabel.config import Config
from partlabel.errors import ClassMismatchError, StoreError
from partlabel.prior import Prior, count_prior
from partlabel.training import checkpoint
from partlabel.training.loop import Stopped
from partlabel.training.processes import Processes
from partlabel.training.stages import Run
from tests.runs import CLASSES, finish, lines, make_data, settings, start, weights, write_run
from tests.test_train import Quiet, read_csv, same, train

pytestmark = pytest.mark.slow

NONE = {"source": "none"}


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


def run(work: Path, out: str, *, watcher: Quiet | None = None, **sections: Any) -> dict[str, Any]:
    """Train without a first stage, unless a prior is asked for."""
    values = settings(work, **{"prior": NONE, **sections})
    if sections.get("loss"):
        values["loss"] = sections["loss"]
    return train({**values, "out": str(work / out)}, watcher)


def close(one: Path, two: Path, *, rel: float = 1e-3) -> None:
    """The same to float tolerance: weights, average and everything logged."""
    first, second = weights(one), weights(two)
    assert first.keys() == second.keys()
    for key, value in first.items():
        if key.startswith(("model", "average")):
            torch.testing.assert_close(value, second[key], rtol=rel, atol=1e-4, msg=key)
    for a, b in zip(lines(one), lines(two), strict=True):
        assert a.keys() == b.keys()
        for key, value in a.items():
            exact = not isinstance(value, float)
            assert value == (b[key] if exact else pytest.approx(b[key], rel=rel)), (key, a, b)


# Parts and processes


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("parts", [2, 4])
def test_parts_are_the_whole(work: Path, parts: int, reduction: str) -> None:
    """The loss that is logged too: it does not depend on how a batch is cut."""
    more: dict[str, Any] = {
        "loss": {"name": "selective", "params": {"top_k": 1, "reduction": reduction}},
        "optim": {"clip_grad": 5.0},
    }
    for number in (1, parts):
        run(work, f"parts{number}", train={"accumulate": number}, **more)
    close(work / "parts1", work / f"parts{parts}")


def rewind(folder: Path, step: int) -> None:
    """Make a run that was at its end one that was killed after a checkpoint."""
    (folder / "result.json").unlink()
    for path in checkpoint.all_of(folder / "checkpoints"):
        if int(path.name[5:]) > step:
            shutil.rmtree(path)


def test_one_process_then_two_then_one(work: Path) -> None:
    more: dict[str, Any] = {"train": {"checkpoint_steps": 4, "keep": 9}}
    run(work, "whole", **more)
    with pytest.raises(Stopped):
        run(work, "mixed", watcher=Quiet(stop_after=2), **more)
    path = write_run(work, prior=NONE, **more)
    _, err = finish(start("train", path, "--out", work / "mixed", processes=2))
    assert "going on from step 2 of 12" in err
    close(work / "whole", work / "mixed")
    rewind(work / "mixed", 8)
    watcher = Quiet()
    run(work, "mixed", watcher=watcher, **more)
    assert "going on from step 8 of 12" in watcher.said
    close(work / "whole", work / "mixed")


LOSSES: dict[str, tuple[dict[str, Any], bool]] = {
    "selective": ({"top_k": 1}, False),
    "expected_positive": ({}, False),  # looks at the whole batch, but remembers nothing
    "large_loss": ({"variant": "reject"}, False),
    "permanent": ({"name": "large_loss", "variant": "permanent"}, True),
    "entropy_max": ({"warmup": 1}, True),
    "role": ({}, False),  # its estimates are parameters, the same on all
}


def of_two_processes(path: Path) -> None:
    """Make a checkpoint of one process one of two, each with the same state."""
    state = json.loads((path / "state.json").read_text())
    facts = state["facts"]
    facts |= {"world": 2, "loss": facts["loss"] * 2, "loss_sums": facts["loss_sums"] * 2}
    if "loss-0" in state["parts"]:
        state["parts"]["loss-1"] = state["parts"]["loss-0"]
        shutil.copy(path / "loss-0.safetensors", path / "loss-1.safetensors")
    (path / "state.json").write_text(json.dumps(state))


@pytest.mark.parametrize("case", LOSSES)
def test_only_a_loss_with_a_state_of_its_own_asks_for_as_many_processes(
    work: Path, case: str
) -> None:
    params, refused = LOSSES[case]
    params = dict(params)
    loss = {"loss": {"name": params.pop("name", case), "params": params}}
    with pytest.raises(Stopped):
        run(work, "run", watcher=Quiet(stop_after=7), **loss)
    newest = checkpoint.newest(work / "run" / "checkpoints")
    assert newest is not None
    of_two_processes(newest)
    if refused:
        text = "keeps state in each of 2 processes; resume with as many, not with 1"
        with pytest.raises(StoreError, match=text):
            run(work, "run", **loss)
    else:
        assert run(work, "run", **loss)["steps"] == 12


def test_a_prior_is_no_state_of_a_process(work: Path) -> None:
    """The selective loss over the batch has one and the same prior everywhere."""
    count_prior(LabelStore.open(work / "data.labels")).write(work / "given.csv")
    more: dict[str, Any] = {
        "loss": {"name": "selective", "params": {"top_k": 1, "scope": "batch"}},
        "prior": {"source": str(work / "given.csv"), "top_n": 1},
    }
    with pytest.raises(Stopped):
        run(work, "run", watcher=Quiet(stop_after=7), **more)
    newest = checkpoint.newest(work / "run" / "checkpoints")
    assert newest is not None
    of_two_processes(newest)
    assert run(work, "run", **more)["steps"] == 12


# When it ends, and what is measured


STILL = {"optim": {"lr": 1e-12, "ema_decay": 0.0}}  # nothing gets better


def evaluated(folder: Path) -> list[int]:
    """The epochs after which it was, from 1."""
    return [line["epoch"] + 1 for line in lines(folder) if line["kind"] == "eval"]


@pytest.mark.parametrize("patience", [1, 2])
def test_early_stop(work: Path, patience: int) -> None:
    more: dict[str, Any] = {**STILL, "train": {"epochs": 9, "early_stop": patience, "keep": 9}}
    found = run(work, "run", **more)
    assert found["steps"] == 6 * (1 + patience)
    assert evaluated(work / "run") == list(range(1, 2 + patience))
    assert found["best_map_c"] == lines(work / "run")[-1]["map_c"]
    before = lines(work / "run")
    # Killed before it was written that it had come to its end, or an epoch before.
    for step in (found["steps"], found["steps"] - 6):
        rewind(work / "run", step)
        assert run(work, "run", **more) == found
        assert lines(work / "run") == before


def test_early_stop_waits_for_an_evaluation(work: Path) -> None:
    """Whether it is better is known after every second epoch: at the fourth, not the third."""
    more: dict[str, Any] = {**STILL, "train": {"epochs": 8, "early_stop": 1}}
    found = run(work, "run", eval={"every": 2}, **more)
    assert evaluated(work / "run") == [2, 4]
    assert found["steps"] == 24


def test_no_early_stop_while_it_gets_better(work: Path) -> None:
    more: dict[str, Any] = {"train": {"epochs": 4}, "optim": {"lr": 2e-3, "ema_decay": 0.9}}
    found = run(work, "plain", **more)
    more["train"]["early_stop"] = 4
    assert run(work, "stop", **more) == found
    same(work / "plain", work / "stop")


@pytest.mark.parametrize(
    ("every", "epochs", "after"), [(1, 3, [1, 2, 3]), (2, 3, [2, 3]), (2, 4, [2, 4]), (9, 2, [2])]
)
def test_evaluation_now_and_then(work: Path, every: int, epochs: int, after: list[int]) -> None:
    found = run(work, "run", train={"epochs": epochs}, eval={"every": every})
    assert evaluated(work / "run") == after
    last = [line for line in lines(work / "run") if line["kind"] == "eval"][-1]
    assert last["map_c"] == found["map_c"]


def test_the_average_alone(work: Path) -> None:
    both, alone = run(work, "both"), run(work, "alone", eval={"ema_only": True})
    same(work / "both", work / "alone")
    assert both["map_c"] == alone["map_c"]
    ones, twos = ([x for x in lines(work / n) if x["kind"] == "eval"] for n in ("both", "alone"))
    assert [line["map_c"] for line in ones] == [line["map_c"] for line in twos]
    assert all("regular_map_c" in line for line in ones)
    assert all("regular_map_c" not in line for line in twos)
    assert twos[-1]["reference_best"] == max(line["map_c"] for line in twos)
    pairs = [max(line["map_c"], line["regular_map_c"]) for line in ones]
    assert ones[-1]["reference_best"] == max(pairs)


def test_a_validation_set_that_scores_nothing_is_said_once(work: Path) -> None:
    """With its name and what would do, not in every epoch and without file and line."""
    store = LabelStore.open(work / "data.labels")
    (work / "data.labels").unlink()
    there = store.split("val").images
    ids = {there.show_id(row) for row in range(len(there))}
    kept = [store.images.show_id(row) not in ids for row in range(len(store))]
    lengths = np.diff(store.indptr)
    codes = np.array(store.codes)[np.repeat(kept, lengths)]
    indptr = np.concatenate([[0], np.cumsum(lengths * kept)])
    store.with_labels(indptr, codes).save(work / "data.labels")
    watcher = Quiet()
    train(settings(work, prior={"source": "none"}, train={"epochs": 3}), watcher)
    (said,) = (text for text in watcher.said if "no class has both" in text)
    assert "which is evaluated on" in said
    assert "import --val" in said


@pytest.mark.parametrize("augment", ["none", "paper"])
def test_resident_is_streamed(work: Path, augment: str) -> None:
    for resident in (False, True):
        images = {"augment": augment, "device_resident": resident}
        run(work, f"resident-{resident}", images=images, prior={"source": "estimate", "top_n": 1})
    one, two = work / "resident-False", work / "resident-True"
    same(one, two)
    assert lines(one) == lines(two)
    for name in ("prior.csv", "thresholds.csv", "classes.csv"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def split_stores(work: Path) -> LabelStore:
    """``train.labels`` and ``val.labels``, each with one split; gives the second."""
    whole = LabelStore.open(work / "data.labels")
    whole.split("train").save(work / "train.labels")
    val = whole.split("val")
    val.save(work / "val.labels")
    return val


def reordered(store: LabelStore, classes: list[str]) -> LabelStore:
    """The same labels with the classes in another order."""
    from tests.conftest import store_from

    columns = [store.classes.index[name] for name in classes]
    rows = np.arange(len(store))
    ids = store.images.table["id"].to_pylist()
    made = store_from(
        store.dense(rows)[:, columns], ids=ids, paths=store.images.paths(rows), classes=classes
    )
    made.origin = store.origin
    return made


def predictions(folder: Path) -> dict[tuple[str, str], float]:
    rows = pq.read_table(folder / "predictions.parquet").to_pylist()
    return {(row["image_id"], row["class_id"]): row["score"] for row in rows}


def test_a_store_for_validation_whatever_the_order_of_its_classes(work: Path) -> None:
    val = split_stores(work)
    reordered(val, [*CLASSES[2:], *CLASSES[:2]]).save(work / "turned.labels")
    together = run(work, "together")
    for name in ("val", "turned"):
        stores = {"train": str(work / "train.labels"), "val": str(work / f"{name}.labels")}
        found = run(work, name, data=stores)
        assert {k: found[k] for k in ("map_c", "map_o")} == pytest.approx(
            {k: together[k] for k in ("map_c", "map_o")}, abs=1e-12
        )
        same(work / "together", work / name)
        assert predictions(work / name) == predictions(work / "together")
        tables = [
            {row["class_id"]: row for row in read_csv(work / n / "classes.csv")}
            for n in (name, "together")
        ]
        assert tables[0] == tables[1]


def test_a_store_for_validation_of_other_classes_is_refused(work: Path) -> None:
    val = split_stores(work)
    val.classes = ClassTable([*CLASSES[:3], "dark", "dotted"])
    val.save(work / "other.labels")
    stores = {"train": str(work / "train.labels"), "val": str(work / "other.labels")}
    text = r"other\.labels and .*train\.labels: .*2 only in .*dark, dotted.*2 only in .*bright, str"
    with pytest.raises(ClassMismatchError, match=text):
        run(work, "run", data=stores)
    assert not (work / "run").exists()


def test_unreadable_images_of_validation_are_said(tmp_path: Path) -> None:
    """A score over fewer images is not to be taken for one over all."""
    make_data(tmp_path)
    (tmp_path / "images" / "050.jpg").write_bytes(b"")
    watcher = Quiet()
    run(tmp_path, "run", watcher=watcher)
    skipped = tmp_path / "run" / "skipped.csv"
    said = " ".join(watcher.said) + (skipped.read_text() if skipped.exists() else "")
    assert "050.jpg" in said


@pytest.mark.parametrize("stop", [101, 130])
def test_a_run_goes_on_though_a_few_images_could_not_be_read(tmp_path: Path, stop: int) -> None:
    """Those of before count against all images seen, not those since it went on."""
    make_data(tmp_path, images=400, val=4)
    for i in range(0, 400, 100):
        (tmp_path / "images" / f"{i:03d}.jpg").write_bytes(b"")
    more: dict[str, Any] = {
        "train": {"batch_size": 4, "epochs": 2, "log_steps": 1},
        "images": {"augment": "none", "max_skipped": 0.02},
    }
    with pytest.raises(Stopped):
        run(tmp_path, "run", watcher=Quiet(stop_after=stop), **more)
    assert run(tmp_path, "run", **more)["steps"] == 200
    assert len((tmp_path / "run" / "skipped.csv").read_text().splitlines()) == 5


def test_a_block_of_missing_images_is_no_more_than_its_images(tmp_path: Path) -> None:
    """As where a shard was lost: next to each other, but fewer than are allowed."""
    make_data(tmp_path, images=400, val=4)
    for i in range(200, 320):
        (tmp_path / "images" / f"{i:03d}.jpg").unlink()
    run(tmp_path, "run", train={"epochs": 1}, images={"max_skipped": 0.4, "augment": "none"})
    assert len(read_csv(tmp_path / "run" / "skipped.csv")) == 120


# Stages and priors


class StopsInStage(Quiet):
    """Asks to stop at a step of the first or second stage."""

    def __init__(self, stage: int, step: int) -> None:
        super().__init__()
        self.stage, self.at = stage, step

    def stopping(self) -> bool:
        stage = 2 if any("estimating the prior" in text for text in self.said) else 1
        return stage == self.stage and self.done == self.at


ESTIMATE: dict[str, Any] = {"prior": {"source": "estimate", "top_n": 1}}


def test_the_first_stage_is_not_trained_twice(work: Path) -> None:
    run(work, "whole", **ESTIMATE)
    with pytest.raises(Stopped):
        run(work, "parts", watcher=StopsInStage(1, 8), **ESTIMATE)
    watcher = StopsInStage(2, 7)
    with pytest.raises(Stopped):
        run(work, "parts", watcher=watcher, **ESTIMATE)
    assert "going on from step 8 of 12" in watcher.said
    stage = work / "parts" / "stage1"
    kept = [
        stage / name
        for name in ("metrics.jsonl", "prior-mean-all.csv", "result.json", "checkpoints")
    ]
    before = [path.stat().st_mtime_ns for path in kept]
    watcher = Quiet()
    run(work, "parts", watcher=watcher, **ESTIMATE)
    assert not [text for text in watcher.said if "stage 1" in text or "estimating" in text]
    assert "going on from step 7 of 12" in watcher.said
    assert [path.stat().st_mtime_ns for path in kept] == before
    for part in ("", "stage1"):
        same(work / "whole" / part, work / "parts" / part)
        assert lines(work / "whole" / part) == lines(work / "parts" / part)
    assert (work / "whole" / "prior.csv").read_text() == (work / "parts" / "prior.csv").read_text()


def test_the_first_stage_may_be_another(work: Path) -> None:
    other = {"train": {"epochs": 1}, "model": {"backbone": "test_resnet"}, "images": {"size": 24}}
    run(work, "run", prior={"source": "estimate", "top_n": 1, "images": 20, "stage1": other})
    written = Config.read(work / "run" / "stage1" / "config.toml")
    assert (written.train.epochs, written.model.backbone, written.images.size) == (
        1, "test_resnet", 24,
    )  # fmt: skip
    assert (written.loss.name, written.loss.params) == ("ce", {"unknown": "ignore"})
    assert len(lines(work / "run" / "stage1")) < len(lines(work / "run"))


@pytest.mark.parametrize("change", [{"use": "em"}, {"images": 10}], ids=str)
def test_another_way_to_estimate_is_not_answered_with_the_prior_of_before(
    work: Path, change: dict[str, Any]
) -> None:
    """The model of the first stage is kept; what it said was for other settings."""

    def estimated(out: str, **more: Any) -> list[float]:
        values = settings(work, prior={"source": "estimate", **more})
        config = Config.from_dict({**values, "out": str(work / out)})
        found = Run(config, processes=Processes(), watcher=Quiet()).estimated()
        return [float(value) for value in found.values]

    before = estimated("run")
    wanted = estimated("other", **change)
    assert wanted != before
    assert estimated("run", **change) == wanted


def given_prior(path: Path, **values: float) -> Path:
    rows = [f"{name},{values.get(name, 0.1)}" for name in CLASSES]
    path.write_text("\n".join(["class_id,prior", *rows, ""]))
    return path


def test_a_prior_from_a_file(work: Path) -> None:
    path = given_prior(work / "given.csv", blue=0.9)
    run(work, "given", prior={"source": str(path), "top_n": 1})
    assert not (work / "given" / "stage1").exists()
    assert Prior.read(work / "given" / "prior.csv").values.tolist() == [0.1, 0.1, 0.9, 0.1, 0.1]
    loss = {key: value for key, value in weights(work / "given").items() if key.startswith("loss")}
    assert loss["loss-0/frequent"].tolist() == [False, False, True, False, False]
    # It decides what is learnt: with another one the weights are others.
    other = given_prior(work / "other.csv", red=0.9)
    run(work, "other", prior={"source": str(other), "top_n": 1})
    with pytest.raises(AssertionError):
        same(work / "given", work / "other")


def test_a_prior_estimated_online(work: Path) -> None:
    online: dict[str, Any] = {"prior": {"source": "online", "top_n": 1}}
    run(work, "run", **online)
    assert not (work / "run" / "stage1").exists()
    prior = Prior.read(work / "run" / "prior.csv")
    assert list(prior.classes) == CLASSES
    assert ((prior.values > 0) & (prior.values < 1)).all()
    found = weights(work / "run")
    torch.testing.assert_close(
        found["loss-0/prior"], prior.align(ClassTable(CLASSES)), rtol=1e-6, atol=1e-7
    )
    assert int(found["loss-0/frequent"].sum()) == 1
    # The backbone and head do not notice the other head, as long as there is no prior.
    run(work, "short", train={"epochs": 1}, **online)
    run(work, "plain", train={"epochs": 1})
    one, two = weights(work / "short"), weights(work / "plain")
    for key in (key for key in two if key.startswith("model/")):
        assert torch.equal(one[key], two[key]), key


# Presets and precisions


def test_the_preset_of_the_paper_s_code(work: Path) -> None:
    values = settings(work, prior=NONE, train={"preset": "reference"})
    values["loss"] = {"name": "selective"}
    config = Config.from_dict(values)
    assert config.optim.name == "adam"
    assert config.loss.params == {"reduction": "sum", "scope": "batch"}
    assert train(values)["steps"] == 12
    again = Config.read(work / "run" / "config.toml")
    assert again.hash() == config.hash()
    losses = [line["loss"] for line in lines(work / "run") if line["kind"] == "train"]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_half_precision(work: Path, precision: str, clip: float | None) -> None:
    more: dict[str, Any] = {"optim": {"clip_grad": clip}} if clip else {}
    full = run(work, "fp32", train={"precision": "fp32"}, **more)
    half: dict[str, Any] = {"train": {"precision": precision}, **more}
    found = run(work, "half", **half)
    assert found["map_c"] == pytest.approx(full["map_c"], abs=0.15)
    assert {value.dtype for key, value in weights(work / "half").items() if "model" in key} == {
        torch.float32
    }
    first, second = (lines(work / name) for name in ("fp32", "half"))
    assert first[0]["loss"] == pytest.approx(second[0]["loss"], rel=0.02)
    with pytest.raises(Stopped):
        run(work, "parts", watcher=Quiet(stop_after=5), **half)
    run(work, "parts", **half)
    same(work / "half", work / "parts")


# Mistakes


MISTAKES: dict[str, tuple[list[str], str]] = {
    "backbone": (["model.backbone=test_convnexxt"], "did you mean test_convnext"),
    "weights": (["model.weights=./nowhere.pth"], "nowhere.pth"),
    "image root": (["images.root=./nowhere"], "nowhere: no such folder"),
    "other image root": (["images.root=./data.labels"], "data.labels: has none of"),
    "split": (["data.split=trian"], "there is no split 'trian'; the splits are: train, val"),
    "validation split": (["data.val_split=vla"], "there is no split 'vla'"),
    "store": (["data.train=./nowhere.labels"], "nowhere.labels"),
    "large batch": (["train.batch_size=49"], "batch_size: 49 exceeds the 48 images"),
    "uneven batch": (["train.batch_size=9", "train.accumulate=2"], "9 cannot be cut evenly"),
    "uneven batch of stage 1": (["prior.stage1.train.batch_size=49"], "49 exceeds the 48"),
    "loss": (["loss.name=selectiv"], "did you mean selective?"),
    "loss setting": (["loss.params.top_kk=1"], "top_k"),
    "class to show": (["eval.classes=['gren']"], "no class 'gren'; did you mean green?"),
    "prior file": (["prior.source=./nowhere.csv"], "nowhere.csv: no such file"),
    "prior of other classes": (["prior.source=./given.csv"], "the prior lacks 1 of 5 classes"),
    "device": (["train.device=cuda:7"], "[train] device"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(
    case: str,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if case == "device" and torch.cuda.is_available():
        pytest.skip("it may be there")
    sets, text = MISTAKES[case]
    path = write_run(work)
    given_prior(work / "given.csv").write_text(
        "class_id,prior\nred,0.1\ngreen,0.1\nblue,0.2\nbright,0.3\n"
    )
    before = set(work.rglob("*"))
    monkeypatch.chdir(work)
    words = [word for setting in sets for word in ("--set", setting)]
    monkeypatch.setattr(sys, "argv", ["partlabel", "train", str(path), *words])
    before_us = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        main()
    signal.signal(signal.SIGTERM, before_us)
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    *more, last = said.err.splitlines()
    assert last.startswith("error: ")
    assert text in last
    assert all(line.startswith("stage 1: ") for line in more)
    assert set(work.rglob("*")) == before


def test_a_mistake_does_not_cost_what_fresh_would_replace(work: Path) -> None:
    """--fresh removes the old run once it is clear that there can be a new one."""
    path = write_run(work, prior=NONE)
    run(work, "run")
    _, err = finish(start("train", path, "--fresh", "--set", "data.split=trian"), code=2)
    assert "there is no split" in err
    assert (work / "run" / "result.json").exists()
