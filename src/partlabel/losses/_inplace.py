"""The asymmetric family on a CPU: value and gradient at once, in few passes over memory.

Most labels are unknown. So all are computed as if they were, with float arithmetic alone (masks
cost more than logarithms on a CPU), and the few known ones are put right one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import softplus

from partlabel.losses.base import power
from partlabel.losses.recipe import Recipe

Eager = Callable[[Tensor, Tensor], Tensor]
_FINITE = 80.0  # exp(x) is a float32 up to here and a little further
_EXACT = 40.0
_BLOCK = 2**20  # labels: arrays of 4 MiB, of which some ten are used in turn
_FEW = 0.2  # of all labels may be known; beyond, masks are cheaper than places


def fused(
    logits: Tensor,
    states: Tensor,
    recipe: Recipe,
    table: Tensor | None,
    scale: float,
    eager: Eager | None = None,
) -> Tensor:
    """As `_fused.fused`; ``eager`` takes over where many labels are known."""
    if eager is not None and int(states.count_nonzero()) > _FEW * states.numel():
        return eager(logits, states)
    recipe = recipe.simplified(logits.shape[1])
    total = _Function.apply(logits, states, recipe, table, scale, eager)  # type: ignore[no-untyped-call]
    return cast(Tensor, total)


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        states: Tensor,
        recipe: Recipe,
        table: Tensor | None,
        scale: float,
        eager: Eager | None,
    ) -> Tensor:
        total, ctx.slopes = _in_blocks(logits, states, recipe, table)
        ctx.save_for_backward(logits, states)  # for a second derivative alone
        ctx.scale, ctx.eager, ctx.dtype = scale, eager, logits.dtype
        return total * scale

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor) -> tuple[Tensor | None, ...]:
        (upstream,) = upstreams
        if torch.is_grad_enabled():  # the gradient is to be derived too
            logits, states = ctx.saved_tensors
            slopes = derivable(ctx.eager, logits, states, upstream)
        else:
            slopes = (ctx.slopes * (upstream * ctx.scale)).to(ctx.dtype)
        return slopes, None, None, None, None, None


def derivable(eager: Eager | None, logits: Tensor, states: Tensor, upstream: Tensor) -> Tensor:
    """The gradient by the logits, made of operations, so that it has a derivative itself."""
    if eager is None:
        raise RuntimeError("a second derivative needs the loss made of operations")
    value = eager(logits, states)
    return torch.autograd.grad(value, logits, upstream, create_graph=True)[0]


def _in_blocks(
    logits: Tensor, states: Tensor, recipe: Recipe, table: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Value and slopes of as many rows at a time as stay in a cache."""
    images, classes = logits.shape
    blocks = max(1, round(images * classes / _BLOCK))
    rows = -(-images // blocks)
    if rows == images:
        return value_and_slopes(logits, states, recipe, table)
    slopes = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    total = slopes.new_zeros(())
    for first in range(0, images, rows):
        some = slice(first, first + rows)
        part, slopes[some] = value_and_slopes(logits[some], states[some], recipe, table)
        total += part
    return total, slopes


def value_and_slopes(
    logits: Tensor, states: Tensor, recipe: Recipe, table: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The sum of what all labels cost, and its derivative by the logits, both float32."""
    x = logits.detach().to(torch.float32).contiguous()
    known = _places(states)
    if recipe.alpha_unknown == 0:
        slopes = torch.zeros_like(x)
        if math.isnan(float(x.sum())):  # NaN is not to hide where it is ignored
            slopes[x.isnan()] = math.nan
        total = slopes.sum()
    else:
        costs, slopes = _wrong_answers(x, recipe.gamma_unknown, recipe.clip, recipe.detach_focus)
        for weight in _weights(x, known, recipe, table):
            costs *= weight
            slopes *= weight
        costs.view(-1).index_fill_(0, known, 0.0)
        total = costs.sum()
    if known.numel():
        total += _put_known(x, states, known, slopes, recipe)
    return total, slopes


def _weights(x: Tensor, known: Tensor, recipe: Recipe, table: Tensor | None) -> list[Tensor]:
    """What unknown labels are multiplied with; what it has for known ones means nothing."""
    weights = []
    if table is not None:
        weights.append(table)
    if recipe.alpha_unknown != 1:
        weights.append(x.new_full((), recipe.alpha_unknown))
    if recipe.top_k:
        scores = x.clone()
        scores.view(-1).index_fill_(0, known, -math.inf)
        weights.append(scores.lt_(kth_largest(scores, recipe.top_k)))
    return weights


def _wrong_answers(x: Tensor, gamma: float, clip: float, detach: bool) -> tuple[Tensor, Tensor]:
    """q^gamma (-log(1 - q)) with q = max(sigma(x) - clip, 0), and its derivative by x."""
    if float(x.max()) <= _FINITE:
        odds = torch.exp(x)
        cost = torch.log1p(odds)
        wrong = odds.div_(odds + 1)
    else:
        cost, wrong = softplus(x, threshold=_EXACT), torch.sigmoid(x)
    if clip:
        return _clipped(wrong, gamma, clip, detach)
    focus = power(wrong, gamma) if gamma else None
    if focus is wrong:  # a power of one
        focus = wrong.clone()
    bend = None
    if focus is not None and not detach:
        bend = (1 - wrong).mul_(cost).mul_(focus).mul_(gamma)
    if focus is not None:
        wrong *= focus
        cost *= focus
    return cost, wrong if bend is None else wrong.add_(bend)


def _clipped(wrong: Tensor, gamma: float, clip: float, detach: bool) -> tuple[Tensor, Tensor]:
    q = torch.sub(wrong, clip).clamp_(min=0.0)
    cost = torch.log1p(-q).neg_()
    rise = (1 - wrong).mul_(wrong)  # of the probability
    above = q.clone().gt_(0.0)
    slope = rise.mul(above).div_(1 - q)
    if not gamma:
        return cost, slope
    focus = power(q, gamma)
    slope *= focus
    if not detach:
        slope += rise.mul_(above).mul_(focus).mul_(cost).mul_(gamma).div_(q.clamp(min=1e-30))
    return cost * focus, slope


def _put_known(x: Tensor, states: Tensor, known: Tensor, slopes: Tensor, recipe: Recipe) -> Tensor:
    """Put the slopes of known labels in their places, and give the sum of what they cost."""
    values, marks = x.view(-1)[known], states.reshape(-1)[known]
    total = x.new_zeros(())
    for sign, gamma, alpha, clip in (
        (1, recipe.gamma_pos, recipe.alpha_pos, 0.0),
        (-1, recipe.gamma_neg, recipe.alpha_neg, recipe.clip),
    ):
        those = marks > 0 if sign > 0 else marks < 0
        margins = values[those] * -sign
        if margins.numel():
            cost, slope = _wrong_answers(margins, gamma, clip, recipe.detach_focus)
            slopes.view(-1)[known[those]] = slope * (-sign * alpha)
            total += cost.sum() * alpha
    return total


def kth_largest(scores: Tensor, k: int) -> Tensor:
    """The k-th largest of each row (B, 1).

    All that reach it lie in the k groups with the largest maxima, and in no others but for equal
    ones; so only those groups are looked at. Groups are every so-many-th of a row: that reads
    memory in order.
    """
    rows, width = scores.shape
    size = min(int(math.sqrt(width / k)), 64)
    groups = width // size if size else 0
    if size > 1 and groups > k:
        grouped = scores[:, : groups * size].view(rows, size, groups)
        best = grouped.amax(1).topk(k, dim=1, sorted=False).indices
        inside = grouped.gather(2, best[:, None, :].expand(rows, size, k)).view(rows, -1)
        scores = torch.cat([inside, scores[:, groups * size :]], dim=1)
    return scores.topk(k, dim=1, sorted=False).values.amin(1, keepdim=True)


def _places(states: Tensor) -> Tensor:
    """Where labels are known, as places in the flattened batch."""
    flat = states.reshape(-1)
    whole = flat.numel() // 8 * 8
    if flat.data_ptr() % 8 or flat.storage_offset() % 8 or not flat.is_contiguous():
        return flat.nonzero().view(-1)
    # Eight at a time: few of them have any.
    words = flat[:whole].view(torch.int64).nonzero()
    count = torch.arange(max(8, flat.numel() - whole), device=flat.device)
    near = (words * 8 + count[:8]).view(-1)
    near = torch.cat([near, whole + count[: flat.numel() - whole]])
    return near[flat[near] != 0]
