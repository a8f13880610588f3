"""Tiles of 4-bit weights inside a product: converted in registers, exactly, to the 16 bits of the activations."""

from __future__ import annotations

import triton
import triton.language as tl

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
    """Returns entries - 8 of a quarter of words [N, W] int16 (`int4_layout`), in fp16 or bf16.

    ASM: two entries an instruction, from compute capability 9.0 on; not in the interpreter.
    """
    if ASM and tl.bfloat16 == DTYPE:
        CODE: tl.constexpr = (
            _BF16_0 if QUARTER == 0 else _BF16_1 if QUARTER == 1 else _BF16_2 if QUARTER == 2 else _BF16_3
        )
        return tl.inline_asm_elementwise(CODE, "=r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2)
    elif ASM:
        FP16_CODE: tl.constexpr = (
            _FP16_0 if QUARTER == 0 else _FP16_1 if QUARTER == 1 else _FP16_2 if QUARTER == 2 else _FP16_3
        )
        return tl.inline_asm_elementwise(FP16_CODE, "=r,r", [words], dtype=tl.float16, is_pure=True, pack=2)
    else:
        return ((words >> (4 * QUARTER)) & 15).to(DTYPE) - 8.0


@triton.jit
def _load_groups(values, word, quarter, tile_n, mask, SIZES: tl.constexpr):
    """Returns scales or zeros [TILE_N] of a quarter of the words from `word` on, 0 if masked: it lies in one group."""
    group = (word // 128 * 512 + word % 128 + quarter * 128) // SIZES.scale_columns
    at = values + tile_n * SIZES.scale_strides[0] + group * SIZES.scale_strides[1]
    return tl.load(at, mask=mask & (word * 4 < SIZES.k), other=0)


@triton.jit
def _scaled(partial, offset, scale, inputs, word, quarter, tile_n, in_tile, SIZES: tl.constexpr):
    """Returns sums of a quarter [TILE_N, BLOCK_M], of entries - 8, times scale. offset: sums of x, for other zeros."""
    if inputs.zeros is not None:
        zero = _load_groups(inputs.zeros, word, quarter, tile_n, in_tile, SIZES)
        partial += offset * (8.0 - zero.to(tl.float32))[:, None]
    return partial * scale[:, None]


@triton.jit
def _load_scales(inputs, word, tile_n, in_tile, SIZES: tl.constexpr):
    """Returns the scales [TILE_N] of each quarter of the words from `word` on."""
    first = _load_groups(inputs.weight_scale, word, 0, tile_n, in_tile, SIZES)
    second = _load_groups(inputs.weight_scale, word, 1, tile_n, in_tile, SIZES)
    third = _load_groups(inputs.weight_scale, word, 2, tile_n, in_tile, SIZES)
    fourth = _load_groups(inputs.weight_scale, word, 3, tile_n, in_tile, SIZES)
    return first, second, third, fourth


@triton.jit
def multiply_int4(
    x, words, inputs, first, steps, m, rows, stride_x, tile_n, in_tile,
    SIZES: tl.constexpr, TILES: tl.constexpr, TILE_N: tl.constexpr, GLU: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Returns sums over a split of K [TILE_N, BLOCK_M], and with GLU those of the up projection, else zeros.

    words: [N, K / 4] int16, as `int4_layout` describes them. first: first column of K. A step takes BLOCK_K / 4 words
    of each row, whose quarters lie in one group each: their sums are multiplied with its scale in fp32, so the values
    are exact. ASM: as for `quarter_of_words`.
    """
    K: tl.constexpr = SIZES.k
    BLOCK_M: tl.constexpr = SIZES.block_m
    WORDS: tl.constexpr = TILES.block_k // 4
    lanes = tl.arange(0, WORDS)
    in_m = m[None, :] < rows
    high_n = tile_n + SIZES.n
    w_at = words + tile_n.to(tl.int64)[:, None] * (K // 4) + lanes[None, :]
    x_at = x + m[None, :].to(tl.int64) * stride_x + lanes[:, None]
    acc = tl.zeros([TILE_N, BLOCK_M], tl.float32)
    acc_high = tl.zeros([TILE_N, BLOCK_M], tl.float32)
    # Scales are loaded a step ahead: the pipeline of the loop only moves loads of operands of the matrix unit.
    next_0, next_1, next_2, next_3 = _load_scales(inputs, first // 4, tile_n, in_tile, SIZES)
    high_0, high_1, high_2, high_3 = next_0, next_1, next_2, next_3
    if GLU:
        high_0, high_1, high_2, high_3 = _load_scales(inputs, first // 4, high_n, in_tile, SIZES)
    for step in tl.range(0, steps, num_stages=TILES.stages):
        word = tl.multiple_of(first // 4 + step * WORDS, WORDS)
        column = tl.multiple_of(word // 128 * 512 + word % 128, WORDS)
        in_k = word * 4 < K
        w_tile = tl.load(w_at + word, mask=in_tile[:, None] & in_k, other=0)
        if GLU:
            w_high = tl.load(w_at + SIZES.n * (K // 4) + word, mask=in_tile[:, None] & in_k, other=0)
        scale_0, scale_1, scale_2, scale_3 = next_0, next_1, next_2, next_3
        up_0, up_1, up_2, up_3 = high_0, high_1, high_2, high_3
        next_0, next_1, next_2, next_3 = _load_scales(inputs, word + WORDS, tile_n, in_tile, SIZES)
        if GLU:
            high_0, high_1, high_2, high_3 = _load_scales(inputs, word + WORDS, high_n, in_tile, SIZES)
        for quarter in tl.static_range(4):
            x_tile = tl.load(x_at + column + 128 * quarter, mask=in_m & in_k, other=0.0)
            offset = 0.0
            if inputs.zeros is not None:
                ones = tl.full([TILE_N, WORDS], 1.0, x_tile.dtype)
                offset = tl.dot(ones, x_tile, out_dtype=tl.float32, input_precision="ieee")
            scale = scale_0 if quarter == 0 else scale_1 if quarter == 1 else scale_2 if quarter == 2 else scale_3
            entries = quarter_of_words(w_tile, quarter, x_tile.dtype, ASM)
            partial = tl.dot(entries, x_tile, out_dtype=tl.float32, input_precision="ieee")
            acc += _scaled(partial, offset, scale, inputs, word, quarter, tile_n, in_tile, SIZES)
            if GLU:
                scale = up_0 if quarter == 0 else up_1 if quarter == 1 else up_2 if quarter == 2 else up_3
                entries = quarter_of_words(w_high, quarter, x_tile.dtype, ASM)
                partial = tl.dot(entries, x_tile, out_dtype=tl.float32, input_precision="ieee")
                acc_high += _scaled(partial, offset, scale, inputs, word, quarter, high_n, in_tile, SIZES)
    return acc, acc_high
