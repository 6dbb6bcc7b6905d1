"""Fused losses in the hands of people: changed, copied, subclassed, transformed, half broken."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from partlabel.losses import Selective, build_loss, fusable
from tests.fused import needs_cuda

IMAGES, CLASSES = 8, 64


def batch(images: int = IMAGES, classes: int = CLASSES, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(images, classes, generator=rng) * 2 - 1
    share = torch.rand(images, classes, generator=rng)
    states = torch.where(share < 0.05, 1, torch.where(share < 0.1, -1, 0)).to(torch.int8)
    return logits, states


def selective(**params: Any) -> Selective:
    prior = torch.linspace(0, 1, CLASSES)
    loss = build_loss("selective", prior=prior, backend="fused", **params)
    assert isinstance(loss, Selective)
    return loss


def assert_same(loss: Selective) -> None:
    """Fused and eager agree, value and gradient."""
    found = []
    for backend in ("fused", "eager"):
        loss.backend = backend  # type: ignore[assignment]
        logits, states = batch()
        logits.requires_grad_()
        value = loss(logits, states)
        value.backward()
        assert logits.grad is not None
        found.append((value.detach(), logits.grad))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_a_prior_that_changes_in_any_way(mode: str) -> None:
    loss = selective(prior_mode=mode)
    assert_same(loss)
    loss.set_prior(torch.linspace(1, 0, CLASSES))
    assert_same(loss)
    loss.load_state_dict(selective(prior_mode=mode, prior_threshold=0.9).state_dict())
    assert_same(loss)
    loss.prior_alpha = 1.0
    assert_same(loss)
    assert_same(loss.to(torch.float64))
    assert_same(copy.deepcopy(loss))
    other = pickle.loads(pickle.dumps(loss))
    other.load_state_dict(selective(prior_mode=mode, prior_threshold=0.2).state_dict())
    assert_same(other)


def test_first_used_without_gradients() -> None:
    loss = selective()
    with torch.inference_mode():
        loss(*batch())
    assert_same(loss)
    with torch.inference_mode():
        made = selective()
    assert_same(made)


class OwnTerms(Selective):
    def terms(self, logits: Tensor, states: Tensor) -> Tensor:
        return super().terms(logits, states) * 0


class OwnChoice(Selective):
    def ignored(self, logits: Tensor, unknown: Tensor) -> Tensor | None:
        return unknown & (logits > 0)


class OwnNumbers(Selective):
    """Changes nothing of how it is computed."""

    def extra_repr(self) -> str:
        return "mine"


@pytest.mark.parametrize("kind", [OwnTerms, OwnChoice])
def test_a_subclass_that_computes_otherwise_is_eager(kind: type[Selective]) -> None:
    logits, states = batch(600)
    loss = kind()
    assert "has its own" in loss.why_eager(logits)
    torch.testing.assert_close(loss(logits, states), kind(backend="eager")(logits, states))
    assert not OwnNumbers().why_eager(logits)


def test_transformed_it_is_eager() -> None:
    logits, states = batch(600)
    loss = Selective()
    assert not loss.why_eager(logits)
    slopes = torch.func.grad(lambda z: loss(z, states))(logits)
    leaf = logits.requires_grad_()
    loss(leaf, states).backward()
    assert leaf.grad is not None
    torch.testing.assert_close(slopes, leaf.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.filterwarnings("ignore:.*default.*:UserWarning")
def test_defaults_of_torch_do_not_matter() -> None:
    logits, states = batch(300, 9600)
    wanted = build_loss("partial_asymmetric", backend="eager")(logits, states)
    torch.set_default_dtype(torch.bfloat16)
    try:
        value = build_loss("partial_asymmetric")(logits, states)
    finally:
        torch.set_default_dtype(torch.float32)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, wanted, rtol=1e-6, atol=0)


def test_inputs_may_be_used_up_after_the_forward_pass() -> None:
    logits, states = batch()
    leaf = logits.clone().requires_grad_()
    hidden = leaf * 1.0
    value = selective()(hidden, states)
    hidden.detach().sigmoid_()
    states.zero_()
    value.backward()
    wanted, states = batch()
    wanted.requires_grad_()
    selective()(wanted, states).backward()
    torch.testing.assert_close(leaf.grad, wanted.grad)


def test_the_warning_names_the_line_that_called() -> None:
    loss = build_loss("ce", backend="fused", reduction="none")
    with pytest.warns(UserWarning, match="the fused loss is not used: reduction") as caught:
        loss(*batch())
    assert caught[0].filename == __file__


@pytest.mark.gpu
@needs_cuda
def test_where_triton_fails_it_is_eager_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from partlabel.losses import _fused

    def fail(*_: Any) -> Tensor:
        raise OSError("no compiler\nat all")

    monkeypatch.setattr(_fused, "fused", fail)
    monkeypatch.setattr(fusable, "_PROVEN", {})
    logits, states = (part.cuda() for part in batch())
    with pytest.warns(UserWarning, match="Triton does not work here: no compiler$"):
        value = build_loss("ce")(logits, states)
    torch.testing.assert_close(value.cpu(), build_loss("ce", backend="eager")(*batch()))
    assert "no compiler" in build_loss("ce").why_eager(logits)
    monkeypatch.setattr(fusable, "_PROVEN", {})
    with pytest.raises(OSError, match="no compiler"):
        build_loss("ce", backend="fused")(logits, states)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.filterwarnings("ignore")
def test_first_used_in_a_compiled_step_with_graphs() -> None:
    loss = build_loss("selective", top_k=3).cuda()
    linear = torch.nn.Linear(16, CLASSES, device="cuda")
    step = torch.compile(lambda x, s: loss(linear(x), s), mode="reduce-overhead")
    for seed in range(5):
        states = batch(seed=seed)[1].cuda()
        features = torch.randn(IMAGES, 16, device="cuda")
        linear.zero_grad(set_to_none=True)  # they lie in memory that the next step writes over
        torch.compiler.cudagraph_mark_step_begin()
        value = step(features, states)
        value.backward()
        wanted = build_loss("selective", top_k=3, backend="eager")(linear(features), states)
        torch.testing.assert_close(value.detach(), wanted.detach(), rtol=1e-5, atol=1e-6)
