"""The search for the K-th largest unknown logit of a row, in registers of a Triton program."""

from __future__ import annotations

import triton
import triton.language as tl

from partlabel.losses._device import inverse, log2, settled


@triton.jit
def _code(x, SHIFT: tl.constexpr):
    """A whole number that is ordered as x; without the bits that a 16-bit x does not have."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT


@triton.jit
def _value(code, SHIFT: tl.constexpr):
    bits = (code << SHIFT) | ((code >> 31) & ((1 << SHIFT) - 1))
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def unknown_logits(logits, states, columns, inside, step_logits, step_states):
    """Logits of unknown labels, -inf for all others."""
    x = tl.load(logits + columns.to(tl.int64) * step_logits, mask=inside, other=float("-inf")).to(
        tl.float32
    )
    s = tl.load(states + columns.to(tl.int64) * step_states, mask=inside, other=0)
    return settled(tl.where(s == 0, x, float("-inf")))


@triton.jit
def _not_below(scores, at, logits, states, classes, step_logits, step_states, rows_inside,
               WIDTH: tl.constexpr, TILES: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    """How many scores of each row are at least ``at``, as floats: these count in fewer steps."""
    many = tl.where(scores[0] >= at[:, None], 1.0, 0.0)
    for i in tl.static_range(1, TILES):
        many += tl.where(scores[i] >= at[:, None], 1.0, 0.0)
    if WIDE:
        for first in range(WIDTH * TILES, classes, WIDTH):
            columns = first + tl.arange(0, WIDTH)[None, :]
            inside = rows_inside & (columns < classes)
            part = unknown_logits(logits, states, columns, inside, step_logits, step_states)
            many += tl.where(part >= at[:, None], 1.0, 0.0)
    return tl.sum(many, 1)


@triton.jit
def _largest(scores, logits, states, classes, step_logits, step_states, rows_inside,
             WIDTH: tl.constexpr, TILES: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    most = scores[0]
    for i in tl.static_range(1, TILES):
        most = tl.maximum(most, scores[i])
    if WIDE:
        for first in range(WIDTH * TILES, classes, WIDTH):
            columns = first + tl.arange(0, WIDTH)[None, :]
            inside = rows_inside & (columns < classes)
            part = unknown_logits(logits, states, columns, inside, step_logits, step_states)
            most = tl.maximum(most, part)
    return tl.max(most, 1)


@triton.jit
def _quantile(upper):
    """Where a normal distribution has this share above it: Abramowitz and Stegun 26.2.22."""
    tail = tl.maximum(tl.minimum(upper, 1.0 - upper), 1e-9)
    y = tl.sqrt(-1.3862944 * log2(tail))
    z = y - (2.30753 + 0.27061 * y) * inverse(1.0 + 0.99229 * y + 0.04481 * y * y)
    return tl.where(upper > 0.5, -z, z)


@triton.jit
def threshold(scores, logits, states, classes, step_logits, step_states, rows_inside, top_k,
              ROWS: tl.constexpr, WIDTH: tl.constexpr, TILES: tl.constexpr, WIDE: tl.constexpr,
              SHIFT: tl.constexpr):  # fmt: skip
    """A number t of each row: score >= t for its top_k largest, and for those equal to the last.

    Scores are the tiles of a row; with WIDE there are more, read again for each guess.

    A bracket [low, high) shrinks: at least top_k scores are not below low, fewer than top_k not
    below high. The first guess comes from a normal distribution like the first tile, the next from
    the counts at both ends, with log(count) taken as linear (in a tail it nearly is); where an end
    stays, its count counts half (the Illinois rule). From the ninth on every second guess halves
    the bracket of the numbers' codes, so that no row needs more than 8 + 2 * 32. A guess with
    exactly top_k scores above it will do: it need not be one of the scores.
    """
    top = top_k.to(tl.float32) + tl.zeros([ROWS], tl.float32)
    finite = tl.full([ROWS], -3.4028234e38, tl.float32)
    count = _not_below(scores, finite, logits, states, classes, step_logits, step_states,
                       rows_inside, WIDTH, TILES, WIDE)  # fmt: skip
    largest = _largest(scores, logits, states, classes, step_logits, step_states, rows_inside,
                       WIDTH, TILES, WIDE)  # fmt: skip
    there = scores[0] > float("-inf")
    usual = tl.where(there, scores[0], 0.0)
    share = inverse(tl.maximum(tl.sum(tl.where(there, 1.0, 0.0), 1), 1.0))
    mean = tl.sum(usual, 1) * share
    deviation = tl.sqrt(tl.maximum(tl.sum(usual * usual, 1) * share - mean * mean, 1e-12))

    z = _quantile(top * inverse(tl.maximum(count, 1.0)))
    # The count falls to half over about this width.
    width = 2.7726 * deviation * inverse(3.0 * z + tl.sqrt(z * z + 8.0))
    wanted = log2(top + 0.5)
    guess = mean + z * deviation
    low = _code(tl.full([ROWS], float("-inf"), tl.float32), SHIFT)
    high = _code(largest, SHIFT) + 1
    at_low = mean
    at_high = largest
    log_low = log2(count + 0.5)
    log_high = tl.full([ROWS], -1.0, tl.float32)
    side = tl.zeros([ROWS], tl.int32)  # which end moved last: 1 low, -1 high; 0 low never did
    step = 0
    active = (count > top).to(tl.int32)
    while tl.max(active, 0) > 0:
        code = tl.minimum(tl.maximum(_code(guess, SHIFT), low + 1), high - 1)
        at = _value(code, SHIFT)
        found = _not_below(scores, at, logits, states, classes, step_logits, step_states,
                           rows_inside, WIDTH, TILES, WIDE)  # fmt: skip
        log_found = log2(found + 0.5)
        up = (active > 0) & (found >= top)
        down = (active > 0) & (found < top)
        log_high = tl.where(up & (side == 1), 0.5 * (log_high + wanted), log_high)
        log_low = tl.where(down & (side == -1), 0.5 * (log_low + wanted), log_low)
        low, at_low = tl.where(up, code, low), tl.where(up, at, at_low)
        log_low = tl.where(up, log_found, log_low)
        high, at_high = tl.where(down, code, high), tl.where(down, at, at_high)
        log_high = tl.where(down, log_found, log_high)
        side = tl.where(up, 1, tl.where(down & (side != 0), -1, side))
        guess = at_low + (at_high - at_low) * ((log_low - wanted) * inverse(log_low - log_high))
        guess = tl.where(side == 0, at + (log_found - wanted) * width, guess)
        width = 2.0 * width
        step += 1
        if (step >= 9) & (step % 2 == 1):
            guess = _value((low >> 1) + (high >> 1) + (low & high & 1), SHIFT)
        active = ((active > 0) & (found != top) & (high > low + 1)).to(tl.int32)
    # A row with no more than top_k unknown labels ignores them all.
    return tl.where(count > top, _value(low, SHIFT), float("-inf"))
