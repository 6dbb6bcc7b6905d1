"""What the tests of the fused losses share: three engines, their results, and what is right.

"interpreter" runs the Triton kernels in Triton's interpreter on the CPU, "cuda" compiles them,
"inplace" is the path for CPUs. Each is called with the same cases.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from partlabel.losses import build_loss
from partlabel.losses.base import PartialLoss
from tests.reference import CASES, PRIOR, REFERENCE

Params = dict[str, Any]
Setting = tuple[str, Params]
Pair = tuple[Tensor, Tensor]

CUDA = torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not CUDA, reason="no CUDA device")
interpreter = pytest.param(
    "interpreter",
    marks=pytest.mark.skipif(
        CUDA or importlib.util.find_spec("triton") is None,
        reason="Triton compiles here, or is not there",
    ),
)
cuda = pytest.param("cuda", marks=[pytest.mark.gpu, needs_cuda])
every_engine = pytest.mark.parametrize("engine", [interpreter, "inplace", cuda])
every_kernel = pytest.mark.parametrize("engine", [interpreter, cuda])

NAMES = ("ce", "asymmetric", "partial_asymmetric", "selective")
FLAT: Params = {"gamma_pos": 0, "gamma_neg": 0, "gamma_unknown": 0}  # every label has a gradient
FAMILY: list[Setting] = [
    *((n, p) for n, p in CASES if n in NAMES and p.get("scope") != "batch"),
    ("partial_asymmetric", {"gamma_pos": 3, "gamma_neg": 4, "gamma_unknown": 7}),
    ("partial_asymmetric", {"gamma_pos": 5, "gamma_neg": 6, "gamma_unknown": 8, "clip": 0.05}),
    (
        "partial_asymmetric",
        {"gamma_pos": 3, "gamma_neg": 7, "gamma_unknown": 4, "detach_focus": False, "clip": 0.2},
    ),
    ("partial_asymmetric", {"gamma_pos": 9, "gamma_neg": 2.5, "gamma_unknown": 12}),
    ("asymmetric", {"unknown": "ignore", "gamma_pos": 0.5, "gamma_neg": 2.5, "alpha_pos": 3.0}),
    ("asymmetric", {"unknown": "ignore", "clip": 0.0, "detach_focus": False}),
    ("selective", {"top_k": 2, "alpha_unknown": 0.0}),
    ("selective", {"top_k": 2**40, "prior": PRIOR}),
    ("selective", {"top_k": 2, "prior": PRIOR, "prior_mode": "soft", "clip": 0.1}),
    ("selective", {"top_k": 4, **FLAT}),
]
FEW: list[Setting] = [
    ("ce", {"unknown": "negative"}),
    ("asymmetric", {}),
    ("selective", {"top_k": 5, "prior": PRIOR, "alpha_pos": 2.0, "alpha_unknown": 0.25}),
    (
        "selective",
        {
            "top_k": 200,
            "prior": PRIOR,
            "prior_mode": "soft",
            "gamma_pos": 0.5,
            "gamma_neg": 3,
            "gamma_unknown": 2.5,
            "detach_focus": False,
        },
    ),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# One rounding of the gradient: half the distance of two numbers; and where numbers end.
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
LEAST = {torch.float32: 1e-37, torch.bfloat16: 1e-37, torch.float16: 2.0**-25}


def prior_of(classes: int) -> list[float]:
    return (PRIOR * (classes // len(PRIOR) + 1))[:classes]


def built(setting: Setting, classes: int, **more: Any) -> PartialLoss:
    """A loss of these settings, with a prior for so many classes."""
    name, params = setting
    given = {"reduction": "sum", "backend": "eager", **params, **more}
    if "prior" in given:
        given["prior"] = torch.tensor(prior_of(classes))
    return build_loss(name, **given)


def device_of(engine: str) -> str:
    return "cuda" if engine == "cuda" else "cpu"


def fused(engine: str, loss: PartialLoss, logits: Tensor, states: Tensor) -> Tensor:
    """The value that an engine gives, whatever the loss would choose."""
    module = "_inplace" if engine == "inplace" else "_fused"
    function = importlib.import_module(f"partlabel.losses.{module}").fused
    scale = 1 / len(logits) if loss.reduction == "mean" else 1.0
    table = loss.class_table(logits.shape[1])
    result: Tensor = function(logits, states, loss.recipe(), table, scale)
    return result


@contextmanager
def poisoned() -> Iterator[None]:
    """Memory that nobody has written is NaN (or the largest whole number), not zero by chance."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(1).isnan()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def outcome(
    engine: str, loss: PartialLoss, logits: Tensor, states: Tensor, upstream: float = 1.0
) -> Pair:
    """Value and gradient that an engine gives; logits and states must be left as they are."""
    before = logits.clone(), states.clone()
    leaf = logits.detach().requires_grad_()
    with poisoned():
        value = fused(engine, loss, leaf, states)
        (grad,) = torch.autograd.grad(value, leaf, torch.full_like(value, upstream))
    assert (value.shape, value.dtype) == ((), torch.float32)
    assert (grad.shape, grad.dtype) == (logits.shape, logits.dtype)
    assert torch.equal(states, before[1])
    torch.testing.assert_close(logits, before[0], rtol=0, atol=0, equal_nan=True)
    return value.detach(), grad


def eagerly(loss: PartialLoss, logits: Tensor, states: Tensor, upstream: float = 1.0) -> Pair:
    """Value and gradient of the eager path in float64."""
    leaf = logits.detach().double().requires_grad_()
    value = loss(leaf, states)
    assert value.dtype == torch.float64
    (grad,) = torch.autograd.grad(value, leaf, torch.full_like(value, upstream))
    return value.detach(), grad


def slack(
    engine: str, loss: PartialLoss, logits: Tensor, states: Tensor, upstream: float = 1.0
) -> Pair:
    """What may be lost beside the errors of float32 and one rounding of the gradient.

    Without `clip` nothing: all is computed from the logit. With it, p - clip loses the leading
    digits of a p near clip, and p (1 - p) / (1 - q) those of a p near 1, where 1 - q is clip; the
    eager path in float32 loses as much.
    """
    value, grad = eagerly(loss, logits, states, upstream)
    of_value, of_grad = torch.zeros_like(value), torch.zeros_like(grad)
    if engine == "interpreter" and logits.dtype == torch.bfloat16:
        of_grad += ROUNDING[torch.bfloat16] * grad.abs()  # it cuts off where a GPU rounds
    clip = getattr(loss, "clip", 0.0)
    if clip:
        for step in (2.0**-25, -(2.0**-25)):
            loss.clip = clip + step
            moved = eagerly(loss, logits, states, upstream)
            of_value += (moved[0] - value).abs()
            of_grad += (moved[1] - grad).abs()
        loss.clip = clip
        share = 1 / len(logits) if loss.reduction == "mean" else 1.0
        alpha = max(loss.alpha_pos, loss.alpha_neg, loss.alpha_unknown)
        of_grad += abs(upstream) * share * alpha * 2.0**-23 / clip
    return of_value, of_grad


def assert_near(got: Pair, wanted: Pair, allowed: Pair | None = None) -> None:
    """Within the errors of float32, of one rounding of the gradient, and what is allowed."""
    dtype = got[1].dtype
    for one, right, relative, absolute, more in (
        (got[0], wanted[0], 5e-6, 1e-35, allowed and allowed[0]),
        (got[1], wanted[1], 1e-5 + ROUNDING[dtype], LEAST[dtype], allowed and allowed[1]),
    ):
        one, right = one.double().cpu(), right.cpu()
        error, most = (one - right).abs(), relative * right.abs() + absolute
        if more is not None:
            most = most + more.cpu()
        good = (error <= most) | (one == right) | (one.isnan() & right.isnan())
        if not good.all():
            worst = torch.where(good, 0.0, error / most).nan_to_num(nan=1e300).argmax().item()
            place = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), one.shape))
            raise AssertionError(
                f"{int((~good).sum())} of {good.numel()} wrong, most at {place}: "
                f"{one[place]:.9g}, not {right[place]:.9g}; may be off by {most[place]:.3g}"
            )


def assert_right(
    engine: str,
    setting: Setting,
    logits: Tensor,
    states: Tensor,
    *,
    reduction: str = "sum",
    upstream: float = 1.0,
) -> None:
    """What an engine gives is what the eager path gives and, if that is quick, the reference."""
    images, classes = logits.shape
    device = device_of(engine)
    assert logits.device.type == states.device.type == device
    loss = built(setting, classes, reduction=reduction).to(device)
    got = outcome(engine, loss, logits, states, upstream)
    allowed = slack(engine, loss, logits, states, upstream)
    assert_near(got, eagerly(loss, logits, states, upstream), allowed)
    # Ignored is ignored: nothing, not nearly nothing.
    assert not got[1][loss.terms(logits.double(), states) == 0].any()
    if logits.numel() <= 2000:
        name, params = setting
        if "prior" in params:
            params = {**params, "prior": prior_of(classes)}
        plain = REFERENCE[name](logits.tolist(), states.tolist(), **params)
        total = torch.tensor(plain.total, dtype=torch.float64)
        slopes = torch.tensor(plain.grad, dtype=torch.float64).reshape(logits.shape)
        share = 1 / images if reduction == "mean" else 1.0
        assert_near(got, (total * share, slopes * share * upstream), allowed)


def batch(
    images: int,
    classes: int,
    *,
    seed: int = 0,
    spread: float = 4.0,
    known: tuple[float, ...] = (0.5, 0.0, 1.0, 0.05),
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Pair:
    """Images by turns with these shares of their labels known."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(images, classes, generator=generator) * spread
    share = torch.rand(images, classes, generator=generator)
    cut = torch.tensor(known)[torch.arange(images) % len(known)][:, None]
    states = torch.where(share < cut / 2, 1, torch.where(share < cut, -1, 0)).to(torch.int8)
    return logits.to(device, dtype), states.to(device)


def hard_rows(classes: int) -> Tensor:
    """Rows whose K-th largest is hard to find for a search that believes in a distribution."""
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(classes, generator=generator)
    uniform = torch.rand(classes, generator=generator)
    place = torch.arange(classes)
    rows = [
        torch.zeros(classes),
        torch.full((classes,), -3.25),
        torch.where(place % 2 == 0, -7.0, 7.0),  # two values only
        torch.where(uniform < 0.02, 5.0, -5.0),
        torch.where(place % 3 == 0, normal - 20, normal + 20),
        normal / torch.randn(classes, generator=generator),  # Cauchy
        torch.exp(138 * uniform - 69),  # over 60 decades
        -torch.exp(138 * uniform - 69),
        torch.linspace(-30, 30, classes),
        torch.linspace(30, -30, classes),
        1 + place * 2.0**-23,  # neighbours in float32
        torch.where(place == classes // 2, 1e30, -1e30),
        torch.where(place < 3, 3e4, 1e-40 * place),  # the rest subnormal
        (normal * 2).round(),  # many ties
        torch.where(place % 2 == 0, 0.0, -0.0),
        torch.where(place < 7, 100.0, normal * 1e-3),
    ]
    return torch.stack(rows).clamp(-3e30, 3e30)


def python(code: str) -> None:
    """Run it in a process of its own, where a warning is an error."""
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
