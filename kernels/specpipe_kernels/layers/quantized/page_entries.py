"""Entries of KV pages in 8 bits, float8_e4m3fn: rounding when they are stored, conversion to fp16 when they are read.

Triton's interpreter has no inline assembly, and its own conversions neither round nor keep NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

LARGEST = tl.constexpr(448.0)
_HALF_EVEN = tl.constexpr(1.5 * 2**23)  # added to and subtracted from a number below 2**22 in fp32, it rounds


@triton.jit
def _interpreted_round(x):
    exponent = tl.maximum(((x.to(tl.int32, bitcast=True) >> 23) & 255), 121)  # biased; 121: of the least normal number
    unit = ((exponent - 3) << 23).to(tl.float32, bitcast=True)
    rounded = ((x / unit + _HALF_EVEN) - _HALF_EVEN) * unit
    entry = rounded.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return tl.where(x == x, entry, 127).to(tl.uint8).to(tl.float8e4nv, bitcast=True)


@triton.jit
def _compiled_round(x):
    return x.to(tl.float8e4nv)


@triton.jit
def _interpreted_unpack(pairs):
    low = (pairs & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
    high = ((pairs >> 8) & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
    low = tl.where((pairs & 127) == 127, float("nan"), low)
    return low.to(tl.float16), tl.where(((pairs >> 8) & 127) == 127, float("nan"), high).to(tl.float16)


@triton.jit
def _compiled_unpack(pairs):
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 sorted;
        .reg .b16 low, high;
        prmt.b32 sorted, $2, 0, 0x3120;
        mov.b32 {low, high}, sorted;
        cvt.rn.f16x2.e4m3x2 $0, low;
        cvt.rn.f16x2.e4m3x2 $1, high;
        }""",
        "=r,=r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2,
    )  # fmt: skip


_COMPILED = isinstance(_compiled_unpack, JITFunction)
_round = _compiled_round if _COMPILED else _interpreted_round
# fp16 tensors of the low and of the high bytes of int16 pairs; exact. Three instructions for four entries.
unpack_pairs = _compiled_unpack if _COMPILED else _interpreted_unpack


@triton.jit
def to_page_entries(x, scale):
    """Returns x / scale in 8 bits, as `KVScales` describes; scale has the shape of x or is broadcast to it."""
    scaled = x.to(tl.float32) * tl.div_rn(1.0, scale)
    return _round(tl.clamp(scaled, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL))
