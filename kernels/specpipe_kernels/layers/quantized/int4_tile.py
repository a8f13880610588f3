"""Tiles of 4-bit weights inside a product: converted in registers, exactly, to the 16 bits of the activations."""

from __future__ import annotations

import triton
import triton.language as tl

WORDS = 32
"""16-bit words of a row and block; quarter i of them is columns 32 i … 32 i + 31 of the block (`int4_layout`)."""

_FROM_WORDS = """
{{
.reg .b32 bits, offset;
shr.u32 bits, $1, {shift};
lop3.b32 bits, bits, 0x000F000F, {magic}, 0xEA;
mov.b32 offset, {offset};
sub.{dtype} $0, bits, offset;
}}
"""


def _conversions(magic: int, offset: int, dtype: str) -> tuple[tl.constexpr, ...]:
    """Returns the instructions that convert each quarter of two words: magic | q is the number 2**m + q."""
    twice = 0x00010001
    return tuple(
        tl.constexpr(_FROM_WORDS.format(shift=4 * i, magic=hex(magic * twice), offset=hex(offset * twice), dtype=dtype))
        for i in range(4)
    )


# 128 + q in bf16 and 1024 + q in fp16 are exact, and so is the difference from 136 and 1032.
_BF16_0, _BF16_1, _BF16_2, _BF16_3 = _conversions(0x4300, 0x4308, "bf16x2")
_FP16_0, _FP16_1, _FP16_2, _FP16_3 = _conversions(0x6400, 0x6408, "f16x2")


@triton.jit
def quarter_of_words(words, QUARTER: tl.constexpr, DTYPE: tl.constexpr, ASM: tl.constexpr):
    """Returns entries - 8 of a quarter of words [N, WORDS] int16, in fp16 or bf16.

    ASM: two entries an instruction, from compute capability 9.0 on; not in the interpreter.
    """
    if ASM and tl.bfloat16 == DTYPE:
        CODE: tl.constexpr = (
            _BF16_0 if QUARTER == 0 else _BF16_1 if QUARTER == 1 else _BF16_2 if QUARTER == 2 else _BF16_3
        )
        return tl.inline_asm_elementwise(CODE, "=r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2)
    elif ASM:
        CODE: tl.constexpr = (
            _FP16_0 if QUARTER == 0 else _FP16_1 if QUARTER == 1 else _FP16_2 if QUARTER == 2 else _FP16_3
        )
        return tl.inline_asm_elementwise(CODE, "=r,r", [words], dtype=tl.float16, is_pure=True, pack=2)
    else:
        return ((words >> (4 * QUARTER)) & 15).to(DTYPE) - 8.0


@triton.jit
def _load_groups(values, block, quarter, tile_n, mask, SIZES: tl.constexpr):
    """Returns scales or zeros [TILE_N] of the group of columns that ends with this quarter of a block, 0 if masked."""
    group = (block * 128 + quarter * 32) // SIZES.scale_columns
    at = values + tile_n * SIZES.scale_strides[0] + group * SIZES.scale_strides[1]
    return tl.load(at, mask=mask & (block * 128 < SIZES.k), other=0)


@triton.jit
def _scaled(partial, offset, scale, inputs, block, quarter, tile_n, in_tile, SIZES: tl.constexpr):
    """Returns sums of a group [TILE_N, BLOCK_M], of entries - 8, times scale. offset: sums of x, for other zeros."""
    if inputs.zeros is not None:
        zero = _load_groups(inputs.zeros, block, quarter, tile_n, in_tile, SIZES)
        partial += offset * (8.0 - zero.to(tl.float32))[:, None]
    return partial * scale[:, None]


@triton.jit
def multiply_int4(
    x, words, inputs, first, steps, m, rows, stride_x, tile_n, in_tile,
    SIZES: tl.constexpr, TILES: tl.constexpr, TILE_N: tl.constexpr, GLU: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Returns sums over a split of K [TILE_N, BLOCK_M], and with GLU those of the up projection, else the same twice.

    words: [N, K / 4] int16, as `int4_layout` describes them. first: first column of K; a step is a block of 128.
    Sums of each group of columns are multiplied with its scale in fp32: the values are exact. ASM: as for
    `quarter_of_words`.
    """
    K: tl.constexpr = SIZES.k
    BLOCK_M: tl.constexpr = SIZES.block_m
    # Scales of whole blocks are loaded a step ahead: they are no operand of the matrix unit, and no stage of the loop.
    AHEAD: tl.constexpr = SIZES.scale_columns >= 128
    lanes = tl.arange(0, 32)
    in_m = m[None, :] < rows
    high_n = tile_n + SIZES.n
    w_at = words + tile_n.to(tl.int64)[:, None] * (K // 4) + lanes[None, :]
    x_at = x + m[None, :].to(tl.int64) * stride_x + lanes[:, None]
    ones = tl.full([TILE_N, 32], 1.0, x.dtype.element_ty)
    acc = tl.zeros([TILE_N, BLOCK_M], tl.float32)
    acc_high = tl.zeros([TILE_N, BLOCK_M], tl.float32)
    block = first // 128
    next_scale = _load_groups(inputs.weight_scale, block, 3, tile_n, in_tile, SIZES)
    next_high = next_scale
    if GLU:
        next_high = _load_groups(inputs.weight_scale, block, 3, high_n, in_tile, SIZES)
    for step in tl.range(0, steps, num_stages=TILES.stages):
        block = first // 128 + step
        in_k = block * 128 < K
        w_tile = tl.load(w_at + block * 32, mask=in_tile[:, None] & in_k, other=0)
        if GLU:
            w_high = tl.load(w_at + SIZES.n * (K // 4) + block * 32, mask=in_tile[:, None] & in_k, other=0)
        scale, scale_high = next_scale, next_high
        if AHEAD:
            next_scale = _load_groups(inputs.weight_scale, block + 1, 3, tile_n, in_tile, SIZES)
            if GLU:
                next_high = _load_groups(inputs.weight_scale, block + 1, 3, high_n, in_tile, SIZES)
        partial = tl.zeros([TILE_N, BLOCK_M], tl.float32)
        partial_high = tl.zeros([TILE_N, BLOCK_M], tl.float32)
        offset = tl.zeros([TILE_N, BLOCK_M], tl.float32)
        for quarter in tl.static_range(4):
            x_tile = tl.load(x_at + block * 128 + 32 * quarter, mask=in_m & in_k, other=0.0)
            entries = quarter_of_words(w_tile, quarter, x_tile.dtype, ASM)
            partial = tl.dot(entries, x_tile, partial, input_precision="ieee")
            if GLU:
                entries = quarter_of_words(w_high, quarter, x_tile.dtype, ASM)
                partial_high = tl.dot(entries, x_tile, partial_high, input_precision="ieee")
            if inputs.zeros is not None:
                offset = tl.dot(ones, x_tile, offset, input_precision="ieee")
            if (quarter + 1) * 32 % SIZES.scale_columns == 0 or quarter == 3:
                if not AHEAD:
                    scale = _load_groups(inputs.weight_scale, block, quarter, tile_n, in_tile, SIZES)
                acc += _scaled(partial, offset, scale, inputs, block, quarter, tile_n, in_tile, SIZES)
                partial = tl.zeros([TILE_N, BLOCK_M], tl.float32)
                if GLU:
                    if not AHEAD:
                        scale_high = _load_groups(inputs.weight_scale, block, quarter, high_n, in_tile, SIZES)
                    high = _scaled(partial_high, offset, scale_high, inputs, block, quarter, high_n, in_tile, SIZES)
                    acc_high += high
                    partial_high = tl.zeros([TILE_N, BLOCK_M], tl.float32)
                offset = tl.zeros([TILE_N, BLOCK_M], tl.float32)
    return acc, acc_high
