"""The asymmetric family on a GPU.

Imported on first use only: it needs Triton.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from partlabel.losses import _kernels, _tickets
from partlabel.losses._inplace import Eager, derivable
from partlabel.losses._launch import Plan, planned
from partlabel.losses.recipe import Recipe

WIDEST = 32768
"""Rows up to this many classes are held in registers while their threshold is searched."""
_BITS_UNUSED = {torch.float32: 0, torch.bfloat16: 16, torch.float16: 13}


def fused(
    logits: Tensor,
    states: Tensor,
    recipe: Recipe,
    table: Tensor | None,
    scale: float,
    eager: Eager | None = None,
) -> Tensor:
    """The sum of all labels' costs times scale, float32.

    Args:
        logits: (B, C), not empty, float32, bfloat16 or float16.
        states: int8 (B, C).
        recipe: What each label costs.
        table: (C,) float, the weights of unknown labels by class; None where all are 1.
        scale: Multiplies the sum.
        eager: The same loss made of differentiable operations, for a second derivative.
    """
    recipe = recipe.simplified(logits.shape[1])
    if table is not None:
        table = table.to(torch.float32).contiguous()
    if torch.compiler.is_compiling():
        total, _ = _operator(logits, states, table, _numbers(recipe), recipe.top_k, scale)
    else:
        total = _Function.apply(  # type: ignore[no-untyped-call]
            logits, states, table, recipe, scale, eager, torch.is_grad_enabled()
        )
    return cast(Tensor, total)


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        states: Tensor,
        table: Tensor | None,
        recipe: Recipe,
        scale: float,
        eager: Eager | None,
        training: bool,
    ) -> Tensor:
        wanted = training and ctx.needs_input_grad[0]
        # In float16 the gradient may be too small to be written before it is scaled up.
        early = wanted and logits.dtype != torch.float16
        ctx.slopes = torch.empty_like(logits) if early else None
        total, thresholds = forward(logits, states, table, recipe, scale, ctx.slopes)
        if wanted:
            ctx.save_for_backward(logits, states)
            ctx.rest = (table, thresholds, recipe, scale)
            ctx.eager = eager
        return total

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor) -> tuple[Tensor | None, ...]:
        (upstream,) = upstreams
        if torch.is_grad_enabled():  # the gradient is to be derived too
            logits, states = ctx.saved_tensors
            slopes = derivable(ctx.eager, logits, states, upstream)
        elif ctx.slopes is not None:
            slopes, ctx.slopes = ctx.slopes, None
            rescale(upstream, slopes)
        else:  # or a second time over the same graph: those of the first time were given away
            slopes = backward(upstream, *ctx.saved_tensors, *ctx.rest)
        return slopes, None, None, None, None, None, None


class _Tiles(NamedTuple):
    rows: int
    width: int
    tiles: int
    wide: bool
    warps: int


def forward(
    logits: Tensor,
    states: Tensor,
    table: Tensor | None,
    recipe: Recipe,
    scale: float,
    slopes: Tensor | None = None,
    ticket: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss, and the threshold of each row (none where nothing is searched).

    Where slopes are given, the gradient of the loss by the logits is written there. The ticket is
    an int32 of 0; without one, one is taken from those of the stream.
    """
    given = logits if slopes is None else slopes
    key = (
        "forward", logits.shape, logits.stride(), states.stride(), given.stride(), logits.dtype,
        logits.device, table is None, slopes is None, recipe, scale,
    )  # fmt: skip

    def make() -> Plan:
        images, classes = logits.shape
        top = recipe.top_k > 0
        tiles = forward_tiles(images, classes, top=top)
        grid = (-(-images // tiles.rows), 1 if top else -(-classes // tiles.width))
        numbers = (*logits.stride(), *states.stride(), *given.stride(), recipe.top_k)
        constants = (
            *_shape_of(recipe), table is not None, top, slopes is not None,
            _BITS_UNUSED[logits.dtype], *tiles[:-1], grid == (1, 1),
        )  # fmt: skip
        arguments = (images, classes, *numbers, *_floats(recipe, scale), *constants)
        return Plan(_kernels.forward_kernel, grid, arguments, tiles.warps)

    plan = planned(key, make)
    total = torch.empty((), dtype=torch.float32, device=logits.device)
    sums = total.new_empty(plan.grid[0] * plan.grid[1])
    thresholds = total.new_empty(len(logits) if recipe.top_k else 0)
    if ticket is None:
        ticket = _tickets.ticket(logits.device)
    weights = logits if table is None else table
    plan.launch(logits, states, weights, thresholds, given, sums, ticket, total)
    return total, thresholds


def rescale(upstream: Tensor, slopes: Tensor) -> None:
    """Multiply slopes in place; they are dense, whatever their strides."""
    size, block = slopes.numel(), 4096
    plan = planned(
        ("rescale", slopes.dtype, slopes.device, size),
        lambda: Plan(_kernels.scale_kernel, (-(-size // block), 1), (size, block), 8),
    )
    plan.launch(upstream, slopes)


def backward(
    upstream: Tensor,
    logits: Tensor,
    states: Tensor,
    table: Tensor | None,
    thresholds: Tensor,
    recipe: Recipe,
    scale: float,
) -> Tensor:
    """The gradient by the logits, in their dtype, computed from them."""
    slopes = torch.empty_like(logits)
    key = (
        "backward", logits.shape, logits.stride(), states.stride(), slopes.stride(), logits.dtype,
        logits.device, table is None, recipe, scale,
    )  # fmt: skip

    def make() -> Plan:
        images, classes = logits.shape
        rows, width, warps = backward_tiles(images, classes)
        grid = (-(-images // rows), -(-classes // width))
        numbers = (images, classes, *logits.stride(), *states.stride(), *slopes.stride())
        constants = (*_shape_of(recipe), table is not None, recipe.top_k > 0, rows, width)
        arguments = (*numbers, *_floats(recipe, scale), *constants)
        return Plan(_kernels.backward_kernel, grid, arguments, warps)

    weights = logits if table is None else table
    planned(key, make).launch(upstream, logits, states, weights, thresholds, slopes)
    return slopes


def forward_tiles(images: int, classes: int, *, top: bool) -> _Tiles:
    """How rows are dealt out to programs, and in tiles of which width each has them.

    What was fastest on an H200; dev/LOG.md has what else was tried.
    """
    width = _power_of_two(classes)
    if not top:
        width = min(width, 2048)
        return _Tiles(max(1, min(_power_of_two(images), 512 // width)), width, 1, False, 4)
    if width <= 1024:
        return _Tiles(1, width, 1, False, max(1, width // 256))
    if classes > WIDEST:
        return _Tiles(1, 4096, 8, True, 16)
    # Where a multiprocessor has only one row or two, more of its warps should work on each.
    warps = 8 if classes > 16384 or (images <= 256 and classes > 4096) else 4
    width = min(256 * warps, width // 4)
    return _Tiles(1, width, -(-classes // width), False, warps)


def backward_tiles(images: int, classes: int) -> tuple[int, int, int]:
    """Rows, columns and warps of a program."""
    width = min(_power_of_two(classes), 1024)
    return max(1, min(_power_of_two(images), 512 // width)), width, 4


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _shape_of(recipe: Recipe) -> tuple[int, bool, bool]:
    """What of a recipe is compiled into a kernel."""
    gammas = (recipe.gamma_pos, recipe.gamma_neg, recipe.gamma_unknown)
    # Powers are products where they are whole and small; 15 is any other.
    present, absent, unknown = (int(gamma) if gamma in range(9) else 15 for gamma in gammas)
    return present + 16 * absent + 256 * unknown, recipe.clip > 0, recipe.detach_focus


def _floats(recipe: Recipe, scale: float) -> tuple[float, ...]:
    alphas = (recipe.alpha_pos, recipe.alpha_neg, recipe.alpha_unknown)
    gammas = (recipe.gamma_pos, recipe.gamma_neg, recipe.gamma_unknown)
    return (*gammas, recipe.clip, *(alpha * scale for alpha in alphas))


def _numbers(recipe: Recipe) -> list[float]:
    return [float(number) for number in recipe[:-1]]


def _recipe(numbers: list[float], top_k: int) -> Recipe:
    return Recipe._make((*numbers[:-1], bool(numbers[-1]), top_k))


# For torch.compile, which must not look inside.


@torch.library.custom_op("partlabel::fused_loss", mutates_args=())
def _operator(
    logits: Tensor,
    states: Tensor,
    table: Tensor | None,
    numbers: list[float],
    top_k: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    # A compiled graph has its own memory: what is made in it must not be kept for others.
    ticket = torch.zeros((), dtype=torch.int32, device=logits.device)
    return forward(logits, states, table, _recipe(numbers, top_k), scale, ticket=ticket)


@torch.library.custom_op("partlabel::fused_loss_slopes", mutates_args=())
def _slopes_operator(
    upstream: Tensor,
    logits: Tensor,
    states: Tensor,
    table: Tensor | None,
    thresholds: Tensor,
    numbers: list[float],
    top_k: int,
    scale: float,
) -> Tensor:
    recipe = _recipe(numbers, top_k)
    return backward(upstream, logits, states, table, thresholds, recipe, scale)


@_operator.register_fake
def _(
    logits: Tensor,
    states: Tensor,
    table: Tensor | None,
    numbers: list[float],
    top_k: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    total = logits.new_empty((), dtype=torch.float32)
    return total, total.new_empty(logits.shape[0] if top_k else 0)


@_slopes_operator.register_fake
def _(upstream: Tensor, logits: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(logits)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits, states, table, numbers, top_k, scale = inputs
    ctx.save_for_backward(logits, states, table, output[1])
    ctx.rest = (numbers, top_k, scale)


def _derive(ctx: Any, upstream: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    slopes = _slopes_operator(upstream, *ctx.saved_tensors, *ctx.rest)
    return slopes, None, None, None, None, None


_operator.register_autograd(_derive, setup_context=_keep)
