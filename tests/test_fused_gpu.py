"""What only a GPU can show of the fused losses; the cases of test_fused.py run there too."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from partlabel.losses import build_loss
from tests.fused import (
    DTYPES,
    FEW,
    FLAT,
    Setting,
    assert_near,
    assert_right,
    batch,
    built,
    eagerly,
    fused,
    hard_rows,
    needs_cuda,
    outcome,
    python,
    slack,
)

pytestmark = [pytest.mark.gpu, needs_cuda]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["single", "bfloat16", "float16"])
some_settings = pytest.mark.parametrize("setting", FEW, ids=range(len(FEW)))


@every_dtype
@some_settings
@pytest.mark.parametrize(
    "shape",
    [(7, 9600), (64, 80), (33, 40000), (2, 131072), (1000, 3), (300, 1203), (2, 32768), (129, 1)],
    ids=lambda shape: "x".join(map(str, shape)),
)
def test_large_shapes(shape: tuple[int, int], setting: Setting, dtype: torch.dtype) -> None:
    assert_right("cuda", setting, *batch(*shape, seed=sum(shape), dtype=dtype, device="cuda"))


@every_dtype
@pytest.mark.parametrize("classes", [1024, 9600, 32768, 70000])
@pytest.mark.parametrize("top_k", [1, 5, 200, 1000])
def test_long_rows_that_are_hard_to_search(classes: int, top_k: int, dtype: torch.dtype) -> None:
    logits = hard_rows(classes)
    if dtype == torch.float16:
        logits = logits.clamp(-6e4, 6e4)
    logits = logits.to("cuda", dtype)
    states = torch.zeros(logits.shape, dtype=torch.int8, device="cuda")
    states[:, ::9] = -1
    assert_right("cuda", ("selective", {"top_k": top_k, **FLAT}), logits, states)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_ignored_is_what_a_sort_says(seed: int) -> None:
    draw = random.Random(seed)
    classes = draw.choice([1, 2, 17, 80, 511, 1024, 1025, 4097, 9600, 20000, 33000])
    images = draw.choice([1, 2, 5, 40, 257])
    top_k = draw.choice([1, 2, 5, 16, 200, classes // 2 + 1, max(classes - 1, 1)])
    dtype = draw.choice(DTYPES)
    logits, states = batch(
        images,
        classes,
        seed=seed,
        spread=draw.choice([0.01, 1.0, 3.0]),
        known=draw.choice([(0.0,), (0.02,), (0.5, 0.0, 1.0, 0.05), (0.95,)]),
        dtype=dtype,
        device="cuda",
    )
    if draw.random() < 0.4:
        logits = (logits * 4).round() / 4  # ties
    loss = built(("selective", {"top_k": top_k, **FLAT}), classes)
    grad = outcome("cuda", loss, logits, states)[1]
    scores = torch.where(states == 0, logits.float(), -float("inf"))
    ranked = scores.sort(1, descending=True).values
    cut = ranked[:, min(top_k, classes) - 1 :][:, :1]
    assert torch.equal((grad == 0) & (states == 0), (scores >= cut) & (states == 0))
    assert grad[states != 0].all()


def test_more_labels_than_an_int32_counts() -> None:
    images, classes = 33000, 65537
    assert images * classes > 2**31
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GB")
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.empty(images, classes, dtype=torch.bfloat16, device="cuda")
    logits.normal_(generator=generator)
    states = torch.zeros(images, classes, dtype=torch.int8, device="cuda")
    states.random_(-1, 2, generator=generator)
    loss = built(FEW[2], classes).cuda()
    leaf = logits.requires_grad_()
    value = fused("cuda", loss, leaf, states)
    (grad,) = torch.autograd.grad(value, leaf)
    for part in (slice(0, 3), slice(32766, 32772), slice(images - 3, images)):
        alone = outcome("cuda", loss, logits.detach()[part], states[part])[1]
        assert torch.equal(grad[part], alone)
    with torch.no_grad():
        parts = zip(logits.split(1000), states.split(1000), strict=True)
        total = sum(fused("cuda", loss, *part).double() for part in parts)
    torch.testing.assert_close(value.double(), total, rtol=1e-5, atol=0)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("shape", [(64, 80), (5, 9600), (3, 40000)], ids=str)
@some_settings
def test_the_host_waits_for_nothing(setting: Setting, shape: tuple[int, int]) -> None:
    logits, states = batch(*shape, seed=1, device="cuda")
    loss = built(setting, shape[1], backend="auto").cuda()
    assert loss.why_eager(logits) == ""
    leaf = logits.requires_grad_()
    loss(leaf, states).backward()  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss(leaf, states).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@some_settings
def test_one_gradient_is_written_and_nothing_else(setting: Setting) -> None:
    logits, states = batch(256, 9600, seed=2, device="cuda")
    loss = built(setting, 9600, backend="fused").cuda()
    leaf = logits.requires_grad_()
    torch.autograd.grad(loss(leaf, states), leaf)  # compiles
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    value = loss(leaf, states)
    (grad,) = torch.autograd.grad(value, leaf)
    assert torch.cuda.max_memory_allocated() - before < grad.nbytes + 2**18
    leaf.grad = None
    loss(leaf, states).backward()
    assert leaf.grad is not None
    del grad
    assert torch.cuda.memory_allocated() - before < leaf.grad.nbytes + 2**18  # no copy of it


def test_a_gradient_that_float16_cannot_hold_before_it_is_scaled() -> None:
    """As a GradScaler would: what is lost below 6e-8 must not be lost before the scaling."""
    logits = torch.full((64, 300), -9.0, device="cuda", dtype=torch.float16, requires_grad=True)
    states = torch.zeros(64, 300, device="cuda", dtype=torch.int8)
    loss = build_loss("partial_asymmetric", gamma_unknown=1, backend="fused")
    loss(logits, states).backward(torch.full((), 2.0**16, device="cuda"))
    p = 1 / (1 + math.exp(9.0))
    assert logits.grad is not None
    wanted = torch.full((64, 300), p * p / 64 * 2.0**16)
    torch.testing.assert_close(logits.grad.float().cpu(), wanted, rtol=2e-3, atol=0)


def test_on_another_stream() -> None:
    logits, states = batch(64, 1203, seed=3, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        assert_right("cuda", FEW[2], logits * 1.5, states)
    torch.cuda.synchronize()


def test_a_kernel_that_was_compiled_takes_other_numbers() -> None:
    """The same shapes and constants again: other multipliers, another clip, an odd address."""
    base = {"gamma_pos": 0.5, "gamma_neg": 1.5, "gamma_unknown": 2.5, "detach_focus": False}
    changes: list[dict[str, float]] = [
        {},
        {"alpha_pos": 2.0, "alpha_unknown": 0.125},
        {"gamma_pos": 0.25, "gamma_neg": 3.5},
        {"clip": 0.05},
        {"clip": 0.3},
    ]
    for seed in range(3):
        for change in changes:
            for top_k in (1, 2, 16):
                logits, states = batch(24, 96, seed=seed, device="cuda")
                if seed == 1:
                    logits = torch.cat([logits.reshape(-1)[:1], logits.reshape(-1)])[1:]
                    logits = logits.view(24, 96)
                setting = ("selective", {**base, **change, "top_k": top_k})
                assert_right("cuda", setting, logits, states, reduction="mean", upstream=1 + seed)


def test_streams_do_not_disturb_each_other() -> None:
    """Kernels of several streams overlap; so do those of a graph and of a stream."""
    loss = built(FEW[2], 1203).cuda()
    inputs = [batch(40 + i, 1203, seed=i, device="cuda") for i in range(6)]
    wanted = [eagerly(loss, *each)[0] for each in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    graph = torch.cuda.CUDAGraph()
    fused("cuda", loss, *inputs[0])
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = [fused("cuda", loss, *inputs[0]) for _ in range(3)]
    found: list[list[Tensor]] = [[] for _ in inputs]
    for _ in range(30):
        # All wait for one event, so that their kernels start together and not as fast as Python.
        torch.cuda._sleep(20_000_000)
        gate = torch.cuda.Event()
        gate.record()
        for each, stream, values in zip(inputs, streams, found, strict=True):
            stream.wait_event(gate)
            with torch.cuda.stream(stream):
                values.extend(fused("cuda", loss, *each) for _ in range(3))
        graph.replay()
    torch.cuda.synchronize()
    for values, right in zip([*found, captured], [*wanted, wanted[0]], strict=True):
        for value in values:
            torch.testing.assert_close(value.double(), right, rtol=5e-6, atol=0)


@some_settings
def test_the_same_comes_out_every_time(setting: Setting) -> None:
    for shape in ((300, 80), (64, 9600), (3, 40000)):
        logits, states = batch(*shape, seed=9, device="cuda")
        loss = built(setting, shape[1]).cuda()
        first = outcome("cuda", loss, logits, states)
        for _ in range(10):
            again = outcome("cuda", loss, logits, states)
            assert torch.equal(again[0], first[0])
            assert torch.equal(again[1], first[1])


@some_settings
@every_dtype
def test_cuda_graphs(setting: Setting, dtype: torch.dtype) -> None:
    static, marks = batch(16, 300, seed=4, dtype=dtype, device="cuda")
    loss = built(setting, 300, backend="fused").cuda()
    leaf = static.requires_grad_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.autograd.grad(loss(leaf, marks), leaf)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = loss(leaf, marks)
        (grad,) = torch.autograd.grad(value, leaf)
    for seed in (5, 6):
        logits, states = batch(16, 300, seed=seed, dtype=dtype, device="cuda")
        with torch.no_grad():
            leaf.copy_(logits)
            marks.copy_(states)
        graph.replay()
        eager = built(setting, 300).cuda()
        wanted = eagerly(eager, logits, states)
        assert_near((value.detach(), grad), wanted, slack("cuda", eager, logits, states))


class Model(torch.nn.Module):
    def __init__(self, setting: Setting, classes: int, backend: str) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, classes)
        self.loss = built(setting, classes, backend=backend, reduction="mean")

    def forward(self, features: Tensor, states: Tensor) -> Tensor:
        result: Tensor = self.loss(self.linear(features), states)
        return result


@pytest.mark.filterwarnings("ignore")
@some_settings
@pytest.mark.parametrize("autocast", [False, True])
def test_compiled_in_one_piece(setting: Setting, autocast: bool) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Model(setting, 1203, "auto").cuda()
    compiled = torch.compile(model, fullgraph=True)
    for images in (16, 9, 12):  # from the second on, with a size that is not known
        features = torch.randn(images, 8, device="cuda")
        states = batch(images, 1203, seed=images, device="cuda")[1]
        found = []
        for run in (model, compiled):
            model.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                value = run(features, states)
            value.backward()
            assert value.dtype == torch.float32
            found.append((value.detach(), model.linear.weight.grad, model.linear.bias.grad))
        near = 2e-2 if autocast else 1e-4
        torch.testing.assert_close(*found, rtol=near, atol=near * 1e-1)
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_a_model_under_autocast(dtype: torch.dtype) -> None:
    features = torch.randn(16, 8, device="cuda")
    states = batch(16, 300, seed=7, device="cuda")[1]
    found = []
    for backend in ("eager", "auto"):
        torch.manual_seed(0)
        model = Model(FEW[3], 300, backend).cuda()
        with torch.autocast("cuda", dtype):
            value = model(features, states)
        value.backward()
        found.append((value.detach(), model.linear.weight.grad, model.linear.bias.grad))
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)


def test_weights_are_learnt_as_eagerly_with_many_classes() -> None:
    features = torch.randn(64, 8, device="cuda")
    states = batch(64, 9600, seed=8, known=(0.02,), device="cuda")[1]
    ends = []
    for backend in ("eager", "fused"):
        torch.manual_seed(0)
        model = Model(FEW[2], 9600, backend).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(30):
            value = model(features, states)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        ends.append(value.item())
    assert ends[1] == pytest.approx(ends[0], rel=1e-4)


WITHOUT_TRITON = """
import sys, warnings
sys.modules["triton"] = None  # importing it fails
import torch
from partlabel.losses import build_loss
states = torch.zeros(4, 9, dtype=torch.int8, device="cuda")
for backend in ("fused", "auto", "eager"):
    loss = build_loss("selective", backend=backend)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            logits = torch.randn(4, 9, device="cuda", requires_grad=True)
            loss(logits, states).backward()
    said = [str(w.message) for w in found if "the fused loss" in str(w.message)]
    assert len(said) == (backend != "eager"), (backend, said)
    assert all(s.startswith("the fused loss is not used: ") and "Triton" in s for s in said)
    assert loss.why_eager(logits)
"""


def test_without_triton_it_is_eager_and_says_so() -> None:
    python(WITHOUT_TRITON)
