"""The fused losses give what the eager ones give, on every engine (see tests/fused.py)."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from partlabel.losses import build_loss, settings_of
from partlabel.losses.recipe import Recipe
from tests.fused import (
    DTYPES,
    FAMILY,
    FEW,
    FLAT,
    NAMES,
    Setting,
    assert_near,
    assert_right,
    batch,
    built,
    device_of,
    eagerly,
    every_engine,
    every_kernel,
    fused,
    hard_rows,
    needs_cuda,
    outcome,
    python,
    slack,
)
from tests.reference import PRIOR

# In Triton's interpreter numpy warns where a GPU computes log(0) or an overflow without a word.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["single", "bfloat16", "float16"])
every_setting = pytest.mark.parametrize(
    "setting", FAMILY, ids=[f"{name}-{i}" for i, (name, _) in enumerate(FAMILY)]
)
of_a_loss = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_cuda])]
)
PLAIN: Setting = ("selective", {"top_k": 3, **FLAT})
BENT: Setting = ("selective", {"top_k": 3, "clip": 0.05, "detach_focus": False, "gamma_pos": 1.5})
NOT_USED = "^the fused loss is not used: "


def marks(rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int8)


def selected(engine: str, top_k: int, logits: Tensor, states: Tensor) -> list[list[bool]]:
    """Which labels have no gradient, where each that counts has one."""
    device = device_of(engine)
    loss = built(("selective", {"top_k": top_k, **FLAT}), logits.shape[1])
    grad = outcome(engine, loss, logits.to(device), states.to(device))[1]
    result: list[list[bool]] = (grad == 0).tolist()
    return result


# ---------------------------------------------------------------- values and gradients


@every_engine
@every_setting
def test_every_setting(engine: str, setting: Setting) -> None:
    logits, states = batch(5, 12, seed=1, device=device_of(engine))
    assert_right(engine, setting, logits, states)


@every_engine
@every_dtype
@pytest.mark.parametrize("setting", FEW, ids=range(len(FEW)))
@pytest.mark.parametrize(
    "shape",
    [(1, 1), (3, 5), (5, 17), (2, 80), (37, 3), (3, 129), (2, 1203), (1, 9600)],
    ids=lambda shape: "x".join(map(str, shape)),
)
def test_shapes_and_dtypes(
    engine: str, shape: tuple[int, int], setting: Setting, dtype: torch.dtype
) -> None:
    logits, states = batch(*shape, seed=sum(shape), dtype=dtype, device=device_of(engine))
    assert_right(engine, setting, logits, states)


@every_engine
@pytest.mark.parametrize("beyond", [0, 1, 7001])
def test_rows_too_wide_for_registers(engine: str, beyond: int) -> None:
    for setting, dtype in ((FEW[3], torch.float32), (FEW[2], torch.bfloat16)):
        logits, states = batch(2, 32768 + beyond, seed=2, dtype=dtype, device=device_of(engine))
        assert_right(engine, setting, logits, states)


@every_engine
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("upstream", [1.0, 2.5, -0.75, 0.0])
def test_reduction_and_upstream_gradient(engine: str, reduction: str, upstream: float) -> None:
    logits, states = batch(5, 17, seed=3, device=device_of(engine))
    for setting in (FEW[2], BENT):
        assert_right(engine, setting, logits, states, reduction=reduction, upstream=upstream)


@every_engine
@pytest.mark.parametrize("known", [[0], [1], [-1], [1, -1]], ids=["unknown", "1", "-1", "all"])
def test_images_with_one_kind_of_label(engine: str, known: list[int]) -> None:
    logits = batch(3, 20, seed=4, device=device_of(engine))[0]
    states = marks([(known * 20)[:20]] * 3).to(logits.device)
    for setting in (*FEW, PLAIN, BENT, ("ce", {}), ("asymmetric", {"unknown": "ignore"})):
        assert_right(engine, setting, logits, states)


@every_kernel
def test_kernels_without_autograd(engine: str) -> None:
    from partlabel.losses import _fused

    logits, states = batch(4, 33, seed=5, device=device_of(engine))
    loss = built(FEW[3], 33).to(logits.device)
    recipe, table = loss.recipe(), loss.class_table(33)
    assert isinstance(recipe, Recipe)
    assert table.dtype == torch.float32
    value, thresholds = _fused.forward(logits, states, table, recipe, 0.25)
    upstream = torch.full_like(value, -2.0)
    grad = _fused.backward(upstream, logits, states, table, thresholds, recipe, 0.25)
    wanted = eagerly(loss, logits, states, -0.5)
    assert_near((value, grad), (wanted[0] * 0.25, wanted[1]))


def through_autograd(logits: Tensor, states: Tensor, loss: Any) -> Tensor:
    from partlabel.losses import _fused

    result: Tensor = _fused.fused(
        logits, states, loss.recipe(), loss.class_table(logits.shape[1]), 1.0
    )
    return result


@every_kernel
@pytest.mark.filterwarnings("ignore:::torch")
@pytest.mark.parametrize("setting", FEW, ids=range(len(FEW)))
def test_kernels_compiled_around(engine: str, setting: Setting) -> None:
    """torch.compile does not look inside, but knows what comes out."""
    torch._dynamo.reset()
    compiled = torch.compile(through_autograd, backend="aot_eager", fullgraph=True)
    for images in (4, 3, 5):
        logits, states = batch(images, 33, seed=images, device=device_of(engine))
        loss = built(setting, 33).to(logits.device)
        leaf = logits.detach().requires_grad_()
        value = compiled(leaf, states, loss)
        (grad,) = torch.autograd.grad(value, leaf, torch.tensor(2.0, device=logits.device))
        wanted = eagerly(loss, logits, states, 2.0)
        assert_near((value.detach(), grad), wanted, slack(engine, loss, logits, states, 2.0))
    torch._dynamo.reset()


@every_kernel
def test_log1p_of_the_kernels_is_exact_to_its_last_bits(engine: str) -> None:
    from tests.fused_kernels import log1p

    # A power of two for a tensor that the kernel takes at once.
    a = torch.cat([torch.linspace(0, 1, 2**13), torch.logspace(-37, 0, 2**13)]).to(
        device_of(engine)
    )
    torch.testing.assert_close(log1p(a).double(), a.double().log1p(), rtol=2.5e-7, atol=0)


# ---------------------------------------------------------------- what is ignored


@every_engine
@every_dtype
@pytest.mark.parametrize("top_k", [1, 5, 200])
def test_rows_that_are_hard_to_search(engine: str, dtype: torch.dtype, top_k: int) -> None:
    logits = hard_rows(257)
    if dtype == torch.float16:
        logits = logits.clamp(-6e4, 6e4)
    if engine == "interpreter" and dtype == torch.bfloat16:
        logits[logits.abs() < 1e-37] = 0.0  # it reads the subnormal ones as something else
    logits = logits.to(device_of(engine), dtype)
    states = torch.zeros(logits.shape, dtype=torch.int8, device=logits.device)
    states[:, ::7] = 1
    assert_right(engine, ("selective", {"top_k": top_k, **FLAT}), logits, states)
    if engine != "interpreter":
        assert_right(engine, ("selective", {"top_k": 60, **FLAT}), logits, states * 0)


@every_engine
def test_ties_at_the_threshold_are_ignored_too(engine: str) -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0, 1.0], [0.0, -0.0, 0.0, -0.0, -1.0, 9.0]])
    states = marks([[0, 0, 0, 0, 0, -1], [0, 0, 0, 0, 0, 1]])
    for dtype in DTYPES:
        for top_k in (2, 3, 4):
            ignored = selected(engine, top_k, logits.to(dtype), states)
            assert ignored == [[True] * 4 + [False] * 2] * 2
        assert selected(engine, 1, logits.to(dtype), states)[0] == [True] + [False] * 5
        assert selected(engine, 5, logits.to(dtype), states) == [[True] * 5 + [False]] * 2
        assert not any(map(any, selected(engine, 0, logits.to(dtype), states)))


@every_engine
@pytest.mark.parametrize("top_k", [1, 2, 3, 4, 100])
def test_images_with_fewer_unknown_labels_than_are_ignored(engine: str, top_k: int) -> None:
    logits = torch.tensor([[0.5, -1.0, 2.0, 0.25, -3.0]]).expand(6, 5).contiguous()
    states = torch.ones(6, 5, dtype=torch.int8).tril(-1).logical_not().to(torch.int8)
    ignored = torch.tensor(selected(engine, top_k, logits, states))  # image i has i unknown
    assert ignored.sum(1).tolist() == [min(i, top_k) for i in range(6)]
    assert not ignored[states != 0].any()


@every_engine
@settings(max_examples=40)
@given(data=st.data())
def test_what_is_ignored_is_what_a_sort_says(engine: str, data: st.DataObject) -> None:
    images, classes = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 24))
    value = data.draw(
        st.sampled_from(
            [
                st.floats(-14, 14, width=16),
                st.sampled_from([-2.0, -0.0, 0.0, 0.5]),
                st.integers(-4, 4).map(float),
            ]
        )
    )
    size, top_k = images * classes, data.draw(st.integers(0, classes + 1))
    flat = data.draw(st.lists(value, min_size=size, max_size=size))
    state = data.draw(st.sampled_from([[0], [0, 1, -1], [0, 0, 0, 0, 1]]))
    chosen = data.draw(st.lists(st.sampled_from(state), min_size=size, max_size=size))
    logits = torch.tensor(flat).reshape(images, classes).to(data.draw(st.sampled_from(DTYPES)))
    states = torch.tensor(chosen, dtype=torch.int8).reshape(images, classes)
    wanted = []
    for row, known in zip(logits.tolist(), states.tolist(), strict=True):
        unknown = sorted((z for z, s in zip(row, known, strict=True) if s == 0), reverse=True)
        cut = unknown[:top_k][-1] if unknown[:top_k] else float("inf")
        wanted.append([s == 0 and z >= cut for z, s in zip(row, known, strict=True)])
    assert selected(engine, top_k, logits, states) == wanted


# ---------------------------------------------------------------- numbers


EXTREME = [40.0, -40.0, 100.0, -100.0, 1e4, -1e4, 88.0, -88.0, 104.0, -104.0, 1e-9, 0.0]


@every_engine
@every_setting
def test_extreme_logits(engine: str, setting: Setting) -> None:
    logits = torch.tensor(EXTREME, device=device_of(engine)).repeat(3, 1)
    for known in ([[1], [-1], [0]], [[0], [1], [0]]):
        states = marks(known).to(logits.device).expand(logits.shape)
        assert_right(engine, setting, logits, states)


@every_engine
@pytest.mark.parametrize("state", [1, -1, 0])
@pytest.mark.parametrize("largest", [1.7e38, -1.7e38])  # twice that, by alpha_pos, is finite
def test_the_largest_logits_there_are(engine: str, largest: float, state: int) -> None:
    logits, states = batch(2, 17, seed=6, device=device_of(engine))
    logits[1, 4], states[1, 4] = largest, state
    for setting in (*FEW, PLAIN, BENT):
        assert_right(engine, setting, logits, states)


@every_engine
@pytest.mark.parametrize("count", [1, 9, 17])
def test_minus_infinity(engine: str, count: int) -> None:
    """As a logit that a model has masked: absent or unknown, it costs nothing."""
    for dtype in (torch.float32, torch.bfloat16):
        logits, states = batch(4, 17, seed=7, dtype=dtype, device=device_of(engine))
        logits[:, :count] = float("-inf")
        states = torch.where(logits.isinf() & (states > 0), 0, states).to(torch.int8)
        for setting in (*FEW, PLAIN, BENT, ("selective", {"top_k": 12, **FLAT})):
            assert_right(engine, setting, logits, states)


@every_engine
def test_minus_infinity_of_a_present_label(engine: str) -> None:
    logits, states = batch(3, 7, seed=8, device=device_of(engine))
    logits[1, 2], states[1, 2] = float("-inf"), 1
    loss = built(PLAIN, 7)
    value, grad = outcome(engine, loss, logits, states)
    assert value == float("inf")
    assert_near((value, grad), eagerly(loss, logits, states))
    assert grad[1, 2] == -1


@every_engine
@every_dtype
@pytest.mark.parametrize("classes", [17, 300, 32775])
@pytest.mark.parametrize("state", [1, -1, 0])
def test_nan(engine: str, state: int, classes: int, dtype: torch.dtype) -> None:
    """The value is NaN; what the other images learn is right, and the other known labels too."""
    logits, states = batch(3, classes, seed=9, dtype=dtype, device=device_of(engine))
    logits[1, 4], states[1, 4] = float("nan"), state
    for setting in (FEW[1], FEW[2], PLAIN, BENT) if classes < 1000 else (PLAIN,):
        loss = built(setting, classes).to(logits.device)
        value, grad = outcome(engine, loss, logits, states)
        assert value.isnan()
        assert grad[1, 4].isnan()
        right = eagerly(loss, logits, states)[1]
        free = torch.zeros_like(states, dtype=torch.bool)
        if state == 0:  # which of its unknown labels are then ignored is nobody's promise
            free[1] = states[1] == 0
        got, wanted = grad.masked_fill(free, 0), right.masked_fill(free, 0)
        allowed = slack(engine, loss, logits.nan_to_num(0.0), states)
        assert_near((value, got), (value.double(), wanted), allowed)


@every_engine
@pytest.mark.parametrize(
    "setting",
    [
        ("asymmetric", {"unknown": "ignore"}),
        ("partial_asymmetric", {"alpha_unknown": 0.0}),
        ("selective", {"top_k": 10**6}),
        ("selective", {"top_k": 0, "prior": PRIOR}),
    ],
    ids=["ignore", "alpha", "top", "prior"],
)
def test_nan_does_not_hide_where_it_is_ignored(engine: str, setting: Setting) -> None:
    logits, states = batch(3, 17, seed=25, device=device_of(engine))
    logits[1, 1], states[1, 1] = float("nan"), 0
    loss = built(setting, 17).to(logits.device)
    assert eagerly(loss, logits, states)[0].isnan()
    assert outcome(engine, loss, logits, states)[0].isnan()


@every_engine
def test_all_nan_comes_back(engine: str) -> None:
    logits, states = batch(4, 40, seed=10, device=device_of(engine))
    logits.fill_(float("nan"))
    assert outcome(engine, built(PLAIN, 40), logits, states)[0].isnan()


@every_engine
@every_dtype
def test_small_probabilities_are_not_lost(engine: str, dtype: torch.dtype) -> None:
    """Labels that are right cost exp(-|z|), not zero: no 1 - p, no log(1 + p)."""
    logits = torch.linspace(-30, -10, 64, device=device_of(engine)).to(dtype).repeat(2, 1)
    states = marks([[-1] * 64, [0] * 64]).to(logits.device)
    logits, states = torch.cat([logits, -logits[:1]]), torch.cat([states, -states[:1]])
    for gammas in (FLAT, {**FLAT, "gamma_neg": 0.5, "gamma_pos": 0.5}):
        loss = built(("partial_asymmetric", gammas), 64)
        value, grad = outcome(engine, loss, logits, states)
        wanted = eagerly(loss, logits, states)
        assert value.item() == pytest.approx(wanted[0].item(), rel=1e-5)
        if dtype == torch.float32:
            torch.testing.assert_close(grad.double(), wanted[1], rtol=1e-5, atol=0)


# ---------------------------------------------------------------- memory and graphs


def shifted(values: Tensor, places: int) -> Tensor:
    """The same a few places further in memory."""
    flat = torch.cat([values.new_zeros(places), values.reshape(-1)])
    return flat[places:].view(values.shape)


def strided(logits: Tensor, states: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    images, classes = logits.shape
    padded = torch.full((images + 3, 2 * classes + 5), float("nan"), device=logits.device)
    padded = padded.to(logits.dtype)
    view = padded[2 : 2 + images, 1 : 1 + 2 * classes : 2]
    view.copy_(logits)
    return {
        "transposed": (logits.t().contiguous().t(), states.t().contiguous().t()),
        "logits transposed": (logits.t().contiguous().t(), states),
        "states transposed": (logits, states.t().contiguous().t()),
        "steps": (view, states.repeat_interleave(3, 1)[:, ::3]),
        "every other image": (
            logits.repeat_interleave(2, 0)[::2],
            states.repeat_interleave(2, 0)[1::2],
        ),
        "beginning anywhere": (shifted(logits, 1), shifted(states, 3)),
        "one image expanded": (logits[:1].expand(images, classes), states),
        "one state expanded": (logits, states[:1, :1].expand(images, classes)),
        "one class expanded": (logits[:, :1].expand(images, classes), states),
    }


@every_engine
@pytest.mark.parametrize("kind", strided(torch.zeros(1, 1), torch.zeros(1, 1)))
def test_strides(engine: str, kind: str) -> None:
    for dtype in DTYPES:
        inputs = batch(5, 33, seed=11, dtype=dtype, device=device_of(engine))
        for setting in (FEW[3], PLAIN):
            assert_right(engine, setting, *strided(*inputs)[kind])


def test_states_at_any_address() -> None:
    """As of a memory-mapped file: neither memory nor the place in it need be even."""
    logits, states = batch(2, 21, seed=24, known=(0.3,))
    for start in range(8):
        memory = torch.from_numpy(np.zeros(64, np.int8)[start:])
        for place in range(8):
            view = memory[place : place + 42].view(2, 21).copy_(states)
            assert_right("inplace", PLAIN, logits, view)


@every_engine
def test_backward_again_and_into_a_gradient_that_is_there(engine: str) -> None:
    logits, states = batch(4, 17, seed=12, device=device_of(engine))
    loss = built(BENT, 17)
    once = outcome(engine, loss, logits, states)[1]
    leaf = logits.clone().requires_grad_()
    value = fused(engine, loss, leaf, states)
    value.backward(retain_graph=True)
    (value * 2).backward()
    fused(engine, loss, leaf, states).backward()
    torch.testing.assert_close(leaf.grad, 4 * once, rtol=1e-6, atol=1e-7)


@every_engine
def test_without_a_gradient(engine: str) -> None:
    logits, states = batch(4, 17, seed=13, device=device_of(engine))
    loss = built(FEW[2], 17).to(logits.device)
    wanted = outcome(engine, loss, logits, states)[0]
    plain = fused(engine, loss, logits, states)
    with torch.no_grad():
        inside = fused(engine, loss, logits.clone().requires_grad_(), states)
    for value in (plain, inside):
        assert not value.requires_grad
        torch.testing.assert_close(value, wanted, rtol=1e-6, atol=0)


@every_engine
@pytest.mark.parametrize("setting", [FEW[2], BENT], ids=["detached", "not"])
def test_training_ends_where_it_ends_eagerly(engine: str, setting: Setting) -> None:
    torch.manual_seed(0)
    images = 4 if engine == "interpreter" else 12
    features = torch.randn(images, 8, device=device_of(engine))
    states = batch(images, 14, seed=14, device=device_of(engine))[1]
    loss = built(setting, 14, reduction="mean").to(features.device)
    ends = []
    for path in (loss, lambda *args: fused(engine, loss, *args)):
        weight = torch.zeros(8, 14, device=features.device, requires_grad=True)
        bias = torch.linspace(-1, 1, 14, device=features.device).requires_grad_()  # no ties
        optimizer = torch.optim.SGD([weight, bias], lr=0.3, momentum=0.5)
        losses = []
        for _ in range(30):
            value = path(features @ weight + bias, states)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            losses.append(value.item())
        ends.append((torch.tensor(losses), weight.detach(), bias.detach()))
    assert ends[0][0][-1] < 0.7 * ends[0][0][0]
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- as a loss


FEW_KNOWN = (0.2, 0.0, 0.1)  # where most are known, a CPU is faster eagerly


def results(loss: Any, logits: Tensor, states: Tensor) -> tuple[Tensor, Tensor, str]:
    """Value, gradient, and by what it was computed."""
    leaf = logits.detach().requires_grad_()
    value = loss(leaf, states)
    (grad,) = torch.autograd.grad(value.sum(), leaf)
    way = value.grad_fn.name()
    return value.detach(), grad, "eager" if way.endswith("Backward0") else "fused"


def test_backend_is_a_setting_of_the_family() -> None:
    for name in NAMES:
        assert settings_of(name)["backend"].default == "auto"
        with pytest.raises(ValueError, match="backend must be one of auto, fused, eager"):
            build_loss(name, backend="triton")
    assert "backend" not in settings_of("two_way")


@of_a_loss
@every_setting
@every_dtype
def test_a_loss_is_the_same_with_every_backend(
    setting: Setting, device: str, dtype: torch.dtype
) -> None:
    logits, states = batch(6, 12, seed=15, known=FEW_KNOWN, dtype=dtype, device=device)
    way = {}
    for reduction in ("mean", "sum"):
        for backend in ("eager", "fused", "auto"):
            loss = built(setting, 12, backend=backend, reduction=reduction).to(device)
            assert (loss.why_eager(logits) == "") == (
                backend == "fused" or (backend == "auto" and device == "cuda")
            )
            *got, way[backend] = results(loss, logits, states)
            eager = built(setting, 12, reduction=reduction).to(device)
            allowed = slack(device, eager, logits, states)
            assert_near((got[0], got[1]), eagerly(eager, logits, states), allowed)
    assert (way["eager"], way["fused"]) == ("eager", "fused")
    assert way["auto"] == ("fused" if device == "cuda" else "eager")


def test_auto_on_a_cpu_is_fused_where_that_is_worth_it() -> None:
    loss = build_loss("selective")
    for classes, way in ((2**13, "fused"), (2**13 - 1, "eager")):
        logits, states = batch(4, classes, seed=16, known=FEW_KNOWN)
        assert (loss.why_eager(logits) == "") == (way == "fused")
        assert results(loss, logits, states)[2] == way


REASONS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("reduction", {"reduction": "none"}, {}),
    ("float64", {}, {"dtype": torch.float64}),
    ("scope", {"scope": "batch"}, {}),
    ("no labels", {}, {"size": (0, 7)}),
    ("no labels", {}, {"size": (3, 0)}),
    ("meta", {}, {"device": "meta"}),
]


@pytest.mark.parametrize(("word", "params", "like"), REASONS, ids=[r[0] for r in REASONS])
@pytest.mark.parametrize("backend", ["fused", "auto", "eager"])
def test_what_cannot_be_fused_is_eager_and_says_why(
    backend: str, word: str, params: dict[str, Any], like: dict[str, Any]
) -> None:
    logits = torch.zeros(**{"size": (4, 2**13), **like}, requires_grad=True)
    states = torch.zeros(logits.shape, dtype=torch.int8, device=logits.device)
    loss = build_loss("selective", backend=backend, **params)
    reason = loss.why_eager(logits)
    assert reason
    assert backend == "eager" or word in reason
    if backend == "fused":
        with pytest.warns(UserWarning, match=NOT_USED) as found:
            value = loss(logits, states)
        assert [str(w.message) for w in found] == [f"the fused loss is not used: {reason}"]
    else:
        value = loss(logits, states)  # a warning would be an error
    again = loss(logits, states)  # it was said once
    assert again.shape == value.shape
    value.sum().backward()
    assert logits.grad is not None
    if value.device.type == "cpu":
        wanted = build_loss("selective", backend="eager", **params)(logits, states)
        assert torch.equal(value, wanted)


@of_a_loss
def test_no_images_cost_nothing(device: str) -> None:
    for setting in FAMILY:
        for reduction in ("mean", "sum"):
            loss = built(setting, 5, reduction=reduction, backend="auto").to(device)
            logits = torch.zeros(0, 5, device=device, requires_grad=True)
            value = loss(logits, torch.zeros(0, 5, dtype=torch.int8, device=device))
            value.backward()
            assert (value.shape, value.dtype, value.item()) == ((), torch.float32, 0.0)
            assert logits.grad is not None
            assert logits.grad.shape == (0, 5)


@of_a_loss
def test_a_loss_that_is_changed_is_fused_as_changed(device: str) -> None:
    logits, states = batch(6, 12, seed=17, known=FEW_KNOWN, device=device)
    loss, eager = (
        built(FEW[2], 12, backend=backend, top_k=2).to(device) for backend in ("fused", "eager")
    )

    def check() -> None:
        *got, way = results(loss, logits, states)
        assert way == "fused"
        allowed = slack(device, eager, logits, states)
        assert_near((got[0], got[1]), eagerly(eager, logits, states), allowed)

    check()
    for one in (loss, eager):
        one.set_prior(torch.tensor(PRIOR).flip(0).to(device))
    check()
    for one in (loss, eager):
        one.top_k, one.gamma_neg, one.clip, one.alpha_pos = 4, 2.5, 0.1, 3.0
    check()
    saved = built(FEW[2], 12, prior_threshold=0.05).state_dict()
    for one in (loss, eager):
        one.load_state_dict(saved)
    check()
    loss = copy.deepcopy(loss)
    check()
    for one in (loss, eager):
        one.to(torch.bfloat16)  # exact for these priors
    check()


@of_a_loss
def test_mistakes_are_found_as_eagerly(device: str) -> None:
    logits, states = batch(4, 12, seed=18, known=FEW_KNOWN, device=device)
    loss = built(FEW[2], 12, backend="fused", debug=True).to(device)
    for wrong, message in (
        ((logits[:, :7], states[:, :7]), "prior must have one value per class"),
        ((logits, states.long()), "states must be an int8 tensor"),
        ((logits, states[:2]), "states must have the shape of logits"),
        ((logits[0], states[0]), "logits must be a float tensor"),
        ((logits, states * 3), r"states must be \+1, 0 or -1"),
    ):
        with pytest.raises(ValueError, match=message):
            loss(*wrong)


SMOOTH = [
    PLAIN,
    FEW[3],
    ("asymmetric", {"gamma_pos": 0, "gamma_neg": 3, "detach_focus": False}),
    ("selective", {"top_k": 2, "gamma_pos": 1, "gamma_unknown": 2}),
]


@of_a_loss
@pytest.mark.parametrize("setting", SMOOTH, ids=range(len(SMOOTH)))
def test_second_derivatives_are_those_of_eager(setting: Setting, device: str) -> None:
    logits, states = batch(4, 12, seed=19, known=FEW_KNOWN, spread=2.0, device=device)
    along = batch(4, 12, seed=20, spread=1.0, device=device)[0]
    found = []
    for backend, dtype in (("fused", torch.float32), ("eager", torch.float64)):
        loss = built(setting, 12, backend=backend).to(device)
        leaf = logits.to(dtype).requires_grad_()
        value = loss(leaf, states).square()  # the upstream gradient has a derivative too
        (grad,) = torch.autograd.grad(value, leaf, create_graph=True)
        (second,) = torch.autograd.grad((grad * along.to(dtype)).sum(), leaf)
        found.append([a.detach().double() for a in (value, grad, second)])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-4)  # of numbers up to about 1e3


@of_a_loss
def test_autocast_changes_nothing(device: str) -> None:
    for dtype in DTYPES:
        logits, states = batch(4, 12, seed=21, known=FEW_KNOWN, dtype=dtype, device=device)
        loss = built(FEW[3], 12, backend="fused").to(device)
        plain = results(loss, logits, states)
        with torch.autocast(device, torch.bfloat16):
            inside = results(loss, logits, states)
        assert inside[2] == "fused"
        torch.testing.assert_close(inside[:2], plain[:2], rtol=1e-6, atol=0)


@pytest.mark.filterwarnings("ignore:::torch")
@pytest.mark.parametrize(
    ("backend", "classes"), [("auto", 2**13), ("auto", 12), ("eager", 12), ("fused", 12)]
)
def test_compiled_with_its_model(backend: str, classes: int) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, classes)
            self.loss = built(FEW[2], classes, backend=backend, reduction="mean")

        def forward(self, features: Tensor, states: Tensor) -> Tensor:
            result: Tensor = self.loss(self.linear(features), states)
            return result

    torch.manual_seed(1)
    model, features, states = (
        Model(),
        torch.randn(4, 3),
        batch(4, classes, seed=22, known=FEW_KNOWN)[1],
    )
    torch._dynamo.reset()
    found = []
    for run in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        model.zero_grad()
        value = run(features, states)
        value.backward()
        assert model.linear.weight.grad is not None
        found.append((value.detach(), model.linear.weight.grad.clone()))
    torch._dynamo.reset()
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_importing_does_not_import_triton() -> None:
    python("import sys, partlabel, partlabel.losses; assert 'triton' not in sys.modules")


WITHOUT_TRITON = """
import sys, warnings
sys.modules["triton"] = None  # importing it fails
import torch
from partlabel.losses import build_loss
for backend in ("fused", "auto", "eager"):
    loss = build_loss("selective", backend=backend)
    logits = torch.randn(4, 2**13, requires_grad=True)
    loss(logits, torch.zeros(4, 2**13, dtype=torch.int8)).backward()
    assert (loss.why_eager(logits) == "") == (backend != "eager")
"""


def test_a_cpu_needs_no_triton() -> None:
    python(WITHOUT_TRITON)


def test_no_warning_is_left_for_later() -> None:
    """A loss that was fused, and then cannot be, warns then; and only then."""
    loss = build_loss("ce", backend="fused")
    logits, states = batch(3, 5, seed=23)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for each in (logits, logits.double(), logits, logits.double()):
            loss(each, states)
    assert len(found) == 1
    assert "float64" in str(found[0].message)
