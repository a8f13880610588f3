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
def times_scale(entries, scale, ASM: tl.constexpr):
    """Returns entries [N, W] times scale [N], rounded to their dtype. ASM: as for `quarter_of_words`."""
    factor = scale.to(entries.dtype)[:, None]
    if ASM:
        CODE: tl.constexpr = "mul.f16x2 $0, $1, $2;" if entries.dtype == tl.float16 else "mul.bf16x2 $0, $1, $2;"
        factors = tl.broadcast_to(factor, entries.shape)
        return tl.inline_asm_elementwise(CODE, "=r,r,r", [entries, factors], dtype=entries.dtype, is_pure=True, pack=2)
    else:
        return entries * factor


@triton.jit
def _column(word):
    """Returns the column of the first entry of a word of a whole block."""
    return word // 128 * 512 + word % 128


@triton.jit
def load_groups(values, column, tile_n, mask, SIZES: tl.constexpr):
    """Returns scales or zeros [TILE_N] of the group of a column, 0 if masked."""
    at = values + tile_n * SIZES.scale_strides[0] + column // SIZES.scale_columns * SIZES.scale_strides[1]
    return tl.load(at, mask=mask & (column < SIZES.k), other=0)


@triton.jit
def _load_scales(inputs, column, tile_n, in_tile, SIZES: tl.constexpr, QUARTER: tl.constexpr):
    """Returns the scales [TILE_N] of the four quarters, of QUARTER columns each, from a column on."""
    first = load_groups(inputs.weight_scale, column, tile_n, in_tile, SIZES)
    second = load_groups(inputs.weight_scale, column + QUARTER, tile_n, in_tile, SIZES)
    third = load_groups(inputs.weight_scale, column + 2 * QUARTER, tile_n, in_tile, SIZES)
    fourth = load_groups(inputs.weight_scale, column + 3 * QUARTER, tile_n, in_tile, SIZES)
    return first, second, third, fourth


@triton.jit
def _multiply_quarter(entries, x_tile, offset, scale, inputs, column, tile_n, in_tile, SIZES: tl.constexpr):
    """Returns sums of a quarter [TILE_N, BLOCK_M] times scale. entries: less 8. offset: sums of x, for other zeros."""
    partial = tl.dot(entries, x_tile, out_dtype=tl.float32, input_precision="ieee")
    if inputs.zeros is not None:
        zero = load_groups(inputs.zeros, column, tile_n, in_tile, SIZES)
        partial += offset * (8.0 - zero.to(tl.float32))[:, None]
    return partial * scale[:, None]


@triton.jit
def _add_words(
    acc, acc_high, w_tile, w_high, x_at, column, mask, scales, scales_high, inputs, tile_n, in_tile,
    SIZES: tl.constexpr, QUARTER: tl.constexpr, GLU: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Adds sums of words [TILE_N, WORDS] whose quarters lie in one group each to acc, with GLU of w_high to acc_high.

    x_at: addresses [WORDS, BLOCK_M] of the first quarter of x, whose mask is `mask`; column: its first column.
    """
    for quarter in tl.static_range(4):
        x_tile = tl.load(x_at + QUARTER * quarter, mask=mask, other=0.0)
        offset = 0.0
        if inputs.zeros is not None:
            ones = tl.full(w_tile.shape, 1.0, x_tile.dtype)
            offset = tl.dot(ones, x_tile, out_dtype=tl.float32, input_precision="ieee")
        at = column + QUARTER * quarter
        entries = quarter_of_words(w_tile, quarter, x_tile.dtype, ASM)
        acc += _multiply_quarter(entries, x_tile, offset, scales[quarter], inputs, at, tile_n, in_tile, SIZES)
        if GLU:
            entries = quarter_of_words(w_high, quarter, x_tile.dtype, ASM)
            high_n = tile_n + SIZES.n
            acc_high += _multiply_quarter(
                entries, x_tile, offset, scales_high[quarter], inputs, at, high_n, in_tile, SIZES
            )
    return acc, acc_high


@triton.jit
def multiply_int4(
    x, words, inputs, first, steps, m, rows, stride_x, tile_n, in_tile, has_tail,
    SIZES: tl.constexpr, TILES: tl.constexpr, TILE_N: tl.constexpr, GLU: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Returns sums over a split of K [TILE_N, BLOCK_M], and with GLU those of the up projection, else zeros.

    words: [N, K / 4] int16, as `int4_layout` describes them. first: first column of K. A step takes BLOCK_K / 4 words
    of each row, whose quarters lie in one group each: their sums are multiplied with its scale in fp32, so the values
    are exact. has_tail: also of the short blocks behind the last whole one. ASM: as for `quarter_of_words`.
    """
    ROW: tl.constexpr = SIZES.k // 4
    WHOLE: tl.constexpr = SIZES.k // 512 * 128  # words of whole blocks
    BLOCK_M: tl.constexpr = SIZES.block_m
    WORDS: tl.constexpr = TILES.block_k // 4
    lanes = tl.arange(0, WORDS)
    in_m = m[None, :] < rows
    high_n = tile_n + SIZES.n
    w_row = words + tile_n.to(tl.int64)[:, None] * ROW
    w_at = w_row + lanes[None, :]
    x_row = x + m[None, :].to(tl.int64) * stride_x
    x_at = x_row + lanes[:, None]
    acc = tl.zeros([TILE_N, BLOCK_M], tl.float32)
    acc_high = tl.zeros([TILE_N, BLOCK_M], tl.float32)
    # Scales are loaded a step ahead: the pipeline of the loop only moves loads of operands of the matrix unit.
    next_0, next_1, next_2, next_3 = _load_scales(inputs, _column(first // 4), tile_n, in_tile, SIZES, 128)
    high_0, high_1, high_2, high_3 = next_0, next_1, next_2, next_3
    if GLU:
        high_0, high_1, high_2, high_3 = _load_scales(inputs, _column(first // 4), high_n, in_tile, SIZES, 128)
    for step in tl.range(0, steps, num_stages=TILES.stages):
        word = tl.multiple_of(first // 4 + step * WORDS, WORDS)
        column = tl.multiple_of(word // 128 * 512 + word % 128, WORDS)  # a hint for the result of a function is lost
        in_k = word < WHOLE
        w_tile = tl.load(w_at + word, mask=in_tile[:, None] & in_k, other=0)
        w_high = w_tile
        if GLU:
            w_high = tl.load(w_at + SIZES.n * ROW + word, mask=in_tile[:, None] & in_k, other=0)
        scales = next_0, next_1, next_2, next_3
        ups = high_0, high_1, high_2, high_3
        next_0, next_1, next_2, next_3 = _load_scales(inputs, _column(word + WORDS), tile_n, in_tile, SIZES, 128)
        if GLU:
            high_0, high_1, high_2, high_3 = _load_scales(inputs, _column(word + WORDS), high_n, in_tile, SIZES, 128)
        acc, acc_high = _add_words(
            acc, acc_high, w_tile, w_high, x_at + column, column, in_m & in_k, scales, ups, inputs, tile_n, in_tile,
            SIZES, 128, GLU, ASM,
        )  # fmt: skip
    if ROW > WHOLE:  # noqa: SIM102 (compiled only if it is true)
        if has_tail:
            tail = tl.arange(0, 32)
            for word in tl.static_range(WHOLE, ROW, 32):
                w_tile = tl.load(w_row + word + tail[None, :], mask=in_tile[:, None], other=0)
                w_high = w_tile
                scales = _load_scales(inputs, 4 * word, tile_n, in_tile, SIZES, 32)
                ups = scales
                if GLU:
                    w_high = tl.load(w_row + SIZES.n * ROW + word + tail[None, :], mask=in_tile[:, None], other=0)
                    ups = _load_scales(inputs, 4 * word, high_n, in_tile, SIZES, 32)
                acc, acc_high = _add_words(
                    acc, acc_high, w_tile, w_high, x_row + 4 * word + tail[:, None], 4 * word, in_m, scales, ups,
                    inputs, tile_n, in_tile, SIZES, 32, GLU, ASM,
                )  # fmt: skip
    return acc, acc_high
