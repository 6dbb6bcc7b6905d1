"""What the benchmark of the losses compares: the reference algorithm, timm's ASL, every loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from timing import Batch, Step, forget
from torch import Tensor

from partlabel.losses import build_loss, settings_of
from partlabel.vision import load

REFERENCE, ASL, COPY = "reference algorithm", "timm ASL", "copy of the logits"
NOTHING = "empty function"
Call = Callable[[Tensor, Tensor], Tensor]
Key = tuple[str, str]
"""The name of a loss, and its mode."""


def reference(prior: Tensor, *, top_k: int, threshold: float = 0.05) -> Call:
    """The selective loss the way the paper's code computes it, gammas 1, 2, 7."""

    def loss(logits: Tensor, states: Tensor) -> Tensor:
        present, absent, unknown = (states > 0).float(), (states < 0).float(), (states == 0).float()
        weight = torch.ones_like(logits)
        weight[:, prior > threshold] = 0
        weight[states != 0] = 1
        p = torch.sigmoid(logits)
        q = 1 - p
        flat = torch.where(states == 0, q, 2.0).reshape(-1)
        weight.view(-1)[torch.argsort(flat)[: top_k * len(logits)]] = 0
        with torch.no_grad():
            focus = (1 - p * present - q * (absent + unknown)) ** (
                present + 2 * absent + 7 * unknown
            )
        value = present * torch.log(p.clamp(min=1e-8)) + (absent + unknown) * torch.log(
            q.clamp(min=1e-8)
        )
        return -(value * focus * weight).sum()

    return loss


def settings(name: str, like: Tensor, backend: str) -> dict[str, object]:
    images, classes = like.shape
    chosen: dict[str, object] = {}
    if has_fused(name):
        chosen["backend"] = backend
    if name == "selective":
        gammas = {"gamma_pos": 1, "gamma_neg": 2, "gamma_unknown": 7}
        prior, top_k = frequencies(like)
        chosen |= {"top_k": top_k, "prior": prior, "prior_threshold": 0.05, **gammas}
    if name == "role":
        chosen |= {"num_images": images, "num_classes": classes}
    return chosen


def has_fused(name: str) -> bool:
    return "backend" in settings_of(name)


def frequencies(like: Tensor) -> tuple[Tensor, int]:
    """A prior and a K for so many classes."""
    classes = like.shape[1]
    prior = torch.rand(classes, generator=torch.Generator().manual_seed(0)).pow(8).to(like.device)
    return prior, min(200, classes // 4)


def call_of(name: str, like: Tensor, backend: str = "eager") -> Call:
    loss = build_loss(name, **settings(name, like, backend)).to(like.device)
    if name == "role":
        rows = torch.arange(len(like), device=like.device)
        return lambda logits, states: loss(logits, states, index=rows)
    if name in ("splc", "large_loss", "pseudo_label"):
        return lambda logits, states: loss(logits, states, epoch=2)
    return loss


def contenders(names: list[str], like: Tensor, *, compiled: bool) -> dict[Key, Call]:
    prior, top_k = frequencies(like)
    slow = reference(prior, top_k=top_k)
    found: dict[Key, Call] = {
        (REFERENCE, "eager"): lambda logits, states: slow(logits.float(), states)
    }
    try:
        asl = load("timm.loss").AsymmetricLossMultiLabel()
        found[ASL, "eager"] = lambda logits, states: asl(logits.float(), (states > 0).float())
    except ImportError:
        print("timm is not installed: left out")
    for name in names:
        found[name, "eager"] = call_of(name, like)
        if has_fused(name):
            fused = build_loss(name, **settings(name, like, "fused")).to(like.device)
            if reason := fused.why_eager(like):
                print(f"{name} is not fused: {reason}")
            else:
                found[name, "fused"] = fused
        if compiled:
            found[name, "compiled"] = torch.compile(call_of(name, like))
    return found


def differentiated(call: Call) -> Step:
    return lambda logits, states: call(logits, states).backward()


def scaled(call: Call, like: Tensor) -> Step:
    """With a gradient from above that is not 1."""
    two = torch.full((), 2.0, device=like.device)
    return lambda logits, states: call(logits, states).backward(two)


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        ctx.slopes = torch.empty_like(logits)
        return logits.new_empty((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        slopes, ctx.slopes = ctx.slopes, None  # or it would be copied
        return slopes


def nothing(logits: Tensor, states: Tensor) -> None:
    """What PyTorch itself needs for a function with a gradient that launches no kernel."""
    _Nothing.apply(logits).backward()


def copied(logits: Tensor, states: Tensor) -> None:
    logits.grad = logits.detach().clone()  # kept like a gradient, so that its place changes too


def check(names: list[str], batch: Batch) -> None:
    """Compare the fused losses with the eager ones, with an upstream gradient that is not 1."""
    logits, states = batch
    # In bfloat16 a fused gradient is rounded twice, an eager one once.
    limit = 1e-5 if logits.dtype == torch.float32 else 4e-3
    for name in filter(has_fused, names):
        values, gradients = [], []
        for backend in ("eager", "fused"):
            forget([batch])
            torch.full_like(logits, float("nan"))  # whoever gets this memory next must write it
            value = call_of(name, logits, backend)(logits, states)
            (0.37 * value).backward()
            assert logits.grad is not None
            values.append(value.item())
            gradients.append(logits.grad.float())
        off = abs(values[1] / values[0] - 1)
        off_gradient = float((gradients[1] - gradients[0]).norm() / gradients[0].norm())
        shape, dtype = "x".join(map(str, logits.shape)), str(logits.dtype).removeprefix("torch.")
        text = f"{shape:>10} {dtype:8} {name:20} fused against eager: "
        text += f"value {off:.1e}, gradient {off_gradient:.1e}"
        if not (off < 1e-5 and off_gradient < limit):  # false for NaN too
            raise SystemExit(f"{text}: too far off")
        print(text, flush=True)
    forget([batch])
