"""The model's passes by replays: the same training as without, on a stand-in and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partlabel.config import Config
from partlabel.training import capture, loop, stages
from partlabel.training.capture import Captured, Passes, obstacle, passing, warm_up
from partlabel.training.loop import Stopped
from partlabel.training.processes import Processes
from partlabel.training.stages import Run
from tests.runs import finish, lines, make_data, settings, start, weights, write_run
from tests.test_train import Quiet, same

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

CASES: dict[str, dict[str, dict[str, Any]]] = {
    "plain": {},
    "parts": {"train": {"accumulate": 2}},
    "parts and clipping": {"train": {"accumulate": 4}, "optim": {"clip_grad": 0.5}},
    "online prior": {"prior": {"source": "online", "top_n": 1}},
    "online prior in parts": {
        "prior": {"source": "online", "top_n": 1},
        "train": {"accumulate": 2},
    },
    "two stages": {"prior": {"source": "estimate", "top_n": 1}},
    "dropout": {"model": {"drop": 0.5}},
    "bf16": {"train": {"precision": "bf16"}},
    "fp16": {"train": {"precision": "fp16"}},
    "fp16 in parts": {"train": {"precision": "fp16", "accumulate": 2}, "optim": {"clip_grad": 1.0}},
    "a loss that learns": {"loss": {"name": "role", "params": {}}},
    "adam, resident": {
        "optim": {"name": "adam"},
        "images": {"device_resident": True, "augment": "crop"},
    },
    "channels first": {"train": {"channels_last": False}},
}


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


def values(work: Path, out: str, case: str, *, captured: bool, device: str) -> dict[str, Any]:
    changes = CASES[case]
    made = settings(work, **{"prior": {"source": "none"}, **changes})
    made["model"] = {**made["model"], "backbone": "small"}
    made["loss"] = changes.get("loss", made["loss"])
    train = {"precision": "fp32", **made["train"], "capture": captured, "device": device}
    return {**made, "train": {**train, "log_steps": 1}, "out": str(work / out)}


def run(
    work: Path,
    out: str,
    case: str = "plain",
    *,
    captured: bool = True,
    device: str = "cpu",
    stop: int | None = None,
    **train: Any,
) -> list[str]:
    """Train, or a part of it; what was said."""
    made = values(work, out, case, captured=captured, device=device)
    made["train"] |= train
    where = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
    watcher = Quiet(stop)
    whole = Run(Config.from_dict(made), processes=Processes(device=where), watcher=watcher)
    if stop is None:
        whole()
    else:
        with pytest.raises(Stopped):
            whole()
    return watcher.said


# Settings


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_cuda])]
)
def test_seeding_is_that_of_torch(device: str) -> None:
    torch.manual_seed(2**62 + 1)
    wanted = torch.rand(3), torch.rand(3, device=device)
    Processes(device=torch.device(device)).seed(2**62 + 1)
    assert torch.equal(wanted[0], torch.rand(3))
    assert torch.equal(wanted[1], torch.rand(3, device=device))


def test_where_it_can_be() -> None:
    cuda = torch.device("cuda", 0)
    assert obstacle(Processes(device=cuda)) == ""
    assert obstacle(Processes(device=torch.device("cpu"))) == "without CUDA"
    assert obstacle(Processes(device=cuda, world=2)) == "with several processes"


@pytest.mark.slow
def test_on_a_cpu_it_is_said_and_nothing_changes(work: Path) -> None:
    said = run(work, "captured")
    assert "warning: [train] capture has no effect without CUDA" in said
    assert not any("[train] capture" in line for line in run(work, "plain", captured=False))
    same(work / "captured", work / "plain")
    assert lines(work / "captured") == lines(work / "plain")


# Without a GPU: replays that compute both passes again, from and to the same memory


class Again:
    """A replay that calls a function."""

    def __init__(self, replay: Callable[[], None]) -> None:
        self.replay = replay


recorded: list[nn.Module] = []


def stand_in(module: nn.Module, images: Tensor) -> Passes:
    """In place of :func:`partlabel.training.capture.record`, with its traps."""
    recorded.append(module)
    place = torch.zeros_like(images).copy_(images)
    once = passing(module, place)
    live: list[tuple[Tensor, ...]] = []
    learning: list[nn.Parameter] = []

    def first() -> tuple[Tensor, ...]:
        live[:] = [once()]
        return live[0]

    warm_up(module, first)
    found = live[0]
    outputs = tuple(torch.full_like(each, torch.nan).detach() for each in found)
    gradients = tuple(torch.full_like(each, torch.nan) for each in outputs)
    for parameter in module.parameters():
        learning.append(parameter)
        parameter.grad = torch.full_like(parameter, torch.nan)

    def forward() -> None:
        with torch.enable_grad():
            live[:] = [once()]
        for output, value in zip(outputs, live[0], strict=True):
            output.copy_(value.detach())
        for memory in kept:  # a graph's memory may be that of an activation in the forward pass
            memory.fill_(torch.nan)

    def backward() -> None:
        values = torch.autograd.grad(live.pop(), learning, gradients)
        for memory, value in zip(kept, values, strict=True):
            memory.copy_(value)

    kept = [parameter.grad for parameter in learning if parameter.grad is not None]
    return Passes(place, outputs, gradients, Again(forward), Again(backward))


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture on a CPU too."""
    monkeypatch.setattr(capture, "record", stand_in)
    for module in (loop, stages):
        monkeypatch.setattr(module, "obstacle", lambda processes: "")
    recorded.clear()


@pytest.mark.slow
@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize("case", CASES)
def test_replayed_is_the_same_to_the_bit(work: Path, case: str) -> None:
    run(work, "plain", case, captured=False)
    assert not recorded
    run(work, "replayed", case)
    assert len(recorded) == (2 if case == "two stages" else 1)
    same(work / "replayed", work / "plain")
    assert lines(work / "replayed") == lines(work / "plain")


@pytest.mark.slow
@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize("case", ["dropout", "fp16 in parts", "online prior"])
def test_replayed_stopped_and_resumed_is_the_same(work: Path, case: str) -> None:
    run(work, "plain", case, captured=False)
    for number, stop in enumerate((1, 4, 8)):
        run(work, "parts", case, stop=stop, captured=number != 1)  # with and without
    run(work, "parts", case)
    assert len(recorded) == 3
    same(work / "parts", work / "plain")
    assert lines(work / "parts") == lines(work / "plain")


@pytest.mark.slow
@pytest.mark.usefixtures("replayed")
def test_what_is_recorded_is_what_the_compiler_made(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled without graphs of the compiler's own, which could not be recorded."""
    run(work, "plain", captured=False)
    made: list[tuple[nn.Module, str]] = []

    def compiled(module: nn.Module, *, mode: str) -> nn.Module:
        made.append((nn.Sequential(module), mode))
        return made[-1][0]

    monkeypatch.setattr(torch, "compile", compiled)
    run(work, "compiled", compile=True)
    assert [mode for _, mode in made] == ["default"]
    assert recorded == [made[0][0]]
    same(work / "compiled", work / "plain")


class Net(nn.Module):
    """Has all that warming up could leave a trace in."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(6)
        self.body = nn.Linear(6, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, images: Tensor) -> tuple[Tensor, None]:
        return self.drop(self.body(self.norm(images))), None


@pytest.mark.usefixtures("replayed")
def test_recording_leaves_no_trace() -> None:
    """Statistics, gradients and random numbers are those of one pass alone."""
    net, other = Net(), Net()
    images = torch.randn(8, 6)
    captured = Captured(net)
    torch.manual_seed(3)
    logits, auxiliary = captured(images)
    assert auxiliary is None
    after = torch.rand(1)
    torch.manual_seed(3)
    wanted, _ = other(images)
    assert torch.equal(logits, wanted)
    assert torch.equal(after, torch.rand(1))
    for (name, buffer), value in zip(net.named_buffers(), other.buffers(), strict=True):
        assert torch.equal(buffer, value), name
    assert int(net.norm.num_batches_tracked) == 1
    logits.square().sum().backward()
    wanted.square().sum().backward()
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)


def test_a_pass_keeps_the_precision_around_it_and_no_weight_in_it() -> None:
    """A weight in half precision from autocast's cache would stay in a graph for good."""
    seen = []

    class Looks(nn.Module):
        def forward(self, images: Tensor) -> tuple[Tensor, None]:
            seen.append((torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()))
            return images @ images.T, None

    images = torch.randn(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        half = passing(Looks(), images)
        assert half()[0].dtype == torch.bfloat16
        assert torch.is_autocast_cache_enabled()
    full = passing(Looks(), images)
    assert full()[0].dtype == torch.float32
    assert seen == [(True, False), (False, False)]


@pytest.mark.usefixtures("replayed")
def test_gradients_are_in_the_same_place_and_of_one_step() -> None:
    net, other = Net(), Net()
    net.drop.p = other.drop.p = 0.0
    captured = Captured(net, parts=2)
    places: set[int] = set()
    for _ in range(3):
        captured.begin()
        other.zero_grad()
        for _ in range(2):
            images = torch.randn(8, 6)
            captured(images)[0].square().sum().backward()
            other(images)[0].square().sum().backward()
        for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
            assert mine.grad is not None
            assert theirs.grad is not None
            assert torch.equal(mine.grad, theirs.grad)
        places.add(net.body.weight.grad.data_ptr())  # type: ignore[union-attr]
    assert len(places) == 1


@pytest.mark.usefixtures("replayed")
def test_another_shape_is_refused() -> None:
    captured = Captured(Net())
    captured(torch.randn(8, 6))
    with pytest.raises(ValueError, match=r"images must be \(8, 6\) as when .*, got \(4, 6\)"):
        captured(torch.randn(4, 6))


# On a GPU


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions whose gradients do not depend on which thread comes first."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def close(one: Path, two: Path, *, rel: float, absolute: float) -> None:
    """Weights, average and losses to tolerance."""
    first, second = weights(one), weights(two)
    assert first.keys() == second.keys()
    for key, value in first.items():
        if key.startswith(("model", "average")):
            torch.testing.assert_close(value, second[key], rtol=rel, atol=absolute, msg=key)
    losses = [[x["loss"] for x in lines(path) if x["kind"] == "train"] for path in (one, two)]
    assert len(losses[0]) == 12
    assert losses[0] == pytest.approx(losses[1], rel=10 * rel)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("case", CASES)
def test_captured_is_uncaptured(work: Path, case: str) -> None:
    """A wrong gradient moves a weight by up to 2e-3 a step, so by 0.02 in all."""
    run(work, "plain", case, captured=False, device="cuda")
    said = run(work, "captured", case, device="cuda")
    assert not any("[train] capture" in line for line in said)
    half = "16" in case
    close(
        work / "captured",
        work / "plain",
        rel=1e-2 if half else 1e-3,
        absolute=2e-3 if half else 1e-4,
    )


@pytest.mark.gpu
@needs_cuda
@pytest.mark.usefixtures("steady")
@pytest.mark.filterwarnings("ignore:::torch")
@pytest.mark.parametrize("case", ["plain", "online prior", "parts", "bf16"])
def test_compiled_and_captured(work: Path, case: str) -> None:
    """A compiler rounds otherwise, so as near as half precision is."""
    run(work, "plain", case, captured=False, device="cuda")
    said = run(work, "compiled", case, device="cuda", compile=True)
    assert not any("[train] capture" in line for line in said)
    close(work / "compiled", work / "plain", rel=1e-2, absolute=2e-3)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("case", ["plain", "bf16", "dropout", "parts"])
def test_captured_is_uncaptured_to_the_bit(work: Path, case: str) -> None:
    run(work, "plain", case, captured=False, device="cuda")
    run(work, "captured", case, device="cuda")
    same(work / "captured", work / "plain")


@pytest.mark.gpu
@needs_cuda
@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("case", ["plain", "dropout", "fp16 in parts"])
def test_captured_stopped_and_resumed_is_the_same(work: Path, case: str) -> None:
    run(work, "plain", case, captured=False, device="cuda")
    run(work, "parts", case, stop=4, device="cuda")
    run(work, "parts", case, stop=8, captured=False, device="cuda")
    run(work, "parts", case, device="cuda")
    half = "16" in case
    close(
        work / "parts", work / "plain", rel=1e-2 if half else 1e-3, absolute=2e-3 if half else 1e-4
    )


@pytest.mark.gpu
@needs_cuda
def test_recording_on_a_gpu_leaves_no_trace() -> None:
    net, other = Net().cuda(), Net().cuda()
    images = torch.randn(8, 6, device="cuda")
    captured = Captured(net)
    for step in range(3):
        torch.manual_seed(step)
        logits, _ = captured(images)
        after = torch.rand(1, device="cuda")
        torch.manual_seed(step)
        other.zero_grad()
        wanted, _ = other(images)
        assert torch.equal(after, torch.rand(1, device="cuda"))
        torch.testing.assert_close(logits, wanted)
        assert torch.equal(logits == 0, wanted == 0)  # the same was dropped
        logits.square().sum().backward()
        wanted.square().sum().backward()
        for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)
        for (name, buffer), value in zip(net.named_buffers(), other.buffers(), strict=True):
            torch.testing.assert_close(buffer, value, msg=name)
    assert int(net.norm.num_batches_tracked) == 3


@pytest.mark.gpu
@needs_cuda
def test_captured_beside_workers_that_pin_memory(work: Path) -> None:
    """As on the command line: another thread calls CUDA while the passes are recorded."""
    path = write_run(
        work,
        prior={"source": "none"},
        images={"workers": 2},
        model={"backbone": "small"},
        train={"capture": True, "device": "cuda"},
    )
    out, err = finish(start("train", path))
    assert "mAP(C)" in out
    assert "[train] capture" not in err


@pytest.mark.gpu
@needs_cuda
def test_a_model_that_waits_for_the_host_cannot_be_recorded() -> None:
    """In a process of its own: a recording that failed may leave CUDA in disorder."""
    import subprocess
    import sys

    script = """
import torch
from torch import nn
from partlabel.errors import UsageError
from partlabel.training.capture import Captured

class Waits(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 4)

    def forward(self, images):
        found = self.body(images)
        return found * float(found.sum() > 0), None

try:
    Captured(Waits().cuda())(torch.randn(8, 6, device="cuda"))
except UsageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "[train] capture: this model cannot be recorded" in done.stdout, done.stderr
    assert done.stdout.strip().endswith("leave it out")
