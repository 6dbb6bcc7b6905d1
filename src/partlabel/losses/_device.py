"""Single instructions of an NVIDIA GPU, for kernels that are bound by their number.

Triton's own exp, division and logarithm also care for numbers below 1e-38, which takes three to
thirty instructions more. Where Triton interprets, plain functions stand in for them.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _one(asm: tl.constexpr, x):
    return tl.inline_asm_elementwise(asm, "=f,f", [x], tl.float32, is_pure=True, pack=1)


COMPILED = tl.constexpr(not isinstance(_one, InterpretedFunction))


@triton.jit
def exp(x):
    """The exponential; 0 where it is below 1e-38."""
    y = x * LOG2_E
    return _one("ex2.approx.ftz.f32 $0, $1;", y) if COMPILED else tl.exp2(y)


@triton.jit
def inverse(x):
    """One over x; 0 where it is below 1e-38."""
    return _one("rcp.approx.ftz.f32 $0, $1;", x) if COMPILED else 1.0 / x


@triton.jit
def log2(x):
    """The logarithm to base 2, to some 1e-7."""
    return _one("lg2.approx.ftz.f32 $0, $1;", x) if COMPILED else tl.log2(x)


@triton.jit
def settled(x):
    """x, of which the compiler forgets how it came about, so that it does not do it again."""
    return _one("mov.f32 $0, $1;", x) if COMPILED else x
