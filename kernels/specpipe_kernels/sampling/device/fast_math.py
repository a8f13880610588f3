"""Logarithm, exponential and step in one or two instructions; tl.log takes twenty, tl.exp five, mostly for denormals.

Triton's interpreter has no inline assembly: it uses tl.log2 and tl.exp2.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

LN_2 = tl.constexpr(0.6931471805599453)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _interpreted_log2(x):
    return tl.log2(x)


@triton.jit
def _compiled_log2(x):
    return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _interpreted_log2_of_minus(x):
    return tl.log2(-x)


@triton.jit
def _compiled_log2_of_minus(x):
    return tl.inline_asm_elementwise(
        "{ .reg .f32 y; neg.f32 y, $1; lg2.approx.ftz.f32 $0, y; }", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _interpreted_exp2(x):
    return tl.exp2(x)


@triton.jit
def _compiled_exp2(x):
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _interpreted_at_least(x, y):
    return (x >= y).to(tl.float32)


@triton.jit
def _compiled_at_least(x, y):
    return tl.inline_asm_elementwise(
        "set.ge.f32.f32 $0, $1, $2;", "=f,f,f", [x, y], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _interpreted_multiply_subtract(x, y, z):
    return (x.to(tl.float64) * y.to(tl.float64) - z.to(tl.float64)).to(tl.float32)


@triton.jit
def _compiled_multiply_subtract(x, y, z):
    return tl.fma(x, y, -z)


_COMPILED = isinstance(_compiled_log2, JITFunction)
# Absolute error below 2^-22 from 1/2 to 2, elsewhere of the result's last bits.
fast_log2 = _compiled_log2 if _COMPILED else _interpreted_log2
# One instruction; a separate negation would take another one.
fast_log2_of_minus = _compiled_log2_of_minus if _COMPILED else _interpreted_log2_of_minus
# Relative error below 2^-22; 0 where the result is below 2^-126.
fast_exp2 = _compiled_exp2 if _COMPILED else _interpreted_exp2
# 1 where x >= y, else 0, as a factor: one fused multiply-add, where tl.where takes two more instructions.
at_least = _compiled_at_least if _COMPILED else _interpreted_at_least

# x * y - z, rounded once; the interpreter's tl.fma rounds twice.
multiply_subtract = _compiled_multiply_subtract if _COMPILED else _interpreted_multiply_subtract


@triton.jit
def fast_log(x):
    """Returns log(x). The absolute error, below 2e-7, is under half a unit in the last place of all scores."""
    return fast_log2(x) * LN_2


@triton.jit
def fast_exp(x):
    """Returns exp(x) with the relative error of ex2.approx."""
    return fast_exp2(x * LOG2_E)
