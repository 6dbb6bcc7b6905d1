"""Checkpoints: everything comes back, damage is passed over, what does not fit is refused."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from partlabel import ClassTable, LabelStore
from partlabel.errors import ClassMismatchError, PartlabelError, StoreError
from partlabel.losses import PartialLoss, build_loss
from partlabel.model import build_model, description
from partlabel.prediction.pictures import find_images
from partlabel.prediction.predict import Predictor
from partlabel.training import checkpoint
from partlabel.training.loop import Stopped
from partlabel.training.optim import make_optimiser
from tests.runs import CLASSES, SIZE, lines, make_data, settings, write_run
from tests.test_faults import mounted
from tests.test_train import Quiet, same, train

NAMES = ClassTable(["a", "b"], ["first", "second"])


def saved(folder: Path, step: int = 1, **more: Any) -> Path:
    """Write a small checkpoint."""
    tensors = more.pop("tensors", {"model": {"w": torch.full((3,), float(step))}})
    keep = more.pop("keep", 2)
    made = checkpoint.Checkpoint(step, NAMES, {"backbone": "x"}, tensors, **more)
    return checkpoint.save(folder, made, keep=keep)


def through_disk(folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Any:
    """Save and load some tensors and facts."""
    path = saved(folder, tensors={"part": tensors}, facts=facts)
    found = checkpoint.load(path)
    assert found.facts == facts
    return found.tensors["part"], found.facts


# There and back


class Odd(nn.Module):
    """Tensors that share memory, by name or in part, and others that are unusual."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        flat = torch.arange(12.0)
        if kind == "tied":
            self.two.weight = self.one.weight
            self.register_buffer("front", flat[:8])
            self.register_buffer("end", flat[8:])
        elif kind == "overlapping":
            self.register_buffer("front", flat[:8])
            self.register_buffer("end", flat[4:])
        else:
            self.register_buffer("turned", flat.reshape(3, 4).t())
            self.register_buffer("nothing", torch.zeros(0))
            self.register_buffer("number", torch.tensor(7))
            self.register_buffer("narrow", torch.ones(2, dtype=torch.bfloat16))


@pytest.mark.parametrize("kind", ["tied", "overlapping", "unusual"])
def test_a_module_comes_back_whatever_its_tensors_share(kind: str, tmp_path: Path) -> None:
    module, other = Odd(kind), Odd(kind)
    wanted = {key: value.clone() for key, value in module.state_dict().items()}
    tensors, facts = through_disk(tmp_path, *checkpoint.module_tensors(module))
    checkpoint.load_module(other, tensors, facts)
    for key, value in other.state_dict().items():
        assert torch.equal(value, wanted[key]), key
        assert value.dtype == wanted[key].dtype, key
    assert (other.two.weight is other.one.weight) == (kind == "tied")


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_an_optimiser_goes_on_as_if_nothing_had_happened(name: str, tmp_path: Path) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        loss = build_loss("role", num_images=5, num_classes=2)
        optimiser = make_optimiser(model, loss, name=name, lr=0.1, weight_decay=0.1)
        return nn.ModuleList([model, loss]), optimiser

    def steps(both: nn.Module, optimiser: torch.optim.Optimizer, first: int, last: int) -> None:
        for step in range(first, last):
            torch.manual_seed(step)
            states = torch.randint(-1, 2, (3, 2), dtype=torch.int8)
            index = torch.randint(0, 5, (3,))
            optimiser.zero_grad()
            both[1](both[0](torch.randn(3, 3)), states, index=index).backward()
            optimiser.step()

    whole, optimiser = make()
    steps(whole, optimiser, 0, 6)
    first, optimiser = make()
    steps(first, optimiser, 0, 3)
    tensors, _ = through_disk(tmp_path, checkpoint.optimiser_tensors(optimiser), {})
    second, optimiser = make()
    checkpoint.load_optimiser(optimiser, tensors)
    second.load_state_dict(first.state_dict())
    steps(second, optimiser, 3, 6)
    for (key, one), two in zip(whole.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two), key


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("large_loss", {"variant": "permanent", "delta": 0.1}),
        ("entropy_max", {"num_images": 8, "num_classes": 4, "warmup": 1, "epochs": 4}),
        ("role", {"num_images": 8, "num_classes": 4}),
        ("selective", {"prior": torch.tensor([0.9, 0.1, 0.6, 0.2]), "top_k": 1}),
    ],
)
@pytest.mark.parametrize("stop", [0, 1, 4, 7])
def test_a_loss_goes_on_as_if_nothing_had_happened(
    name: str, params: dict[str, Any], stop: int, tmp_path: Path
) -> None:
    """Four batches of two images in an epoch; stopped before, within, between and late."""
    takes = {"large_loss": ("epoch", "index"), "entropy_max": ("epoch", "index")}
    names = takes.get(name, ("index",) if name == "role" else ())
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(16, 2, 4, generator=generator)
    states = torch.randint(-1, 2, (16, 2, 4), dtype=torch.int8, generator=generator)

    def values(loss: PartialLoss, first: int, last: int) -> list[Tensor]:
        found = []
        for step in range(first, last):
            more = {"epoch": step // 4, "index": torch.tensor([2 * (step % 4), 2 * (step % 4) + 1])}
            given = {key: more[key] for key in names}
            found.append(loss(logits[step], states[step], **given).detach())
        return found

    whole = values(build_loss(name, **params), 0, 16)
    begun = build_loss(name, **params)
    values(begun, 0, stop)
    tensors, facts = through_disk(tmp_path, *checkpoint.module_tensors(begun))
    resumed = build_loss(name, **params)
    checkpoint.load_module(resumed, tensors, facts)
    assert torch.equal(torch.stack(values(resumed, stop, 16)), torch.stack(whole[stop:]))


def test_everything_else_comes_back(tmp_path: Path) -> None:
    facts = {
        "best": [-float("inf"), 0, 0.25],
        "skipped": [[3, "is \u201cempty\u201d"]],
        "scaler": {},
    }
    path = saved(tmp_path, 12, facts=facts)
    assert path.name == "step-00000012"
    found = checkpoint.load(path)
    assert (found.step, found.facts, found.path) == (12, facts, path)
    assert found.classes == NAMES
    assert found.description == {"backbone": "x"}
    assert {file.suffix for file in path.iterdir()} == {".json", ".csv", ".safetensors"}


def test_some_parts_can_be_loaded_alone(tmp_path: Path) -> None:
    parts = {name: {"w": torch.ones(1)} for name in ("model", "average", "optimiser")}
    path = saved(tmp_path, tensors=parts)
    (path / "optimiser.safetensors").unlink()
    assert checkpoint.load(path, parts=["average"]).tensors.keys() == {"average"}
    with pytest.raises(StoreError, match=r"damaged checkpoint \(.*optimiser\.safetensors"):
        checkpoint.load(path)


# Which are kept


def names(folder: Path) -> list[int]:
    assert all(not path.name.startswith(".") for path in folder.iterdir())
    return [int(path.name[5:]) for path in checkpoint.all_of(folder)]


@pytest.mark.parametrize(
    ("keep", "left"), [(1, [9]), (2, [8, 9]), (3, [3, 8, 9]), (9, [1, 3, 8, 9])]
)
def test_the_newest_are_kept(keep: int, left: list[int], tmp_path: Path) -> None:
    for step in (1, 3, 8, 9):
        saved(tmp_path, step, keep=keep)
    assert names(tmp_path) == left
    newest = checkpoint.newest(tmp_path)
    assert newest is not None
    assert newest.name == "step-00000009"
    assert checkpoint.newest(tmp_path / "none") is None


def test_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    saved(tmp_path, 4)
    path = saved(tmp_path, 4, tensors={"model": {"w": torch.zeros(1)}})
    assert names(tmp_path) == [4]
    assert checkpoint.load(path).tensors["model"]["w"].tolist() == [0.0]


@pytest.mark.parametrize("keep", [1, 2])
def test_what_was_just_written_is_kept_though_damaged_ones_are_newer(
    keep: int, tmp_path: Path
) -> None:
    """Resumed from before a damaged one: the first good one that comes must not be removed."""
    for step in (2, 4, 6):
        saved(tmp_path, step, keep=9)
    for step in (4, 6):
        (tmp_path / f"step-{step:08d}" / "model.safetensors").write_bytes(b"")
    path = saved(tmp_path, 3, keep=keep)
    assert path.is_dir()
    assert checkpoint.load(path).step == 3


# A full disk


def full(tensors: Any, path: Path) -> None:
    """What safetensors does on a full disk."""
    Path(path).write_bytes(b"half of it")
    raise SafetensorError(
        "Error while serializing: I/O error: No space left on device (os error 28)"
    )


def no_space(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["tensors", "classes", "flush"])
@pytest.mark.parametrize("before", [0, 1])
def test_a_full_disk_is_one_line_and_the_last_good_one_loads(
    where: str, before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(before):
        saved(tmp_path, step + 1)
    with monkeypatch.context() as patch:
        if where == "tensors":
            patch.setattr(safetensors.torch, "save_file", full)
        elif where == "classes":
            patch.setattr(ClassTable, "write", no_space)
        else:
            patch.setattr("partlabel.folder._flush", no_space)
        with pytest.raises(StoreError, match="no space left on the disk") as caught:
            saved(tmp_path, 5)
    text = str(caught.value)
    assert "step-00000005: cannot write the checkpoint" in text
    assert ("the last good one is step-00000001" if before else "there is none yet") in text
    assert "run the same command again" in text
    assert names(tmp_path) == [1] * before
    for path in checkpoint.all_of(tmp_path):
        assert checkpoint.load(path).tensors["model"]["w"].tolist() == [1.0] * 3


def test_the_last_good_one_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged one that is newer is not what a full disk leaves us with."""
    saved(tmp_path, 2)
    saved(tmp_path, 6)
    (tmp_path / "step-00000006" / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(StoreError, match="the last good one is step-00000002"):
        saved(tmp_path, 3)


# Runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, ``whole``: a run to its end, and ``part``: one stopped at step 8 of 12."""
    folder = tmp_path_factory.mktemp("run")
    make_data(folder)
    train(values(folder, "whole"))
    with pytest.raises(Stopped):
        train(values(folder, "part"), Quiet(stop_after=8))
    assert names(folder / "part" / "checkpoints") == [6, 8]
    return folder


def values(folder: Path, out: str | Path, **sections: Any) -> dict[str, Any]:
    made = settings(folder, **{"prior": {"source": "none"}, **sections})
    return {**made, "out": str(folder / out)}


@pytest.fixture
def stopped(run: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run, to go on with."""
    return Path(shutil.copytree(run / "part", tmp_path / "part"))


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def a_line_less(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("state.json", half),
        ("state.json", Path.unlink),
        ("classes.csv", emptied),
        ("classes.csv", half),
        ("classes.csv", a_line_less),
        ("model.safetensors", half),
        ("average.safetensors", Path.unlink),
        ("optimiser.safetensors", emptied),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_damage_is_passed_over_with_a_warning(
    file: str, damage: Callable[[Path], None], run: Path, stopped: Path
) -> None:
    damage(stopped / "checkpoints" / "step-00000008" / file)
    watcher = Quiet()
    train(values(run, stopped), watcher)
    warned = [text for text in watcher.said if text.startswith("warning:")]
    assert len(warned) == 1
    assert "step-00000008" in warned[0]
    assert "trying the one before" in warned[0]
    assert "going on from step 6 of 12" in watcher.said
    same(run / "whole", stopped)
    assert lines(run / "whole") == lines(stopped)


@pytest.mark.slow
def test_where_all_are_damaged_it_starts_anew(run: Path, stopped: Path) -> None:
    for path in checkpoint.all_of(stopped / "checkpoints"):
        half(path / "model.safetensors")
    watcher = Quiet()
    train(values(run, stopped), watcher)
    assert len([text for text in watcher.said if text.startswith("warning:")]) == 2
    same(run / "whole", stopped)
    assert lines(run / "whole") == lines(stopped)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["model.safetensors", "state.json"])
def test_a_prediction_takes_the_newest_that_is_whole(part: str, run: Path, stopped: Path) -> None:
    assert Predictor.open(stopped).step == 8
    half(stopped / "checkpoints" / "step-00000008" / part)
    # Weights that are not asked for are not read.
    assert Predictor.open(stopped).step == (8 if part == "model.safetensors" else 6)


def other_store(folder: Path, classes: list[str]) -> Path:
    store = LabelStore.open(folder / "data.labels")
    store.classes = ClassTable(classes)
    return store.save(folder / f"{'-'.join(classes)}.labels")


OTHERS: dict[str, tuple[dict[str, Any], type[PartlabelError], str]] = {
    "other classes": (
        {"classes": [*CLASSES[:4], "dotted"]},
        ClassMismatchError,
        r"made for other classes: .*1 only in .*dotted.*1 only in .*striped",
    ),
    "other order": (
        {"classes": CLASSES[::-1]},
        ClassMismatchError,
        "made for the same classes in another order",
    ),
    "other backbone": (
        {"model": {"backbone": "test_resnet"}},
        StoreError,
        r"made for another model: backbone is 'test_convnext\S*' there and 'test_resnet\S*' here",
    ),
    "other head": (
        {"model": {"head": "bottleneck"}},
        StoreError,
        "made for another model: head is 'linear' there and 'bottleneck' here",
    ),
    "other size": (
        {"images": {"size": 40}},
        StoreError,
        "made for another model: size is 32 there and 40 here",
    ),
    "another prior": (
        {"prior": {"source": "online", "top_n": 1}},
        StoreError,
        "made for another model: auxiliary is False there and True here",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS)
def test_a_checkpoint_of_something_else_is_refused_with_the_difference(
    case: str, run: Path, tmp_path: Path
) -> None:
    changes, error, text = OTHERS[case]
    changes = dict(changes)
    classes = changes.pop("classes", None)
    if classes is not None:
        changes["data"] = {"train": str(other_store(run, classes))}
    # The settings of the run are not there, so that the checkpoint itself must tell.
    theirs = shutil.copytree(run / "part" / "checkpoints", tmp_path / "other" / "checkpoints")
    with pytest.raises(error, match=text) as caught:
        train(values(run, tmp_path / "other", **changes))
    assert str(theirs / "step-00000008") in str(caught.value)
    assert names(theirs) == [6, 8]


@pytest.mark.slow
def test_a_newer_format_is_refused_and_nothing_older_taken(run: Path, stopped: Path) -> None:
    path = stopped / "checkpoints" / "step-00000008" / "state.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "format": checkpoint.FORMAT + 1}))
    text = rf"format {checkpoint.FORMAT + 1} is newer than this partlabel \({checkpoint.FORMAT}\)"
    with pytest.raises(StoreError, match=text):
        train(values(run, stopped))
    with pytest.raises(StoreError, match=text):
        Predictor.open(stopped)
    assert names(stopped / "checkpoints") == [6, 8]


@pytest.mark.slow
def test_no_pickle_is_ever_loaded(
    run: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a pickle was loaded")

    for place, name in ((torch, "load"), (pickle, "load"), (pickle, "loads")):
        monkeypatch.setattr(place, name, refused)
    monkeypatch.setattr(pickle, "Unpickler", refused)
    train(values(run, stopped))
    same(run / "whole", stopped)
    scored = list(Predictor.open(stopped).scores(find_images([run / "images"])))
    assert sum(len(some.pictures) for some in scored) == 64
    found = [file for file in stopped.rglob("*") if file.is_file()]
    assert {file.suffix for file in found} <= {".csv", ".json", ".jsonl", ".parquet",
                                               ".safetensors", ".toml"}  # fmt: skip
    assert not [
        file for file in found if file.read_bytes()[:2] in (b"PK", b"\x80\x02", b"\x80\x04")
    ]


def test_a_model_without_its_weights_file_says_what_to_do(tmp_path: Path) -> None:
    model = build_model("test_convnext", 2, weights=None, image_size=SIZE)
    made = checkpoint.Checkpoint(3, NAMES, description(model), {"average": model.state_dict()})
    path = checkpoint.save(tmp_path / "checkpoints", made)
    checkpoint.refuse_other(checkpoint.load(path), NAMES, description(model))
    half(path / "average.safetensors")
    with pytest.raises(StoreError, match=r"damaged checkpoint .*remove it"):
        checkpoint.load(path)


# A disk that really is full


@pytest.mark.slow
def test_a_disk_that_fills_up_and_is_made_larger(run: Path, tmp_path: Path) -> None:
    """The third checkpoint of 3.3 MB has no room; then there is."""
    for name in ("data.labels", "images"):
        (tmp_path / name).symlink_to(run / name)
    path = write_run(tmp_path, prior={"source": "none"}, train={"checkpoint_steps": 4, "keep": 9})
    train_it = f"$PARTLABEL train {shlex.quote(str(path))} --out run"
    commands = f"""
        {train_it} > out.txt 2> ../first.txt; echo $? > ../code.txt
        cp -r run ../left || exit 91
        mount -o remount,size=64m . || exit 92
        {train_it} > ../second.txt 2>&1 || exit 93
        cp -r run ../done || exit 94;
    """
    if shutil.which("unshare") is None or mounted(tmp_path, "size=64k", ":;").returncode != 0:
        pytest.skip("no private mounts here")
    done = mounted(tmp_path, "size=8000k", commands)
    said = (tmp_path / "first.txt").read_text()
    assert done.returncode == 0, done.stdout + done.stderr + said
    assert (tmp_path / "code.txt").read_text().strip() == "2", said
    last = said.splitlines()[-1]
    there = checkpoint.newest(tmp_path / "left" / "checkpoints")
    assert there is not None
    assert "cannot write the checkpoint (no space left on the disk)" in last
    assert f"the last good one is {there.name}" in last
    assert checkpoint.load(there).step == int(there.name[5:])
    assert all(not name.startswith(".") for name in os.listdir(there.parent))
    assert "going on from step" in (tmp_path / "second.txt").read_text()
    same(run / "whole", tmp_path / "done")
    assert lines(run / "whole") == lines(tmp_path / "done")


@pytest.mark.slow
def test_a_disk_without_room_for_a_line_of_the_log(run: Path, tmp_path: Path) -> None:
    """Full before the first line is logged: one line too, not a traceback."""
    for name in ("data.labels", "images"):
        (tmp_path / name).symlink_to(run / name)
    path = write_run(tmp_path, prior={"source": "none"})
    commands = f"""
        mkdir run && touch run/metrics.jsonl
        $PARTLABEL train {shlex.quote(str(path))} --out run > ../out.txt 2> ../err.txt &
        while [ ! -s run/environment.json ] && kill -0 $!; do sleep 0.01; done
        dd if=/dev/zero of=filler bs=1024 2> /dev/null
        wait $!; echo $? > ../code.txt;
    """
    if shutil.which("unshare") is None or mounted(tmp_path, "size=64k", ":;").returncode != 0:
        pytest.skip("no private mounts here")
    done = mounted(tmp_path, "size=1024k", commands)
    said = (tmp_path / "err.txt").read_text()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in said
    assert (tmp_path / "code.txt").read_text().strip() == "2", said
    assert "no space left" in said.lower()
