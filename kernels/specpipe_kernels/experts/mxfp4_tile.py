"""Tiles of mxfp4 weights inside a product: converted in registers, exactly, to the 16 bits of the activations.

Converting takes more instructions than anything else in these products. So the words of `pack_mxfp4` hold sign and
magnitude of a value as far apart as bf16 does, and a factor that all values of a product share is left to its sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

SUM_FACTOR = tl.constexpr(2.0**64)
"""Factor of a product's sums where the values are converted two an instruction.

The bits of a value, read as bf16, are the value times 2^-126. Factors of 2^126 and the exponent would exceed bf16.
"""

_SHIFTED = """
{{
.reg .b32 bits;
shl.b32 bits, $1, {by};
and.b32 bits, bits, 0x81C081C0;
mul.bf16x2 $0, bits, $2;
}}
"""
# Of the last quarter, sign, upper and lower bits of the magnitude have places of their own.
_GATHERED = """
{
.reg .b32 sign, upper, lower;
shl.b32 sign, $1, 1;
shr.u32 upper, $1, 5;
shr.u32 lower, $1, 4;
and.b32 sign, sign, 0x80008000;
lop3.b32 sign, upper, 0x01000100, sign, 0xEA;
lop3.b32 sign, lower, 0x00C000C0, sign, 0xEA;
mul.bf16x2 $0, sign, $2;
}
"""
_QUARTER_0, _QUARTER_1, _QUARTER_2 = (tl.constexpr(_SHIFTED.format(by=by)) for by in (0, 3, 6))
_QUARTER_3 = tl.constexpr(_GATHERED)


@triton.jit
def mxfp4_quarter(words, exponents, QUARTER: tl.constexpr, DTYPE: tl.constexpr, ASM: tl.constexpr):
    """Returns the values [N, 32] of a quarter of words [N, 32] int16, in fp16 or bf16; with ASM, over SUM_FACTOR.

    exponents [N] int32: one byte for each quarter, the first lowest. ASM: two values an instruction, for bf16 on a
    GPU; the interpreter has none.
    """
    exponent = (exponents >> (8 * QUARTER)) & 255
    if ASM:
        CODE: tl.constexpr = (
            _QUARTER_0 if QUARTER == 0 else _QUARTER_1 if QUARTER == 1 else _QUARTER_2 if QUARTER == 2 else _QUARTER_3
        )
        factor = (exponent << 7).to(tl.int16)[:, None]
        return tl.inline_asm_elementwise(CODE, "=r,r,r", [words, factor], dtype=tl.bfloat16, is_pure=True, pack=2)
    else:
        word = words.to(tl.int32)
        if QUARTER == 3:
            sign = word >> 14
            field = (word >> 12) & 2 | (word >> 11) & 1
            half = (word >> 10) & 1
        else:
            sign = word >> (15 - 3 * QUARTER)
            field = (word >> (7 - 3 * QUARTER)) & 3
            half = (word >> (6 - 3 * QUARTER)) & 1
        half = half.to(tl.float32) * 0.5
        size = tl.where(field == 0, half, tl.exp2(field.to(tl.float32) - 1.0) * (1.0 + half))
        value = tl.where(sign & 1 == 1, -size, size) * tl.exp2(exponent.to(tl.float32) - 189.0)[:, None]
        return value.to(DTYPE)
