"""Triton kernels of the fused losses; only `_fused` imports this, since Triton may not be there.

Forward: a program has one row of logits. It finds the
threshold above which unknown labels are ignored, then adds up what the labels cost and writes the
gradient, for which almost everything is at hand; the last program to end adds up the sums of all.
Backward multiplies it, where the gradient from above is not 1.

By bytes it would be less to compute the gradient in the backward pass, from the logits and the
thresholds. But these kernels are bound by instructions: dev/LOG.md has the measurements.
"""

from __future__ import annotations

import triton
import triton.language as tl

from partlabel.losses._device import exp, inverse
from partlabel.losses._search import threshold, unknown_logits


@triton.jit
def _log1p(a):
    """log(1 + a) for a in [0, 1], to 2e-7 of itself; tl.log(1 + a) loses a small a.

    The polynomial is that of degree 8 through log(1 + a) / a at 400 Chebyshev nodes.
    """
    r = 0.0052534578 * a - 0.0295885074
    r = r * a + 0.0783616680
    r = r * a - 0.1367476971
    r = r * a + 0.1911143108
    r = r * a - 0.2484436989
    r = r * a + 0.3331927134
    r = r * a - 0.4999950152
    r = r * a + 0.9999999705
    return r * a


@triton.jit
def _power(base, gamma, KIND: tl.constexpr):
    """base^gamma: KIND is gamma where that is whole and at most 8, otherwise 15."""
    square = base * base
    if KIND == 0:
        result = base * 0.0 + 1.0
    elif KIND == 1:
        result = base
    elif KIND == 2:
        result = square
    elif KIND == 3:
        result = square * base
    elif KIND == 4:
        result = square * square
    elif KIND == 5:
        result = square * square * base
    elif KIND == 6:
        result = square * square * square
    elif KIND == 7:
        result = square * square * (square * base)
    elif KIND == 8:
        result = square * square
        result = result * result
    else:
        above = tl.where(base > 0, base, 1.0)
        result = tl.where(base > 0, tl.exp2(gamma * tl.log2(above)), base)  # 0 and NaN stay
    return result


@triton.jit
def _labels(x, s, limit, weight, numbers, KINDS: tl.constexpr, CLIP: tl.constexpr,
            DETACH: tl.constexpr, TOP: tl.constexpr, COST: tl.constexpr,
            SLOPE: tl.constexpr):  # fmt: skip
    """What each label costs, and the derivative of that by its logit.

    Selects and comparisons have half the rate of a multiplication, so they are few.
    """
    gamma_pos, gamma_neg, gamma_unknown, clip, alpha_pos, alpha_neg = numbers
    state = s.to(tl.int32)
    present = state > 0
    unknown = state == 0
    sign = tl.where(present, -1.0, 1.0)
    margin = x * sign
    small = exp(-tl.abs(margin))
    wide = inverse(1.0 + small)
    half = tl.where(margin >= 0, 1.0, 0.0)
    wrong = (small + half * (1.0 - small)) * wide  # the probability of the wrong answer
    q = wrong
    if CLIP:  # written so that NaN stays NaN
        q = tl.where(present, wrong, tl.where(wrong <= clip, 0.0, wrong - clip))
    if TOP:
        weight = weight * tl.where(x >= limit, 0.0, 1.0)
    of_unknown = weight * _power(q, gamma_unknown, KINDS // 256)
    of_absent = alpha_neg * _power(q, gamma_neg, KINDS // 16 % 16)
    of_present = alpha_pos * _power(wrong, gamma_pos, KINDS % 16)
    factor = tl.where(present, of_present, tl.where(unknown, of_unknown, of_absent))
    cost = wrong
    if COST or not DETACH:
        cost = tl.maximum(margin, 0.0) + _log1p(small)
        if CLIP:
            rest = 1.0 - q
            lost = 1.0 - rest  # what of q is left in 1 - q
            shifted = tl.where(lost > 0, -tl.log(rest) * (q / tl.where(lost > 0, lost, 1.0)), q)
            cost = tl.where(present, cost, shifted)
    slope = wrong
    if SLOPE:
        right = tl.where(margin >= 0, small, 1.0) * wide
        if CLIP:
            slope = tl.where(present, wrong, tl.where(q > 0, wrong * right / (1.0 - q), q))
        if not DETACH:
            gamma = tl.where(present, gamma_pos, tl.where(unknown, gamma_unknown, gamma_neg))
            if CLIP:
                right = tl.where(present, right, wrong * right / tl.where(q > 0, q, float("inf")))
            slope += gamma * right * cost
        slope = slope * (factor * sign)
    return factor * cost, slope


@triton.jit
def _class_weight(table, columns, classes, alpha, TABLE: tl.constexpr):
    """The weight of unknown labels, of each class where there is a table."""
    weight = alpha
    if TABLE:
        weight *= tl.load(table + columns, mask=columns < classes, other=0.0).to(tl.float32)
    return weight


@triton.jit(do_not_specialize=["top_k"])
def forward_kernel(logits, states, table, thresholds, slopes, sums, ticket, result, images, classes,
                   row_logits, step_logits, row_states, step_states, row_slopes, step_slopes, top_k,
                   gamma_pos, gamma_neg, gamma_unknown, clip, alpha_pos, alpha_neg, alpha_unknown,
                   KINDS: tl.constexpr, CLIP: tl.constexpr, DETACH: tl.constexpr,
                   TABLE: tl.constexpr, TOP: tl.constexpr, SLOPE: tl.constexpr,
                   SHIFT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
                   TILES: tl.constexpr, WIDE: tl.constexpr, ALONE: tl.constexpr):  # fmt: skip
    """Write thresholds and slopes of each row, the sum of a program, in the last one the result.

    With a search a program has whole rows: TILES of WIDTH columns in registers, and where these
    are not all (WIDE) it reads the others for each guess. Without one it has a single tile.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    rows_inside = (rows < images)[:, None]
    logits += (rows * row_logits)[:, None]
    states += (rows * row_states)[:, None]
    slopes += (rows * row_slopes)[:, None]
    numbers = (gamma_pos, gamma_neg, gamma_unknown, clip, alpha_pos, alpha_neg)
    first = tl.program_id(1) * WIDTH
    last = first + 1
    limit = tl.full([ROWS, 1], 0.0, tl.float32)
    if TOP:
        last = classes
        start = tl.arange(0, WIDTH)[None, :]
        inside = rows_inside & (start < classes)
        scores = (unknown_logits(logits, states, start, inside, step_logits, step_states),)
        for i in tl.static_range(1, TILES):
            columns = start + i * WIDTH
            inside = rows_inside & (columns < classes)
            part = unknown_logits(logits, states, columns, inside, step_logits, step_states)
            scores = scores + (part,)  # noqa: RUF005  # all that Triton knows of tuples
        found = threshold(scores, logits, states, classes, step_logits, step_states, rows_inside,
                          top_k, ROWS, WIDTH, TILES, WIDE, SHIFT)  # fmt: skip
        tl.store(thresholds + rows, found, mask=rows < images)
        limit = found[:, None]
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for at in range(first, last, WIDTH):
        # With a search the row was read just now and still is in a cache.
        columns = at + tl.arange(0, WIDTH)[None, :]
        inside = rows_inside & (columns < classes)
        x = tl.load(logits + columns.to(tl.int64) * step_logits, mask=inside, other=float("-inf"))
        s = tl.load(states + columns.to(tl.int64) * step_states, mask=inside, other=0)
        weight = _class_weight(table, columns, classes, alpha_unknown, TABLE)
        cost, slope = _labels(x.to(tl.float32), s, limit, weight, numbers, KINDS, CLIP, DETACH, TOP,
                              True, SLOPE)  # fmt: skip
        total += cost
        if SLOPE:
            slope = slope.to(slopes.dtype.element_ty)
            tl.store(slopes + columns.to(tl.int64) * step_slopes, slope, mask=inside)
    added = tl.sum(tl.sum(total, 1), 0)
    if ALONE:
        tl.store(result, added)
    else:
        _add_up(added, sums, ticket, result)


@triton.jit
def _add_up(total, sums, ticket, result):
    """Write a program's sum; the last program adds all of them, always in the same order."""
    programs = tl.num_programs(0) * tl.num_programs(1)
    tl.store(sums + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), total)
    before = tl.atomic_add(ticket, 1, sem="acq_rel", scope="gpu")
    if before == programs - 1:
        every = tl.arange(0, 1024)
        added = tl.zeros([1024], tl.float32)
        for first in range(0, programs, 1024):
            at = first + every
            # Not from this multiprocessor's cache, which does not see what others wrote.
            added += tl.load(sums + at, mask=at < programs, other=0.0, cache_modifier=".cg")
        tl.store(result, tl.sum(added, 0))
        tl.store(ticket, 0)  # for the next call


@triton.jit
def scale_kernel(upstream, slopes, size, BLOCK: tl.constexpr):
    """Multiply slopes, where upstream is not 1."""
    factor = tl.load(upstream)
    if factor != 1.0:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        scaled = tl.load(slopes + at, mask=at < size).to(tl.float32) * factor
        tl.store(slopes + at, scaled.to(slopes.dtype.element_ty), mask=at < size)


@triton.jit
def backward_kernel(upstream, logits, states, table, thresholds, slopes, images, classes,
                    row_logits, step_logits, row_states, step_states, row_slopes, step_slopes,
                    gamma_pos, gamma_neg, gamma_unknown, clip, alpha_pos, alpha_neg, alpha_unknown,
                    KINDS: tl.constexpr, CLIP: tl.constexpr, DETACH: tl.constexpr,
                    TABLE: tl.constexpr, TOP: tl.constexpr, ROWS: tl.constexpr,
                    WIDTH: tl.constexpr):  # fmt: skip
    """Write the gradient of ROWS x WIDTH labels."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = (tl.program_id(1) * WIDTH + tl.arange(0, WIDTH))[None, :]
    inside = (rows < images)[:, None] & (columns < classes)
    at = (rows * row_logits)[:, None] + columns.to(tl.int64) * step_logits
    x = tl.load(logits + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(
        states + (rows * row_states)[:, None] + columns.to(tl.int64) * step_states,
        mask=inside,
        other=0,
    )
    limit = tl.full([ROWS], 0.0, tl.float32)
    if TOP:
        limit = tl.load(thresholds + rows, mask=rows < images, other=0.0)
    weight = _class_weight(table, columns, classes, alpha_unknown, TABLE)
    numbers = (gamma_pos, gamma_neg, gamma_unknown, clip, alpha_pos, alpha_neg)
    _, slope = _labels(x, s, limit[:, None], weight, numbers, KINDS, CLIP, DETACH, TOP, False,
                       True)  # fmt: skip
    slope *= tl.load(upstream).to(tl.float32)
    at = (rows * row_slopes)[:, None] + columns.to(tl.int64) * step_slopes
    tl.store(slopes + at, slope.to(slopes.dtype.element_ty), mask=inside)
