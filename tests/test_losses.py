"""The contract of the losses, held against an independent reference in plain Python."""

from __future__ import annotations

import copy
import io
import itertools
import math
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from partlabel.losses import LOSSES, build_loss, settings_of
from partlabel.losses.base import PartialLoss
from tests import reference
from tests.reference import CALL, CASES, MAX_CLASSES, MAX_IMAGES, REFERENCE, Result, fitted

Params = dict[str, Any]

every_case = pytest.mark.parametrize(
    ("name", "params"),
    CASES,
    ids=[f"{name}-{i}" for i, (name, _) in enumerate(CASES)],
)
FIRST = dict(reversed(CASES))  # one case of each loss
every_loss = pytest.mark.parametrize(("name", "params"), FIRST.items(), ids=FIRST)
IGNORING = [
    ("ce", {}),
    ("weighted_ce", {}),
    ("weighted_ce", {"kind": "csl"}),
    ("asymmetric", {"unknown": "ignore", "clip": 0.0}),
    ("asymmetric", {"unknown": "ignore", "detach_focus": False, "gamma_neg": 0.5, "clip": 0.0}),
    ("focal", {"unknown": "ignore"}),
    ("selective", {"top_k": 12}),
    ("selective", {"top_k": 10**6, "detach_focus": False, "gamma_unknown": 0.5}),
    ("selective", {"top_k": 12, "scope": "batch"}),
    ("pseudo_label", {}),
]


class Case:
    """A loss for a batch of this size, the keywords of its call, and the parameters as fitted."""

    def __init__(
        self, name: str, params: Params, images: int, classes: int, reduction: str = "sum"
    ) -> None:
        self.name = name
        self.params = fitted(params, images, classes)
        given = {k: v for k, v in self.params.items() if k not in CALL}
        for key in ("prior", "distances"):
            if key in given:
                given[key] = torch.tensor(given[key], dtype=torch.float64).reshape(
                    (classes,) if key == "prior" else (classes, classes)
                )
        self.loss = build_loss(name, reduction=reduction, **given)
        self.call = {k: v for k, v in self.params.items() if k in CALL}
        if "index" in self.call:
            self.call["index"] = torch.tensor(self.call["index"], dtype=torch.int64)
        if "posterior" in self.call:
            given = torch.tensor(self.call["posterior"], dtype=torch.float64)
            self.call["posterior"] = given.reshape(images, classes)

    def __call__(self, logits: Tensor, states: Tensor) -> Tensor:
        return self.loss(logits, states, **self.call)

    def gradient(self, logits: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Value (summed) and gradient."""
        logits = logits.detach().clone().requires_grad_()
        value = self(logits, states)
        value.sum().backward()
        assert logits.grad is not None
        return value.detach(), logits.grad

    def rows(self, chosen: Any) -> Case:
        """The same loss, to be called with these images of the batch."""
        part = copy.copy(self)
        part.call = dict(self.call)
        for key in {"index", "posterior"} & part.call.keys():
            part.call[key] = part.call[key][chosen]
        return part

    def reversed(self) -> Case:
        """The same loss, to be called with the classes in reverse order."""
        other = copy.copy(self)
        other.call = dict(self.call)
        if "posterior" in other.call:
            other.call["posterior"] = other.call["posterior"].flip(1)
        return other

    def expected(self, logits: Tensor, states: Tensor) -> Result:
        params = {k: v for k, v in self.params.items() if k != "index"}
        if "posterior" in params:
            params["posterior"] = self.call["posterior"].tolist()
        if self.name == "role":
            table = self.loss.get_parameter("estimates").detach().double()
            params["estimates"] = table[self.call["index"]].tolist()
        return REFERENCE[self.name](logits.tolist(), states.tolist(), **params)


def tensors(logits: list[list[float]], states: list[list[int]]) -> tuple[Tensor, Tensor]:
    return torch.tensor(logits, dtype=torch.float64), torch.tensor(states, dtype=torch.int8)


def random_batch(
    images: int, classes: int, *, seed: int = 0, spread: float = 4.0, known: float = 0.5
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(images, classes, generator=generator, dtype=torch.float64) * spread
    share = torch.rand(images, classes, generator=generator)
    states = torch.where(share < known / 2, 1, torch.where(share < known, -1, 0)).to(torch.int8)
    return logits, states


@st.composite
def batches(draw: st.DrawFn, images: int = 4, classes: int = 6) -> tuple[Tensor, Tensor]:
    """Logits within 15, ties among them, and states of any mix, none known and all known too."""
    rows, columns = draw(st.integers(1, images)), draw(st.integers(1, classes))
    logit = st.one_of(
        st.floats(-15, 15, allow_subnormal=False), st.sampled_from([-15.0, -2.0, 0.0, 0.5, 15.0])
    )
    state = st.sampled_from(draw(st.sampled_from([(0, 1, -1), (0, 0, 0, 1, -1), (0,), (1, -1)])))
    size = rows * columns
    flat = draw(st.lists(logit, min_size=size, max_size=size))
    marks = draw(st.lists(state, min_size=size, max_size=size))
    return (
        torch.tensor(flat, dtype=torch.float64).reshape(rows, columns),
        torch.tensor(marks, dtype=torch.int8).reshape(rows, columns),
    )


def assert_matches(case: Case, logits: Tensor, states: Tensor) -> None:
    """Value and gradient are those of the reference; nothing where that has exactly nothing."""
    wanted = case.expected(logits, states)
    value, grad = case.gradient(logits, states)
    expected_grad = torch.tensor(wanted.grad, dtype=torch.float64).reshape(logits.shape)
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(wanted.total, rel=1e-9, abs=1e-12)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-9, atol=1e-12)
    if wanted.terms is not None:
        ignored = (expected_grad == 0) & (torch.tensor(wanted.terms) == 0) & (states == 0)
        assert not grad[ignored].any()


# ---------------------------------------------------------------- values and gradients


def test_every_loss_has_a_reference_and_a_case() -> None:
    assert set(LOSSES) == set(REFERENCE) == {name for name, _ in CASES}


def test_every_setting_of_a_loss_that_changes_it_is_in_a_case() -> None:
    tried = {name: {k for n, p in CASES if n == name for k in p} for name in LOSSES}
    elsewhere = {
        "reduction",
        "debug",
        "backend",  # tests/test_fused.py
        "max_state_gb",
        "seed",
        *("warmup", "epochs", "share", "beta"),  # the schedule of pseudo-labels, tested below
    }
    for name in LOSSES:
        assert set(settings_of(name)) - elsewhere <= tried[name]


@every_case
@settings(max_examples=20)
@given(batch=batches())
def test_value_and_gradient_are_the_references(
    name: str, params: Params, batch: tuple[Tensor, Tensor]
) -> None:
    assert_matches(Case(name, params, *batch[0].shape), *batch)


@every_case
@pytest.mark.parametrize("known", [0.0, 0.3, 1.0])
def test_several_images_match_the_reference(name: str, params: Params, known: float) -> None:
    logits, states = random_batch(MAX_IMAGES, MAX_CLASSES, seed=1, known=known)
    assert_matches(Case(name, params, *logits.shape), logits, states)


@every_case
def test_extreme_logits_match_the_reference(name: str, params: Params) -> None:
    values = [0.0, 1e-9, -1e-9, 18.0, -18.0, 25.0, -25.0, 40.0, -40.0, 700.0, -700.0, 1e4]
    logits = torch.tensor([values[i:] + values[:i] for i in range(6)], dtype=torch.float64)
    for seed in range(4):
        states = random_batch(*logits.shape, seed=seed, known=0.6)[1]
        assert_matches(Case(name, params, *logits.shape), logits, states)


@every_case
@settings(max_examples=8)
@given(batch=batches())
def test_reductions_agree(name: str, params: Params, batch: tuple[Tensor, Tensor]) -> None:
    logits, states = batch
    results = {
        reduction: Case(name, params, *logits.shape, reduction).gradient(logits, states)
        for reduction in ("mean", "sum", "none")
    }
    terms, total = results["none"], results["sum"]
    assert terms[0].shape == logits.shape
    torch.testing.assert_close(terms[0].sum(), total[0], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(terms[1], total[1], rtol=1e-11, atol=1e-12)
    for mean, summed in zip(results["mean"], total, strict=True):
        torch.testing.assert_close(mean * len(logits), summed, rtol=1e-11, atol=1e-12)
    wanted = Case(name, params, *logits.shape).expected(logits, states).terms
    if wanted is not None:
        expected = torch.tensor(wanted, dtype=torch.float64).reshape(logits.shape)
        torch.testing.assert_close(terms[0], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["ce", "partial_asymmetric", "focal", "label_smoothing", "wan"])
def test_double_precision_has_no_step(name: str) -> None:
    """softplus as torch has it is the identity from 20 on, 2e-9 off."""
    logits = torch.linspace(19, 24, 51, dtype=torch.float64)
    logits = torch.cat([logits, -logits]).reshape(-1, 2)
    for state in (1, 0, -1):
        states = torch.full(logits.shape, state, dtype=torch.int8)
        assert_matches(Case(name, {}, *logits.shape), logits, states)


def test_a_clip_is_not_rounded_in_double_precision() -> None:
    logits, states = tensors([[0.7, 0.7]], [[-1, 0]])
    q = 1 / (1 + math.exp(-0.7)) - 0.05
    for gamma in (0.0, 1.0, 4.0):
        loss = build_loss("asymmetric", gamma_neg=gamma, clip=0.05)
        wanted = 2 * q**gamma * -math.log(1 - q)
        assert loss(logits, states).item() == pytest.approx(wanted, rel=1e-13)


FOCUS = {
    **dict.fromkeys(("partial_asymmetric", "asymmetric", "selective"), ("pos", "neg", "unknown")),
    "auto": ("neg", "unknown"),
}
NOT_DETACHED = [
    (name, params)
    for name, params in CASES
    if name not in {"role"}
    and not (
        name in FOCUS
        and params.get("detach_focus", True)
        and any(params.get(f"gamma_{s}", 1) for s in FOCUS[name])
    )
]


@pytest.mark.parametrize(("name", "params"), NOT_DETACHED)
def test_the_references_gradient_is_that_of_its_value(name: str, params: Params) -> None:
    logits, states = random_batch(3, 5, seed=5, spread=2.0)
    case = Case(name, params, 3, 5)
    grad = case.expected(logits, states).grad
    step = 1e-6
    for i, c in itertools.product(range(3), range(5)):
        moved = []
        for sign in (1, -1):
            shifted = logits.clone()
            shifted[i, c] += sign * step
            moved.append(case.expected(shifted, states).total)
        slope = (moved[0] - moved[1]) / (2 * step)
        assert grad[i][c] == pytest.approx(slope, rel=1e-6, abs=1e-7)


def test_a_focus_that_is_detached_is_a_constant_factor_of_the_gradient() -> None:
    logits, states = random_batch(3, 6, seed=2)
    gammas = {"gamma_pos": 1.5, "gamma_neg": 2.0, "gamma_unknown": 3.0}
    plain = torch.tensor(REFERENCE["ce"](logits.tolist(), states.tolist(), unknown="negative").grad)
    wrong = torch.where(states > 0, -logits, logits).sigmoid()
    gamma = torch.where(states > 0, 1.5, torch.where(states < 0, 2.0, 3.0))
    grad = Case("partial_asymmetric", gammas, 3, 6).gradient(logits, states)[1]
    torch.testing.assert_close(grad, plain * wrong**gamma)


def test_role_teaches_its_estimates_and_leaves_known_ones() -> None:
    logits, states = random_batch(5, 6, seed=3)
    case = Case("role", FIRST["role"], 5, 6)
    case(logits, states).backward()
    table = case.loss.get_parameter("estimates")
    assert table.grad is not None
    rows = case.call["index"]
    wanted = reference.role_estimates_gradient(
        logits.tolist(), states.tolist(), estimates=table.detach()[rows].tolist()
    )
    torch.testing.assert_close(table.grad[rows], torch.tensor(wanted))
    assert not table.grad[rows][states != 0].any()
    others = torch.ones(len(table), dtype=torch.bool)
    others[rows] = False
    assert others.any()
    assert not table.grad[others].any()


# ---------------------------------------------------------------- batches


def is_batchwise(name: str, params: Params) -> bool:
    return Case(name, params, 2, 3).loss.batchwise


BATCHWISE = {"large_loss", "expected_positive", "role", "two_way"}
IMAGEWISE_CASES = [(n, p) for n, p in CASES if not is_batchwise(n, p)]


def test_which_losses_look_across_images() -> None:
    for name, params in CASES:
        across = name in BATCHWISE or params.get("scope") == "batch" or "num_images" in params
        assert is_batchwise(name, params) is across


@pytest.mark.parametrize(("name", "params"), IMAGEWISE_CASES)
def test_a_batch_is_the_sum_of_its_parts(name: str, params: Params) -> None:
    logits, states = random_batch(7, 9, seed=6)
    case = Case(name, params, 7, 9)
    value, grad = case.gradient(logits, states)
    for size in (1, 3):
        parts = [
            case.rows(rows).gradient(logits[rows], states[rows])
            for rows in torch.arange(7).split(size)
        ]
        torch.testing.assert_close(sum(v for v, _ in parts), value, rtol=1e-12, atol=0)
        torch.testing.assert_close(torch.cat([g for _, g in parts]), grad, rtol=1e-12, atol=0)


@every_case
def test_the_order_of_images_and_classes_does_not_matter(name: str, params: Params) -> None:
    logits, states = random_batch(7, 9, seed=7)
    logits[2, :4] = logits[5, 1]  # ties
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    value, grad = Case(name, params, 7, 9).gradient(logits, states)
    shuffled = Case(name, params, 7, 9).rows(order).gradient(logits[order], states[order])
    torch.testing.assert_close(shuffled[0], value, rtol=1e-12, atol=0)
    torch.testing.assert_close(shuffled[1], grad[order], rtol=1e-12, atol=1e-15)
    if not {"prior", "distances", "num_classes"} & set(params):
        flipped = Case(name, params, 7, 9).reversed().gradient(logits.flip(1), states.flip(1))
        torch.testing.assert_close(flipped[0], value, rtol=1e-12, atol=0)
        torch.testing.assert_close(flipped[1].flip(1), grad, rtol=1e-12, atol=1e-15)


@every_case
def test_strides_of_the_input_do_not_matter(name: str, params: Params) -> None:
    logits, states = random_batch(4, 6, seed=8)
    value, grad = Case(name, params, 4, 6).gradient(logits, states)
    apart = Case(name, params, 4, 6).gradient(
        logits.t().contiguous().t(), states.repeat_interleave(2, 1)[:, ::2]
    )
    torch.testing.assert_close(apart, (value, grad), rtol=1e-12, atol=1e-15)


@every_case
def test_no_images_cost_nothing(name: str, params: Params) -> None:
    for reduction in ("mean", "sum"):
        case = Case(name, params, 0, 5, reduction)
        logits = torch.zeros(0, 5, requires_grad=True)
        value = case(logits, torch.zeros(0, 5, dtype=torch.int8))
        assert value.dtype == torch.float32
        assert value.shape == ()
        assert value.item() == 0
        value.backward()
        assert logits.grad is not None
        assert logits.grad.shape == (0, 5)
    terms = Case(name, params, 0, 5, "none")(torch.zeros(0, 5), torch.zeros(0, 5, dtype=torch.int8))
    assert terms.shape == (0, 5)


@every_case
def test_one_class_is_enough(name: str, params: Params) -> None:
    for state in (1, 0, -1):
        logits, states = tensors([[0.7], [-1.2]], [[state], [0]])
        assert_matches(Case(name, params, 2, 1), logits, states)


# ---------------------------------------------------------------- numbers


def fresh_results(
    name: str, params: Params, logits: Tensor, states: Tensor
) -> tuple[Tensor, Tensor]:
    return Case(name, params, *logits.shape, "mean").gradient(logits, states)


@every_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(
    name: str, params: Params, dtype: torch.dtype
) -> None:
    logits, states = random_batch(5, 8, seed=9)
    short = logits.to(dtype)
    value, grad = fresh_results(name, params, short, states)
    single, single_grad = fresh_results(name, params, short.float(), states)
    assert value.dtype == single.dtype == torch.float32
    assert grad.dtype == dtype
    assert torch.equal(value, single)
    assert torch.equal(grad, single_grad.to(dtype))
    none = Case(name, params, 5, 8, "none")(short, states)
    assert none.dtype == torch.float32


@every_case
def test_single_precision_is_near_double(name: str, params: Params) -> None:
    logits, states = random_batch(5, 8, seed=10)
    logits = logits.float().double()
    double = fresh_results(name, params, logits, states)
    single = fresh_results(name, params, logits.float(), states)
    assert double[0].dtype == double[1].dtype == torch.float64
    assert single[0].dtype == single[1].dtype == torch.float32
    for one, two in zip(single, double, strict=True):
        torch.testing.assert_close(one.double(), two, rtol=2e-5, atol=1e-6)


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_changes_nothing(name: str, params: Params, dtype: torch.dtype) -> None:
    logits, states = random_batch(5, 8, seed=11)
    logits = logits.to(dtype)
    plain = fresh_results(name, params, logits, states)
    case = Case(name, params, 5, 8, "mean")
    inside = logits.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        value = case(inside, states)
    value.backward()
    assert value.dtype == torch.float32
    assert torch.equal(value, plain[0])
    assert inside.grad is not None
    assert torch.equal(inside.grad, plain[1])


SPREAD = [0.0, 1e-6, 17.0, 30.0, 88.0, 89.0, 104.0, 150.0, 710.0, 800.0, 1e4]


@every_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_finite_logit_has_a_finite_loss_and_gradient(
    name: str, params: Params, dtype: torch.dtype
) -> None:
    values = [*SPREAD, 6e4 if dtype == torch.float16 else 1e30]
    values += [-v for v in values]
    for states in itertools.product((1, 0, -1), repeat=2):
        marks = torch.tensor([states] * len(values), dtype=torch.int8).t().repeat(4, 1)
        for logits in (
            torch.tensor(values, dtype=dtype).repeat(8, 1),
            torch.stack([torch.tensor(values).roll(i) for i in range(8)]).to(dtype),
        ):
            for left in range(0, len(values), MAX_CLASSES):
                part = slice(left, left + MAX_CLASSES)
                value, grad = fresh_results(name, params, logits[:, part], marks[:, part])
                assert value.isfinite()
                assert grad.isfinite().all()


@every_case
def test_one_extreme_among_zeros_is_finite(name: str, params: Params) -> None:
    for extreme, state in itertools.product((1e4, -1e4, 200.0, -200.0), (1, 0, -1)):
        logits = torch.zeros(3, 5)
        logits[1, 2] = extreme
        states = torch.zeros(3, 5, dtype=torch.int8)
        states[1] = state
        value, grad = fresh_results(name, params, logits, states)
        assert value.isfinite()
        assert grad.isfinite().all()


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 1.5, 2.0, 5.0, 7.0])
def test_the_asymmetric_family_is_finite_at_any_gamma(
    gamma: float, clip: float, detach: bool
) -> None:
    loss = build_loss(
        "partial_asymmetric",
        gamma_pos=gamma,
        gamma_neg=gamma,
        gamma_unknown=gamma,
        clip=clip,
        detach_focus=detach,
    )
    values = sorted({s * v for v in SPREAD for s in (1, -1)})
    for dtype in (torch.float32, torch.float64):
        logits = torch.tensor([values] * 3, dtype=dtype, requires_grad=True)
        states = torch.tensor([[1], [0], [-1]], dtype=torch.int8).expand(logits.shape)
        value = loss(logits, states)
        value.backward()
        assert value.isfinite()
        assert logits.grad is not None
        assert logits.grad.isfinite().all()


# ---------------------------------------------------------------- what is ignored


@pytest.mark.parametrize(("name", "params"), IGNORING)
def test_all_unknown_costs_nothing_where_unknown_is_ignored(name: str, params: Params) -> None:
    for logits in (torch.randn(4, 12) * 5, torch.zeros(4, 12), torch.full((1, 3), 1e4)):
        states = torch.zeros(logits.shape, dtype=torch.int8)
        value, grad = Case(name, params, *logits.shape, "mean").gradient(logits, states)
        assert value.item() == 0
        assert not grad.any()


@every_case
def test_all_unknown_is_finite(name: str, params: Params) -> None:
    logits, _ = random_batch(6, 7, seed=12)
    states = torch.zeros(6, 7, dtype=torch.int8)
    assert_matches(Case(name, params, 6, 7), logits, states)


@pytest.mark.parametrize(("name", "params"), IGNORING)
def test_ignored_labels_have_no_gradient_at_all(name: str, params: Params) -> None:
    logits, states = random_batch(6, 9, seed=13)
    grad = Case(name, params, 6, 9).gradient(logits, states)[1]
    assert not grad[states == 0].any()
    assert grad[states != 0].all()


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_selective_ignores_the_largest_and_the_frequent(clip: float, detach: bool) -> None:
    logits = torch.tensor([[3.0, 5.0, -1.0, 4.0, 9.0, 0.0, 0.5]])
    states = torch.tensor([[0, 0, 0, 0, 1, 0, -1]], dtype=torch.int8)
    prior = torch.tensor([0.0, 0.0, 0.9, 0.0, 0.9, 0.5, 0.9])
    loss = build_loss(
        "selective", top_k=2, prior=prior, gamma_unknown=0.5, clip=clip, detach_focus=detach
    )
    logits.requires_grad_()
    loss(logits, states).backward()
    assert logits.grad is not None
    assert (logits.grad != 0).tolist() == [[True, False, False, False, True, True, True]]


def test_selective_ignores_all_ties_at_the_threshold() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0, 1.0]], requires_grad=True)
    states = torch.tensor([[0, 0, 0, 0, 0, -1]], dtype=torch.int8)
    build_loss("selective", top_k=2)(logits, states).backward()
    assert logits.grad is not None
    assert (logits.grad != 0).tolist() == [[False, False, False, False, True, True]]


@pytest.mark.parametrize("scope", ["sample", "batch"])
@settings(max_examples=20)
@given(batch=batches())
def test_selecting_none_is_negative_and_all_is_ignore(
    scope: str, batch: tuple[Tensor, Tensor]
) -> None:
    logits, states = batch
    shape = tuple(logits.shape)
    focus = {"gamma_pos": 1, "gamma_neg": 2, "gamma_unknown": 4.5}
    same = {**focus, "scope": scope}
    none = Case("selective", {**same, "top_k": 0}, *shape).gradient(logits, states)
    negative = Case("partial_asymmetric", focus, *shape).gradient(logits, states)
    torch.testing.assert_close(none, negative, rtol=0, atol=0)
    everything = Case("selective", {**same, "top_k": shape[1]}, *shape).gradient(logits, states)
    ignore = Case("partial_asymmetric", {**focus, "alpha_unknown": 0}, *shape)
    torch.testing.assert_close(everything, ignore.gradient(logits, states), rtol=1e-12, atol=0)


@pytest.mark.parametrize("threshold", [1.0, 2.0])
def test_a_prior_threshold_of_one_switches_the_prior_off(threshold: float) -> None:
    logits, states = random_batch(5, 12, seed=14)
    off = {"top_k": 2, "prior": reference.PRIOR, "prior_threshold": threshold}
    with_prior = Case("selective", off, 5, 12).gradient(logits, states)
    without = Case("selective", {"top_k": 2}, 5, 12).gradient(logits, states)
    torch.testing.assert_close(with_prior, without, rtol=0, atol=0)


@pytest.mark.parametrize("unknown", ["ignore", "negative"])
@pytest.mark.parametrize("name", ["partial_asymmetric", "asymmetric", "selective", "focal"])
def test_without_focus_it_is_cross_entropy(name: str, unknown: str) -> None:
    logits, states = random_batch(5, 8, seed=15)
    flat: Params = {"gamma_pos": 0, "gamma_neg": 0, "clip": 0.0}
    given: dict[str, Params] = {
        "partial_asymmetric": {**flat, "gamma_unknown": 0},
        "asymmetric": {**flat, "unknown": unknown},
        "selective": {**flat, "gamma_unknown": 0, "top_k": 8 if unknown == "ignore" else 0},
        "focal": {"gamma": 0, "unknown": unknown},
    }
    if name == "partial_asymmetric" and unknown == "ignore":
        given[name]["alpha_unknown"] = 0
    got = Case(name, given[name], 5, 8).gradient(logits, states)
    wanted = Case("ce", {"unknown": unknown}, 5, 8).gradient(logits, states)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=0)


@settings(max_examples=20)
@given(batch=batches())
def test_a_sure_posterior_is_a_label(batch: tuple[Tensor, Tensor]) -> None:
    """Of 1 a present one, of 0 an absent one with its own focusing; none is 0 for all."""
    logits, states = batch
    shape = tuple(logits.shape)
    focus = {"gamma_neg": 2.0, "gamma_unknown": 0.5}
    case = Case("auto", focus, *shape)
    without = case.gradient(logits, states)
    as_absent = Case("partial_asymmetric", focus, *shape).gradient(logits, states)
    torch.testing.assert_close(without, as_absent, rtol=1e-12, atol=0)
    case.call["posterior"] = torch.zeros_like(logits)
    torch.testing.assert_close(case.gradient(logits, states), without, rtol=1e-12, atol=0)
    case.call["posterior"] = torch.ones_like(logits)
    as_present = case.gradient(logits, torch.where(states == 0, 1, states).to(torch.int8))
    torch.testing.assert_close(case.gradient(logits, states), as_present, rtol=1e-12, atol=0)


def test_the_weight_of_known_labels_is_that_of_the_call_unless_it_was_set() -> None:
    logits, states = random_batch(5, 8, seed=32)
    told = {"posterior": torch.full_like(logits, 0.25), "alpha_pos": 3.0}
    as_told = build_loss("auto")(logits, states, **told)
    for set_to in (1.0, 3.0):
        loss = build_loss("auto", alpha_pos=set_to)(logits, states, **told)
        assert torch.equal(loss, as_told) is (set_to == 3.0)


def test_the_posterior_of_a_known_label_does_not_matter_and_none_is_learnt() -> None:
    logits, states = random_batch(5, 8, seed=31)
    case = Case("auto", {"posterior": reference.POSTERIOR}, 5, 8)
    wanted = case.gradient(logits, states)
    other = torch.where(states == 0, case.call["posterior"], 0.75).requires_grad_()
    case.call["posterior"] = other
    torch.testing.assert_close(case.gradient(logits, states), wanted, rtol=0, atol=0)
    assert other.grad is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (torch.zeros(2, 4), r"float tensor \(2, 3\) on cpu, got torch.float32 \(2, 4\)"),
        (torch.zeros(3), r"got torch.float32 \(3,\)"),
        (torch.zeros(2, 3, dtype=torch.int8), "got torch.int8"),
        (torch.zeros(2, 3, device="meta"), "on cpu"),
        ([[0.0] * 3] * 2, "got list"),
    ],
)
def test_a_wrong_posterior_is_refused(wrong: Any, says: str) -> None:
    with pytest.raises(ValueError, match=rf"posterior must be a float tensor.*{says}|{says}"):
        build_loss("auto")(**a_batch(), posterior=wrong)


@pytest.mark.parametrize("threshold", [None, 0.05, 0.5])
@pytest.mark.parametrize("top_k", [0, 1, 2, 5, 100])
def test_batch_scope_is_the_papers_code(top_k: int, threshold: float | None) -> None:
    generator = random.Random(top_k)
    for images, classes in ((1, 3), (4, 12), (8, 5)):
        flat = [i / 8 - 5 for i in generator.sample(range(80), images * classes)]  # no ties
        marks = generator.choices((0, 0, 0, 1, -1), k=images * classes)
        logits, states = tensors([flat], [marks])
        logits, states = logits.reshape(images, classes), states.reshape(images, classes)
        gammas = {"gamma_pos": 1, "gamma_neg": 2, "gamma_unknown": 7}
        prior = None if threshold is None else reference.PRIOR[:classes]
        loss = build_loss(
            "selective",
            top_k=top_k,
            prior=None if prior is None else torch.tensor(prior),
            prior_threshold=threshold or 0.5,
            scope="batch",
            reduction="sum",
            **gammas,
        )
        wanted = reference.papers_code(
            logits.tolist(),
            states.tolist(),
            top_k=top_k,
            prior=prior,
            prior_threshold=threshold or 0.5,
            **gammas,
        )
        assert loss(logits, states).item() == pytest.approx(wanted, rel=1e-9, abs=1e-12)


# ---------------------------------------------------------------- compilation


def assert_compiled_equals_eager(name: str, params: Params, backend: str, rtol: float) -> None:
    logits, states = random_batch(4, 6, seed=16)
    logits = logits.float()
    eager = fresh_results(name, params, logits, states)
    case = Case(name, params, 4, 6, "mean")
    torch._dynamo.reset()
    compiled = torch.compile(case.loss, backend=backend, fullgraph=True)
    leaf = logits.clone().requires_grad_()
    value = compiled(leaf, states, **case.call)
    value.backward()
    torch._dynamo.reset()
    assert leaf.grad is not None
    torch.testing.assert_close((value.detach(), leaf.grad), eager, rtol=rtol, atol=rtol)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:::torch")
@every_case
def test_compiled_without_generated_code(name: str, params: Params) -> None:
    assert_compiled_equals_eager(name, params, "aot_eager", 1e-6)


@pytest.mark.filterwarnings("ignore:::torch")
def test_selective_compiles_in_one_piece() -> None:
    params = {"top_k": 2, "prior": reference.PRIOR, "gamma_unknown": 4}
    assert_compiled_equals_eager("selective", params, "aot_eager", 1e-6)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:::torch")
@every_loss
def test_compiled(name: str, params: Params) -> None:
    assert_compiled_equals_eager(name, params, "inductor", 1e-5)


# ---------------------------------------------------------------- devices


class NoWaiting(TorchDispatchMode):
    """Refuse what makes the host wait for the device, and sizes that depend on values."""

    forbidden = (
        "_local_scalar_dense",
        "is_nonzero",
        "item",
        "nonzero",
        "masked_select",
        "unique",
        "equal.default",
        "argwhere",
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        assert not name.startswith(self.forbidden), f"{func} waits for the device"
        assert not (name == "index.Tensor" and any(_is_mask(i) for i in args[1])), "mask as index"
        return func(*args, **(kwargs or {}))


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


class NoUploads(TorchFunctionMode):
    """Refuse what copies between host and device: on CUDA such a copy waits for the stream."""

    forbidden = (torch.tensor, torch.as_tensor, Tensor.new_tensor, Tensor.tolist, Tensor.cpu)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in self.forbidden, f"{func.__name__} copies between host and device"
        return func(*args, **(kwargs or {}))


def test_waiting_is_noticed() -> None:
    with NoWaiting(), pytest.raises(AssertionError, match="waits for the device"):
        bool(torch.zeros(1))
    with NoWaiting(), pytest.raises(AssertionError):
        torch.zeros(3)[torch.zeros(3, dtype=torch.bool)]
    with NoUploads(), pytest.raises(AssertionError, match="copies between"):
        torch.zeros(1).new_tensor(1.0)


@every_case
def test_no_call_waits_for_the_device(name: str, params: Params) -> None:
    case = Case(name, params, 4, 6)
    batches = [random_batch(4, 6, seed=seed) for seed in (17, 18)]
    for logits, states in batches:
        logits.requires_grad_()
        with NoWaiting():
            case(logits, states).backward()


@every_case
def test_no_call_copies_from_the_host(name: str, params: Params) -> None:
    case = Case(name, params, 4, 6)
    logits, states = random_batch(4, 6, seed=19)
    case(logits, states)  # the first call may set things up
    with NoUploads():
        case(logits.requires_grad_(), states).backward()


@every_case
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_works_without_values(name: str, params: Params, reduction: str) -> None:
    case = Case(name, params, 4, 6, reduction)
    loss = case.loss.to("meta")
    call = {k: v.to("meta") if isinstance(v, Tensor) else v for k, v in case.call.items()}
    logits = torch.zeros(4, 6, device="meta", dtype=torch.bfloat16, requires_grad=True)
    value = loss(logits, torch.zeros(4, 6, device="meta", dtype=torch.int8), **call)
    assert value.device.type == "meta"
    assert value.dtype == torch.float32
    assert value.shape == ((4, 6) if reduction == "none" else ())
    value.sum().backward()
    assert logits.grad is not None
    assert (logits.grad.shape, logits.grad.dtype) == (logits.shape, torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@every_case
def test_on_a_gpu_it_is_the_same_and_waits_for_nothing(name: str, params: Params) -> None:
    logits, states = random_batch(4, 6, seed=20)
    value, grad = fresh_results(name, params, logits, states)
    case = Case(name, params, 4, 6, "mean")
    case.loss.cuda()
    case.call = {k: v.cuda() if isinstance(v, Tensor) else v for k, v in case.call.items()}
    on_device, marks = logits.cuda().requires_grad_(), states.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = case(on_device, marks)
        result.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert on_device.grad is not None
    torch.testing.assert_close(result.detach().cpu(), value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(on_device.grad.cpu(), grad, rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------- copies and checkpoints


def loaded(loss: PartialLoss, into: PartialLoss) -> PartialLoss:
    """Through a file that may hold no code."""
    file = io.BytesIO()
    torch.save(loss.state_dict(), file)
    file.seek(0)
    into.load_state_dict(torch.load(file, weights_only=True))
    return into


@every_case
def test_copies_and_checkpoints_give_the_same(name: str, params: Params) -> None:
    batch = random_batch(4, 6, seed=21)
    case = Case(name, params, 4, 6)
    case(*batch)  # state, where a loss has any
    twin, restored = copy.deepcopy(case), Case(name, params, 4, 6)
    if name == "role":  # so that the restored one does not start equal
        torch.nn.init.zeros_(restored.loss.get_parameter("estimates"))
    loaded(case.loss, restored.loss)
    wanted = case.gradient(*batch)
    torch.testing.assert_close(twin.gradient(*batch), wanted, rtol=0, atol=0)
    torch.testing.assert_close(restored.gradient(*batch), wanted, rtol=0, atol=0)


@every_loss
def test_a_loss_shows_its_settings(name: str, params: Params) -> None:
    shown = repr(Case(name, params, 4, 6).loss)
    for key in set(settings_of(name)) & set(params) - {"num_images", "num_classes"}:
        assert key in shown


def test_the_prior_is_a_buffer() -> None:
    given = torch.tensor([0.25, 0.75, 0.5])
    loss = build_loss("selective", prior=given)
    given.zero_()  # a copy was taken
    assert loss.state_dict()["prior"].tolist() == [0.25, 0.75, 0.5]
    assert not list(loss.parameters())
    other = loaded(loss, build_loss("selective", prior=torch.zeros(3)))
    assert other.get_buffer("prior").tolist() == [0.25, 0.75, 0.5]
    assert copy.deepcopy(loss).to(torch.float64).get_buffer("prior").dtype == torch.float64
    assert copy.deepcopy(loss).to("meta").get_buffer("prior").device.type == "meta"
    assert build_loss("selective").state_dict() == {}


def test_distances_are_a_buffer() -> None:
    given = torch.tensor([[0.0, 0.5], [0.5, 0.0]])
    loss = build_loss("smoothed_ce", distances=given)
    given.zero_()
    assert loss.state_dict()["distances"].tolist() == [[0.0, 0.5], [0.5, 0.0]]


# ---------------------------------------------------------------- several processes

RANKS, PER_RANK, FEATURES = 2, 4, 3


def distributed_batch() -> tuple[Tensor, Tensor, Tensor]:
    logits, states = random_batch(RANKS * PER_RANK, 6, seed=22)
    features = torch.randn(
        len(logits), FEATURES, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    return logits, states, features


def linear() -> torch.nn.Linear:
    layer = torch.nn.Linear(FEATURES, 6, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return layer


def layer_gradient(model: torch.nn.Module, case: Case, features: Tensor, states: Tensor) -> Tensor:
    model.zero_grad()
    case(model(features), states).backward()
    grads = [p.grad for p in model.parameters()]
    return torch.cat([g.reshape(-1) for g in grads if g is not None])


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS
    )
    logits, states, features = distributed_batch()
    own = slice(rank * PER_RANK, (rank + 1) * PER_RANK)
    model = torch.nn.parallel.DistributedDataParallel(linear())
    results = []
    for name, params in CASES:
        case = Case(name, params, len(logits), 6, "mean").rows(own)
        value, grad = case.gradient(logits[own], states[own])
        full = torch.zeros_like(logits)
        full[own] = grad
        torch.distributed.all_reduce(full)
        layer = None
        if not case.loss.batchwise:
            layer = layer_gradient(model, case, features[own], states[own])
        results.append((value, full / RANKS, layer))
    torch.save(results, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_give_the_gradient_of_one() -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(worker, args=(folder,), nprocs=RANKS)
        ranks = [torch.load(Path(folder, f"{rank}.pt")) for rank in range(RANKS)]
    logits, states, features = distributed_batch()
    for (name, params), *results in zip(CASES, *ranks, strict=True):
        case = Case(name, params, len(logits), 6, "mean")
        if case.loss.batchwise:  # each process computes the loss of its own images
            for rank, (value, _, _) in enumerate(results):
                own = slice(rank * PER_RANK, (rank + 1) * PER_RANK)
                part = Case(name, params, len(logits), 6).rows(own)
                wanted = part.expected(logits[own], states[own]).total / PER_RANK
                assert value.item() == pytest.approx(wanted, rel=1e-9), name
            continue
        wanted_value, wanted_grad = case.gradient(logits, states)
        mean = sum(value for value, _, _ in results) / RANKS
        torch.testing.assert_close(mean, wanted_value, rtol=1e-12, atol=0)
        wanted_layer = layer_gradient(linear(), case, features, states)
        for _, grad, layer in results:
            torch.testing.assert_close(grad, wanted_grad, rtol=1e-12, atol=1e-15)
            torch.testing.assert_close(layer, wanted_layer, rtol=1e-12, atol=1e-14)


# ---------------------------------------------------------------- wrong input


def a_batch() -> dict[str, Tensor]:
    return {"logits": torch.zeros(2, 3), "states": torch.zeros(2, 3, dtype=torch.int8)}


@every_loss
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"states": torch.zeros(2, 4, dtype=torch.int8)}, [r"states", r"\(2, 3\)", r"\(2, 4\)"]),
        ({"states": torch.zeros(3, dtype=torch.int8)}, [r"states", r"\(2, 3\)", r"\(3,\)"]),
        ({"states": torch.zeros(2, 3)}, [r"states", "int8", "float32"]),
        ({"states": torch.zeros(2, 3, dtype=torch.int64)}, [r"states", "int8", "int64"]),
        ({"states": [[0, 0, 0], [0, 0, 0]]}, [r"states", "int8", "list"]),
        (
            {"states": torch.zeros(2, 3, dtype=torch.int8, device="meta")},
            [r"states", "cpu", "meta"],
        ),
        ({"logits": torch.zeros(2, 3, dtype=torch.int64)}, [r"logits", "float", "int64"]),
        ({"logits": torch.zeros(3)}, [r"logits", r"\(B, C\)", r"\(3,\)"]),
        ({"logits": [[0.0] * 3] * 2}, [r"logits", "float", "list"]),
    ],
)
def test_a_wrong_batch_is_refused(
    name: str, params: Params, wrong: dict[str, Any], says: list[str]
) -> None:
    case = Case(name, params, 2, 3)
    with pytest.raises(ValueError, match=says[0]) as caught:
        case(**{**a_batch(), **wrong})
    for word in says:
        assert caught.match(word)


@every_loss
def test_debug_refuses_states_that_are_none(name: str, params: Params) -> None:
    case = Case(name, params, 2, 3)
    case.loss.debug = True
    batch = a_batch()
    case(**batch)
    for value in (2, -2, 127):
        batch["states"][1, 1] = value
        with pytest.raises(ValueError, match="states"):
            case(**batch)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "given", "got"),
    [
        *[(name, {"reduction": "average"}, "average") for name in LOSSES if name != "role"],
        ("ce", {"unknown": "absent"}, "absent"),
        ("asymmetric", {"unknown": "absent"}, "absent"),
        ("focal", {"unknown": None}, "None"),
        ("two_way", {"unknown": "absent"}, "absent"),
        ("weighted_ce", {"kind": "durant"}, "durant"),
        ("large_loss", {"variant": "rejects"}, "rejects"),
        ("selective", {"scope": "image"}, "image"),
        ("selective", {"prior_mode": "firm"}, "firm"),
        ("selective", {"top_k": -1}, "-1"),
        ("selective", {"top_k": 2.5}, "2.5"),
        ("selective", {"top_k": True}, "True"),
        ("selective", {"prior": torch.tensor([0.1, 1.5])}, "1.5"),
        ("selective", {"prior": torch.tensor([-0.25, 0.5])}, "-0.25"),
        ("selective", {"prior": torch.tensor([0.1, NAN])}, "nan"),
        ("selective", {"prior": torch.tensor([[0.1, 0.2]])}, r"\(1, 2\)"),
        ("selective", {"prior": torch.tensor([0, 1])}, "int64"),
        ("selective", {"prior": [0.1, 0.2]}, "list"),
        ("selective", {"prior_threshold": -0.1}, "-0.1"),
        ("selective", {"prior_threshold": NAN}, "nan"),
        ("selective", {"prior_alpha": -1}, "-1"),
        ("selective", {"prior_alpha": INF}, "inf"),
        ("partial_asymmetric", {"gamma_pos": -1}, "-1"),
        ("partial_asymmetric", {"gamma_neg": NAN}, "nan"),
        ("partial_asymmetric", {"gamma_unknown": INF}, "inf"),
        ("partial_asymmetric", {"clip": 1.5}, "1.5"),
        ("partial_asymmetric", {"clip": -0.1}, "-0.1"),
        ("partial_asymmetric", {"alpha_pos": "1"}, "'1'"),
        ("partial_asymmetric", {"alpha_neg": INF}, "inf"),
        ("partial_asymmetric", {"detach_focus": "no"}, "no"),
        ("weighted_ce", {"alpha": NAN}, "nan"),
        ("weighted_ce", {"beta": INF}, "inf"),
        ("smoothed_ce", {"temperature": 0.5}, "0.5"),
        ("smoothed_ce", {"max_known": 0}, "0"),
        ("smoothed_ce", {"distances": torch.zeros(2, 3)}, r"\(2, 3\)"),
        ("smoothed_ce", {"distances": torch.full((2, 2), 1.5)}, "1.5"),
        ("smoothed_ce", {"distances": torch.full((2, 2), NAN)}, "nan"),
        ("smoothed_ce", {"distances": [[0.0]]}, "list"),
        ("focal", {"gamma": -2}, "-2"),
        ("hill", {"gamma": "2"}, "'2'"),
        ("hill", {"margin": -1}, "-1"),
        ("splc", {"threshold": 1.5}, "1.5"),
        ("splc", {"start": -1}, "-1"),
        ("large_loss", {"delta": 1.5}, "1.5"),
        ("label_smoothing", {"epsilon": -0.1}, "-0.1"),
        ("entropy_max", {"alpha": -1}, "-1"),
        ("entropy_max", {"share": 1.5}, "1.5"),
        ("entropy_max", {"warmup": 10, "num_images": 4, "num_classes": 3}, "10"),
        ("entropy_max", {"num_classes": -3, "num_images": 4}, "-3"),
        ("entropy_max", {"num_images": -1, "num_classes": 3}, "-1"),
        ("entropy_max", {"max_state_gb": "4", "num_images": 4, "num_classes": 3}, "'4'"),
        ("expected_positive", {"expected": -1}, "-1"),
        ("role", {"num_images": 0, "num_classes": 3}, "0"),
        ("role", {"num_classes": 2.5, "num_images": 3}, "2.5"),
        ("role", {"max_state_gb": "4", "num_images": 4, "num_classes": 3}, "'4'"),
        ("two_way", {"temperature_pos": 0}, "0"),
        ("pseudo_label", {"absent_below": 0.97}, "0.97"),
        ("pseudo_label", {"present_above": 2}, "2"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(name: str, given: Params, got: str) -> None:
    with pytest.raises(ValueError, match=next(iter(given))) as caught:
        build_loss(name, **given)
    assert caught.match(rf"got .*{got}")


def test_unknown_names_are_refused_with_a_hint() -> None:
    with pytest.raises(ValueError, match=r"'selectiv' does not exist; did you mean 'selective'"):
        build_loss("selectiv")
    with pytest.raises(ValueError, match=r"'xyzzy' does not exist; choose from ce, "):
        build_loss("xyzzy")
    for name in LOSSES:
        with pytest.raises(ValueError, match=rf"'{name}' has no setting 'gama'.*reduction"):
            build_loss(name, gama=1)
    with pytest.raises(ValueError, match="gamma_unknown"):
        build_loss("asymmetric", gamma_unknown=2)
    with pytest.raises(ValueError, match="num_images, num_classes"):
        build_loss("role")


def test_a_prior_of_other_classes_is_refused() -> None:
    for mode in ("hard", "soft"):
        loss = build_loss("selective", prior=torch.zeros(4), prior_mode=mode)
        with pytest.raises(ValueError, match=r"prior.*got 4 values for 3 classes"):
            loss(**a_batch())
    with pytest.raises(ValueError, match=r"distances.*4.*3"):
        build_loss("smoothed_ce", distances=torch.zeros(4, 4))(**a_batch())


def test_a_soft_prior_needs_a_prior() -> None:
    with pytest.raises(ValueError, match="prior must be given"):
        build_loss("selective", prior_mode="soft")


KEEPING = [
    ("large_loss", {"variant": "permanent"}),
    ("role", {"num_images": 8, "num_classes": 3}),
    ("entropy_max", {"num_images": 8, "num_classes": 3}),
]


@pytest.mark.parametrize(("name", "params"), KEEPING)
def test_a_loss_with_a_table_needs_the_rows(name: str, params: Params) -> None:
    loss = build_loss(name, **params)
    with pytest.raises(ValueError, match="index must be given"):
        loss(**a_batch())


@pytest.mark.parametrize(("name", "params"), KEEPING)
@pytest.mark.parametrize(
    "index",
    [torch.tensor([0]), torch.tensor([0, 1, 2]), torch.tensor([[0], [1]]), torch.zeros(2)],
)
def test_rows_of_the_wrong_shape_or_type_are_refused(name: str, params: Params, index: Any) -> None:
    loss = build_loss(name, **params)
    with pytest.raises(ValueError, match="index"):
        loss(**a_batch(), index=index)


@pytest.mark.parametrize("name", ["role", "entropy_max"])
@pytest.mark.parametrize("classes", [1, 4])
def test_a_table_of_other_classes_is_refused(name: str, classes: int) -> None:
    loss = build_loss(name, num_images=8, num_classes=classes)
    with pytest.raises(ValueError, match=rf"classes.*{classes}|{classes}.*classes"):
        loss(**a_batch(), index=torch.tensor([0, 1]))


@pytest.mark.parametrize("name", ["role", "entropy_max"])
def test_a_table_too_large_is_refused_before_it_is_made(name: str) -> None:
    with pytest.raises(ValueError, match=r"9000000 x 9605.*max_state_gb is 4"):
        build_loss(name, num_images=9_000_000, num_classes=9605)
    with pytest.raises(ValueError, match="max_state_gb"):
        build_loss(name, num_images=1000, num_classes=1000, max_state_gb=0.001)


# ---------------------------------------------------------------- losses that remember


def test_large_loss_takes_an_exact_share_despite_rounding() -> None:
    logits = torch.arange(10.0).reshape(2, 5)
    states = torch.zeros(2, 5, dtype=torch.int8)
    loss = build_loss("large_loss", delta=0.1, reduction="none")
    for epoch in range(11):  # 3 * 0.1 * 10 is a little over 3
        assert int((loss(logits, states, epoch=epoch) == 0).sum()) == epoch


def permanent_steps(
    loss: PartialLoss, logits: Tensor, states: Tensor, index: Tensor, epoch: int
) -> Tensor:
    leaf = logits.clone().requires_grad_()
    loss(leaf, states, epoch=epoch, index=index).backward()
    assert leaf.grad is not None
    return leaf.grad


def test_large_loss_corrects_for_good() -> None:
    """Delta 1/8 of 2 x 4: one label of the batch in each epoch but the first."""
    loss = build_loss("large_loss", variant="permanent", delta=0.125, reduction="sum")
    states = torch.tensor([[0, 0, 0, -1], [0, 0, 0, 0]], dtype=torch.int8)
    low = torch.full((2, 4), -3.0)
    high = low.clone()
    high[1, 2] = 2.0
    rows = torch.tensor([7, 3])
    elsewhere = torch.tensor([5, 8])

    def corrected(grad: Tensor) -> list[tuple[int, int]]:
        return [(int(i), int(c)) for i, c in (grad < 0).nonzero()]

    assert corrected(permanent_steps(loss, high, states, rows, 0)) == []
    assert corrected(permanent_steps(loss, high, states, rows, 1)) == [(1, 2)]
    low[0, 0] = -1.0  # now another one is the largest; the first stays
    assert corrected(permanent_steps(loss, low, states, rows, 2)) == [(0, 0), (1, 2)]
    low[0, 1] = -0.5
    assert corrected(permanent_steps(loss, low, states, rows, 3)) == [(0, 0), (0, 1), (1, 2)]
    # Those of other rows are untouched, and the order within a batch does not matter.
    assert corrected(permanent_steps(loss, low, states, elsewhere, 4)) == [(0, 1)]
    turned = permanent_steps(loss, low.flip(0), states.flip(0), rows.flip(0), 5).flip(0)
    assert {(0, 0), (0, 1), (1, 2)} <= set(corrected(turned))


def test_large_loss_never_corrects_what_is_verified() -> None:
    loss = build_loss("large_loss", variant="permanent", delta=1.0, reduction="none")
    states = torch.tensor([[0, 1, -1]], dtype=torch.int8)
    logits, rows = torch.tensor([[5.0, 6.0, 7.0]]), torch.tensor([0])
    for epoch in range(3):
        terms = loss(logits, states, epoch=epoch, index=rows)
    softplus = torch.nn.functional.softplus
    torch.testing.assert_close(terms, softplus(torch.tensor([[-5.0, -6.0, 7.0]])))


@pytest.mark.parametrize("after", [1, 2])
def test_corrections_survive_a_checkpoint(after: int) -> None:
    """Also those of the epoch under way, which later ones build on."""
    made = {"variant": "permanent", "delta": 0.1}
    one = build_loss("large_loss", **made)
    batches = [random_batch(4, 6, seed=s, known=0.2) for s in range(6)]
    rows = [torch.arange(4) + 4 * (i % 2) for i in range(6)]
    gone = [(batches[i], rows[i], i // 2) for i in range(6)]
    for batch, index, epoch in gone[: 2 * after]:
        one(*batch, epoch=epoch, index=index)
    other = loaded(one, build_loss("large_loss", **made))
    for batch, index, epoch in [*gone[2 * after :], (batches[0], rows[0], 9)]:
        values = [loss(*batch, epoch=epoch, index=index) for loss in (one, other)]
        assert torch.equal(*values)


def test_settled_corrections_do_not_wait_for_the_device() -> None:
    loss = build_loss("large_loss", variant="permanent", delta=0.1)
    logits, states = random_batch(4, 6, seed=23, known=0.2)
    for epoch in (0, 1, 2):  # settles once an epoch, which may wait
        loss(logits, states, epoch=epoch, index=torch.arange(4))
    with NoWaiting():
        loss(logits, states, epoch=2, index=torch.arange(4, 8))


def test_corrections_take_memory_by_their_number() -> None:
    """design.md: relabelled entries live in a sparse overlay. B * C keys a step would be 200 MB."""
    loss = build_loss("large_loss", variant="permanent", delta=0.002)
    logits, states = random_batch(64, 512, seed=24, known=0.0)
    for step in range(4):
        loss(logits, states, epoch=1, index=torch.arange(64) + 64 * step)
    file = io.BytesIO()
    torch.save(loss.state_dict(), file)
    corrected = 4 * math.ceil(0.002 * 64 * 512)
    assert file.tell() < 16 * corrected + 4096


def soft_labels(loss: PartialLoss) -> Tensor:
    return loss.get_buffer("labels")


def an_epoch(loss: PartialLoss, scores: Tensor, states: Tensor, epoch: int, size: int = 50) -> None:
    for rows in torch.arange(len(scores)).split(size):
        loss(scores[rows], states[rows], epoch=epoch, index=rows)


def test_entropy_max_labels_the_lowest_after_the_warmup() -> None:
    images, classes = 400, 3
    generator = torch.Generator().manual_seed(25)
    scores = torch.randn(images, classes, generator=generator) * 2 - torch.arange(classes)
    states = torch.where(torch.rand(images, classes, generator=generator) < 0.2, 1, 0)
    states = states.to(torch.int8)
    loss = build_loss(
        "entropy_max", num_images=images, num_classes=classes, warmup=2, epochs=5, share=0.9
    )
    unknown = (states == 0).sum(0)
    for epoch in range(5):
        before = soft_labels(loss).clone()
        an_epoch(loss, scores, states, epoch)
        after = soft_labels(loss)
        had = ~before.isnan()
        assert torch.equal(after[had], before[had])  # for good
        share = (~after.isnan()).sum(0) / unknown
        wanted = 0.9 * max(epoch - 1, 0) / 3
        assert (share - wanted).abs().max() <= 0.03, epoch
        for c in range(classes):  # the lowest first
            free = (states[:, c] == 0) & after[:, c].isnan()
            done = ~after[:, c].isnan()
            if done.any():
                assert scores[done, c].max() <= scores[free, c].min()
    labelled = ~soft_labels(loss).isnan()
    assert not labelled[states != 0].any()
    torch.testing.assert_close(
        soft_labels(loss)[labelled].float(), scores.sigmoid()[labelled], rtol=1e-3, atol=1e-4
    )


def test_entropy_max_costs_what_its_soft_labels_say() -> None:
    logits, states = random_batch(8, 5, seed=26, known=0.3)
    logits = logits.float().double()
    params = {"alpha": 0.2, "beta": 0.7}
    loss = build_loss(
        "entropy_max",
        num_images=8,
        num_classes=5,
        warmup=1,
        epochs=2,
        share=0.6,
        reduction="sum",
        **params,
    )
    rows = torch.tensor([3, 1, 0, 2, 7, 6, 5, 4])
    loss(logits, states, epoch=0, index=rows)
    loss(logits, states, epoch=1, index=rows)
    table = soft_labels(loss).double()[rows]
    soft = {(int(i), int(c)): table[i, c].item() for i, c in (~table.isnan()).nonzero()}
    assert soft
    moved = (logits + 0.5).requires_grad_()
    value = loss(moved, states, epoch=1, index=rows)
    value.backward()
    more = soft_labels(loss).double()[rows]  # the same epoch may have added some
    soft = {(int(i), int(c)): more[i, c].item() for i, c in (~more.isnan()).nonzero()}
    wanted = REFERENCE["entropy_max"](moved.tolist(), states.tolist(), soft=soft, **params)
    assert value.item() == pytest.approx(wanted.total, rel=1e-9)
    assert moved.grad is not None
    torch.testing.assert_close(moved.grad, torch.tensor(wanted.grad, dtype=torch.float64))


def test_entropy_max_resumes_within_its_schedule() -> None:
    made = {"num_images": 8, "num_classes": 5, "warmup": 1, "epochs": 4}
    batch = random_batch(8, 5, seed=27, known=0.2)
    rows = torch.arange(8)
    one = build_loss("entropy_max", **made)
    for epoch in range(3):
        one(*batch, epoch=epoch, index=rows)
    other = loaded(one, build_loss("entropy_max", **made))
    for epoch in (2, 3):
        values = [loss(*batch, epoch=epoch, index=rows) for loss in (one, other)]
        assert torch.equal(*values)
    assert torch.equal(soft_labels(one).nan_to_num(-1), soft_labels(other).nan_to_num(-1))


def test_entropy_max_knows_no_lowest_scores_before_it_has_seen_any() -> None:
    """Begun after the warm-up, as from a model trained otherwise: one epoch to look first."""
    loss = build_loss("entropy_max", num_images=8, num_classes=5, warmup=1, epochs=4)
    loss(*random_batch(8, 5, seed=28, known=0.2), epoch=2, index=torch.arange(8))
    assert soft_labels(loss).isnan().all()


def test_role_learns_what_the_model_says() -> None:
    states = torch.zeros(4, 3, dtype=torch.int8)
    states[0, 0], states[1, 1] = 1, -1
    logits = torch.tensor([[4.0, -4.0, 4.0]] * 4)
    loss = build_loss("role", num_images=6, num_classes=3, expected=2.0)
    table = loss.get_parameter("estimates")
    start = table.detach().clone()
    optimiser = torch.optim.SGD(loss.parameters(), lr=1.0)
    rows = torch.tensor([5, 0, 2, 4])
    values = []
    for _ in range(60):
        optimiser.zero_grad()
        value = loss(logits, states, index=rows)
        value.backward()
        optimiser.step()
        values.append(value.item())
    assert values[-1] < values[0]
    learnt = table.detach()[rows]
    free = states == 0
    assert torch.equal((learnt > 1)[free], (logits > 0)[free])
    assert torch.equal((learnt < -1)[free], (logits < 0)[free])
    assert torch.equal(learnt[~free], start[rows][~free])
    assert torch.equal(table.detach()[[1, 3]], start[[1, 3]])


def test_role_starts_undecided_and_by_seed() -> None:
    made = {"num_images": 50, "num_classes": 20}
    start = [build_loss("role", seed=s, **made).get_parameter("estimates") for s in (0, 0, 1)]
    assert torch.equal(start[0], start[1])
    assert not torch.equal(start[0], start[2])
    chance = start[0].detach().sigmoid()
    assert 0.4 - 1e-6 <= chance.min() < 0.41
    assert 0.59 < chance.max() <= 0.6 + 1e-6


@every_case
def test_every_loss_goes_down_when_followed(name: str, params: Params) -> None:
    """A descent step on the logits with everything chosen held as it was lowers the value."""
    logits, states = random_batch(4, 6, seed=29, spread=1.0)
    case = Case(name, params, 4, 6)
    value, grad = copy.deepcopy(case).gradient(logits, states)
    if not grad.any():
        pytest.skip("nothing is known of this batch")
    after = copy.deepcopy(case)(logits - 1e-4 * grad, states)
    assert after < value


def test_the_terms_of_smoothed_ce_lie_between_negative_and_ignore() -> None:
    logits, states = random_batch(6, 12, seed=30)
    negative = Case("ce", {"unknown": "negative"}, 6, 12).gradient(logits, states)[1]
    params = {"distances": reference.DISTANCES, "temperature": 8.0}
    grad = Case("smoothed_ce", params, 6, 12).gradient(logits, states)[1]
    unknown = states == 0
    torch.testing.assert_close(grad[~unknown], negative[~unknown])
    assert (grad[unknown] > 0).all()
    heat_one = Case("smoothed_ce", {"temperature": 1.0}, 6, 12).gradient(logits, states)[1]
    torch.testing.assert_close(heat_one, negative)


def test_smoothed_ce_softens_by_the_nearest_label() -> None:
    """Class 2 is near the present class 0, class 3 near the absent class 1."""
    far, near = 1.0, 0.125
    distances = torch.tensor(
        [[0, far, near, far], [far, 0, far, near], [near, far, 0, far], [far, near, far, 0]]
    )
    loss = build_loss("smoothed_ce", distances=distances, temperature=10.0, reduction="none")
    states = torch.tensor([[1, -1, 0, 0]], dtype=torch.int8)
    logits = torch.full((1, 4), 3.0, requires_grad=True)
    loss(logits, states).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, 2] < 0.25 * logits.grad[0, 3]


def test_large_loss_remembers_the_largest_of_those_that_tie() -> None:
    loss = build_loss("large_loss", variant="permanent", delta=0.25)
    logits = torch.tensor([[5.0, 0, 0, 0], [1, 1, 1, 1]])
    states = torch.zeros(2, 4, dtype=torch.int8)
    rows = torch.tensor([0, 1])
    loss(logits, states, epoch=1, index=rows)
    terms = build_loss("large_loss", variant="permanent", delta=0.25, reduction="none")
    terms.load_state_dict(loss.state_dict())
    later = terms(torch.zeros(2, 4), states, epoch=2, index=rows)
    assert later[0, 0] == pytest.approx(math.log(2))
    assert loss.get_extra_state()["fresh"].tolist().count(0) == 1  # row 0, class 0


@pytest.mark.parametrize("spread", [0.02, 1.0, 30.0])
def test_entropy_max_labels_the_planned_share_of_each_class(spread: float) -> None:
    images, epochs = 400, 6
    loss = build_loss("entropy_max", num_images=images, num_classes=2, warmup=1, epochs=epochs)
    rng = torch.Generator().manual_seed(0)
    scores = -8 + spread * torch.randn(images, 2, generator=rng)
    states = torch.zeros(images, 2, dtype=torch.int8)
    shares = []
    for epoch in range(epochs):
        for rows in torch.arange(images).split(64):
            loss(scores[rows], states[rows], epoch=epoch, index=rows)
        shares.append((~loss.labels.isnan()).double().mean(0).min().item())
    assert shares[0] == 0.0
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(0.9, abs=0.11)


def test_a_clip_too_small_for_float32_is_refused() -> None:
    with pytest.raises(ValueError, match="clip must be 0 or at least 1e-6, got 1e-08"):
        build_loss("asymmetric", clip=1e-8)
    loss = build_loss("asymmetric", clip=1e-6)
    logits = torch.full((1, 2), 1e4, requires_grad=True)
    loss(logits, torch.tensor([[0, -1]], dtype=torch.int8)).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
