"""Tiles of mxfp4 weights inside a product: converted in registers, exactly, to the 16 bits of the activations."""

from __future__ import annotations

import triton
import triton.language as tl

_FROM_WORDS = """
{{
.reg .b32 sign, bits, unit;
{shift_sign} sign, $1, {sign_by};
and.b32 sign, sign, 0x80008000;
{shift_bits} bits, $1, {bits_by};
lop3.b32 bits, bits, 0x01C001C0, sign, 0xEA;
mov.b32 unit, 0x7E807E80;
mul.bf16x2 bits, bits, unit;
mul.bf16x2 $0, bits, $2;
}}
"""


def _conversion(quarter: int) -> tl.constexpr:
    """Returns the instructions that convert a quarter of two words to bf16, and multiply by two factors in bf16.

    Sign, exponent and mantissa (E2M1) go to their places in bf16, whose exponent is then too small by 126.
    """
    by = 6 - 4 * quarter
    shift, amount = ("shl.b32", by) if by > 0 else ("shr.b32", -by)
    code = _FROM_WORDS.format(shift_sign="shl.b32", sign_by=12 - 4 * quarter, shift_bits=shift, bits_by=amount)
    return tl.constexpr(code)


_QUARTER_0, _QUARTER_1, _QUARTER_2, _QUARTER_3 = (_conversion(quarter) for quarter in range(4))


@triton.jit
def mxfp4_quarter(words, exponents, QUARTER: tl.constexpr, DTYPE: tl.constexpr, ASM: tl.constexpr):
    """Returns the values [N, 32] of a quarter of words [N, 32] int16, in fp16 or bf16.

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
        code = (words.to(tl.int32) >> (4 * QUARTER)) & 15
        field = (code >> 1) & 3
        half = (code & 1).to(tl.float32) * 0.5
        size = tl.where(field == 0, half, tl.exp2(field.to(tl.float32) - 1.0) * (1.0 + half))
        value = tl.where(code >= 8, -size, size) * tl.exp2(exponent.to(tl.float32) - 127.0)[:, None]
        return value.to(DTYPE)
