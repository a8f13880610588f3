"""Products of many rows with 4-bit weights, which are converted in registers on their way to the matrix unit.

A program owns a tile of the result and walks K, or its share of K: the last one to arrive adds the parts in a fixed
order. The weight is the left operand, which the matrix unit takes from registers: the result is computed transposed.
The four quarters of a step's words are one operand: Triton waits between products that add to the same sums. So x has
its columns in their order (`order_columns`). Tokens of a tile may be divided into two operands, whose sizes are powers
of 2. Values are rounded to the dtype of x, as `dequantize` does. A gated product keeps gate and up projection of an
output in one thread and stores the activation.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, TypeGuard

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from specpipe_kernels.layers.layer_args import SplitSums
from specpipe_kernels.layers.quantized.int4_layout import has_int4_tiles
from specpipe_kernels.layers.quantized.int4_tile import load_groups, quarter_of_words, times_scale
from specpipe_kernels.layers.quantized.order_columns import order_columns
from specpipe_kernels.layers.skinny_gemm_kernel import add_splits, load_squares, store_sums
from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.backend import processors
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv, power_of_2
from specpipe_kernels.weights import Normed, QuantizedWeight, Weight

MAX_ROWS = 1024
"""Most rows; beyond, copies took 3 to 8 % less time in a whole table of products, where power bounds both."""

WORDS = tl.constexpr(32)
"""Words of each row per step: 128 columns."""


class Int4Tiling(NamedTuple):
    """Tile sizes of a product; compile-time constants."""

    block_m: int
    rest_m: int
    """Further tokens of a tile, fewer than block_m: tiles are not limited to powers of 2. 0: none."""
    block_n: int
    """Rows of the weight; of a gated product half of them are the gate's."""
    stages: int
    """Steps whose loads are in flight."""
    warps: int
    splits: int = 1
    """Programs that share K."""

    def outputs(self, *, glu: bool) -> int:
        """Returns the outputs of a tile."""
        return self.block_n // 2 if glu else self.block_n


class Int4Sizes(NamedTuple):
    """Sizes of a product; compile-time constants."""

    n: int
    """Outputs."""
    k: int
    scale_columns: int
    """Columns that share a scale."""
    scale_strides: tuple[int, int]
    """Elements from one row of the scales to the next, and from one group to the next."""
    glu: bool
    parts: int
    """Parts of the sums of squares of x; 0 without a pending norm."""
    parts_pad: int
    """Smallest power of 2 not below `parts`, at least 1."""


class Int4Inputs(NamedTuple):
    """Operands of a product besides x and the words."""

    scale: Tensor
    zeros: Tensor | None
    bias: Tensor | None
    squares: Tensor | None


@triton.jit
def _quarter(
    w_tile, inputs, word, n, in_n,
    SIZES: tl.constexpr, QUARTER: tl.constexpr, DTYPE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Returns a quarter of words [BLOCK_N, WORDS], the first of which is `word`, in DTYPE."""
    column = word // 128 * 512 + word % 128 + 128 * QUARTER
    if SIZES.k % 512:  # short blocks lie behind the whole ones
        column = tl.where(word < SIZES.k // 512 * 128, column, 4 * word + 32 * QUARTER)
    entries = quarter_of_words(w_tile, QUARTER, DTYPE, ASM)
    if inputs.zeros is not None:
        zero = load_groups(inputs.zeros, column, n, in_n, SIZES)
        entries -= (zero.to(tl.float32) - 8.0).to(DTYPE)[:, None]
    return times_scale(entries, load_groups(inputs.scale, column, n, in_n, SIZES), ASM)


@triton.jit
def _tile_of_program(rows, SIZES: tl.constexpr, TILES: tl.constexpr):
    """Returns the tile's place along N and M: programs that run together share tiles of the weight and of x."""
    OUTPUTS: tl.constexpr = TILES.block_n // 2 if SIZES.glu else TILES.block_n
    tiles_n: tl.constexpr = (SIZES.n + OUTPUTS - 1) // OUTPUTS
    tiles_m = tl.cdiv(rows, TILES.block_m + TILES.rest_m)
    band = tl.program_id(0) // (8 * tiles_m) * 8
    width = tl.minimum(tiles_n - band, 8)
    place = tl.program_id(0) - band * tiles_m
    return band + place % width, place // width


@triton.jit
def _store_tile(
    acc, inputs, out, tile_n, n, in_n, m, rows, eps, SIZES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr
):
    """Stores the results of sums [BLOCK_N, BLOCK_M] of the weight's rows n and the tokens m."""
    DTYPE: tl.constexpr = out.dtype.element_ty
    if SIZES.parts > 0:
        sums = load_squares(inputs.squares, m, rows, SIZES.parts, SIZES.parts_pad)
        acc *= tl.rsqrt(tl.sum(sums, 0) / SIZES.k + eps)[None, :]
    if inputs.bias is not None:
        acc += tl.load(inputs.bias + n, mask=in_n, other=0.0).to(tl.float32)[:, None]
    if SIZES.glu:
        sums = acc.to(DTYPE).reshape(BLOCK_N // 16, 2, 8, BLOCK_M).permute(0, 2, 3, 1)
        gate, up = sums.reshape(BLOCK_N // 2, BLOCK_M, 2).split()
        gate = gate.to(tl.float32)
        result = gate / (1.0 + tl.exp(-gate)) * up.to(tl.float32)
        n = tile_n * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
    else:
        result = acc
    at = out + m[None, :].to(tl.int64) * SIZES.n + n[:, None]
    tl.store(at, result.to(DTYPE), mask=(m < rows)[None, :] & (n[:, None] < SIZES.n))


@triton.jit(do_not_specialize=["rows"])
def _int4_gemm_kernel(
    x, x_rest, words, inputs, out, parts, rows, eps, SIZES: tl.constexpr, TILES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """x, x_rest: descriptors of tiles [BLOCK_M, 4 * WORDS] and [REST_M, 4 * WORDS] of x in the order of the words.

    words: descriptor of tiles of the weight: [BLOCK_N, WORDS], of a gated product [BLOCK_N / 16, 2, 8, WORDS].
    """
    DTYPE: tl.constexpr = out.dtype.element_ty
    BLOCK_N: tl.constexpr = TILES.block_n
    BLOCK_M: tl.constexpr = TILES.block_m
    REST_M: tl.constexpr = TILES.rest_m
    TOKENS: tl.constexpr = BLOCK_M + REST_M
    SPLITS: tl.constexpr = TILES.splits
    steps: tl.constexpr = (SIZES.k + 4 * WORDS * SPLITS - 1) // (4 * WORDS * SPLITS)
    tile_n, tile_m = _tile_of_program(rows, SIZES, TILES)
    split = tl.program_id(1)
    lane = tl.arange(0, BLOCK_N)
    if SIZES.glu:  # 8 rows of the gate, then those of the up projection: a thread of the matrix unit holds both
        n = tile_n * (BLOCK_N // 2) + lane // 16 * 8 + lane % 8
        in_n = n < SIZES.n
        n += lane // 8 % 2 * SIZES.n
    else:
        n = tile_n * BLOCK_N + lane
        in_n = n < SIZES.n
    first_m = tile_m * TOKENS
    wait_for_inputs(PDL)
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    rest = tl.zeros([BLOCK_N, REST_M if REST_M else 16], tl.float32)
    for step in tl.range(split * steps, (split + 1) * steps, num_stages=TILES.stages):
        word = step * WORDS
        if SIZES.glu:
            w_tile = words.load([tile_n * (BLOCK_N // 16), 0, 0, word]).reshape(BLOCK_N, WORDS)
        else:
            w_tile = words.load([tile_n * BLOCK_N, word])
        x_tile = x.load([first_m, 4 * word])
        if REST_M:
            rest_tile = x_rest.load([first_m + BLOCK_M, 4 * word])
        e_0 = _quarter(w_tile, inputs, word, n, in_n, SIZES, 0, DTYPE, PDL)
        e_1 = _quarter(w_tile, inputs, word, n, in_n, SIZES, 1, DTYPE, PDL)
        e_2 = _quarter(w_tile, inputs, word, n, in_n, SIZES, 2, DTYPE, PDL)
        e_3 = _quarter(w_tile, inputs, word, n, in_n, SIZES, 3, DTYPE, PDL)
        entries = tl.join(tl.join(e_0, e_2), tl.join(e_1, e_3)).permute(0, 2, 3, 1).reshape(BLOCK_N, 4 * WORDS)
        acc = tl.dot(entries, x_tile.T, acc)
        if REST_M:
            rest = tl.dot(entries, rest_tile.T, rest)
    let_next_start(PDL)
    if SPLITS > 1:
        PART: tl.constexpr = BLOCK_N * TOKENS
        tile = tl.program_id(0)
        entry = lane[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        further = BLOCK_N * BLOCK_M + lane[:, None] * REST_M + tl.arange(0, REST_M if REST_M else 16)[None, :]
        if REST_M:
            tl.store(parts.sums + (tile * SPLITS + split) * PART + further, rest)
        arrived = store_sums(acc, acc, parts, tile, split, entry, 0, PART, SPLITS)
        if arrived < SPLITS - 1:
            return
        acc, _ = add_splits(acc, acc, parts, tile, entry, 0, PART, SPLITS)
        if REST_M:
            rest, _ = add_splits(rest, rest, parts, tile, further, 0, PART, SPLITS)
    m = first_m + tl.arange(0, BLOCK_M)
    _store_tile(acc, inputs, out, tile_n, n, in_n, m, rows, eps, SIZES, BLOCK_N, BLOCK_M)
    if REST_M:
        m = first_m + BLOCK_M + tl.arange(0, REST_M)
        _store_tile(rest, inputs, out, tile_n, n, in_n, m, rows, eps, SIZES, BLOCK_N, REST_M)


def converts_tiles(weight: Weight, x: Tensor, *, glu: bool = False) -> TypeGuard[QuantizedWeight]:
    """Returns true if this kernel multiplies x [M, K] by the weight, without a dense copy of it. glu: as there."""
    if not isinstance(weight, QuantizedWeight) or not has_int4_tiles(weight) or x.element_size() != 2:
        return False
    (n, k), parts = weight.shape, 2 if glu else 1
    if glu and n % 16:  # tiles hold 8 rows of the gate, then 8 of the up projection
        return False
    return _beats_copy(x.shape[0], n // parts, k, processors(x.device), glu=glu)


def int4_gemm(
    x: Tensor | Normed,
    weight: QuantizedWeight,
    bias: Tensor | None = None,
    *,
    glu: bool = False,
    out: Tensor | None = None,
    tiles: Int4Tiling | None = None,
) -> Tensor:
    """Returns x [M, K] times the weight [N, K] transposed, plus bias [N]: [M, N].

    glu: the weight is that of gate and up projection, and the result silu(gate) * up [M, N / 2]. out: receives it.
    """
    values, squares, eps = x if isinstance(x, Normed) else (x, None, 0.0)
    (rows, k), n = values.shape, weight.shape[0] // (2 if glu else 1)
    out = values.new_empty(rows, n) if out is None else out
    if not rows:
        return out
    scale, zeros = weight.scale, weight.zeros
    assert zeros is None or zeros.stride() == scale.stride()
    tiling = tiles or int4_tiling(rows, n, k, processors(values.device), glu=glu)
    ordered = order_columns(values)
    x_in = TensorDescriptor.from_tensor(ordered, [tiling.block_m, 4 * WORDS.value])
    rest = TensorDescriptor.from_tensor(ordered, [tiling.rest_m, 4 * WORDS.value]) if tiling.rest_m else None
    inputs = Int4Inputs(scale, zeros, bias, squares)
    tokens = tiling.block_m + tiling.rest_m
    count = cdiv(rows, tokens) * cdiv(n, tiling.outputs(glu=glu))
    splits = SplitSums(None, None)
    if tiling.splits > 1:
        sums = torch.empty(count * tiling.splits * tokens * tiling.block_n, device=values.device)
        splits = SplitSums(sums, arrivals(values, count))
    parts = 0 if squares is None else squares.shape[0]
    sizes = Int4Sizes(
        n, k, weight.block[1], (scale.stride(0), scale.stride(1)), glu, parts, power_of_2(max(1, parts))
    )  # fmt: skip
    _int4_gemm_kernel[(count, tiling.splits)](
        x_in, rest, _words(weight, tiling, glu=glu), inputs, out, splits, rows, eps, SIZES=sizes, TILES=tiling,
        num_warps=tiling.warps, num_stages=tiling.stages, **launch_options(values),
    )  # fmt: skip
    return out


def _words(weight: QuantizedWeight, tiling: Int4Tiling, *, glu: bool) -> TensorDescriptor:
    """Returns the descriptor of the weight's tiles."""
    words = weight.values.view(torch.int16)
    n, row = words.shape
    if not glu:
        return TensorDescriptor.from_tensor(words, [tiling.block_n, WORDS.value])
    shape, strides = [n // 16, 2, 8, row], [8 * row, n // 2 * row, row, 1]
    return TensorDescriptor(words, shape, strides, [tiling.block_n // 16, 2, 8, WORDS.value])


_STEP_US = {
    Int4Tiling(64, 0, 128, 4, 4): (0.65, 1),
    Int4Tiling(64, 32, 128, 4, 4): (0.85, 1),
    Int4Tiling(64, 32, 128, 3, 4): (1.33, 2),
    Int4Tiling(128, 0, 128, 3, 4): (0.86, 1),
    Int4Tiling(128, 0, 128, 2, 4): (1.7, 2),
    Int4Tiling(128, 16, 128, 4, 8): (1.25, 1),
    Int4Tiling(128, 16, 128, 2, 4): (2.0, 2),
    Int4Tiling(128, 32, 128, 4, 8): (1.35, 1),
    Int4Tiling(128, 32, 128, 2, 4): (2.2, 2),
    Int4Tiling(128, 64, 128, 3, 8): (1.45, 1),
    Int4Tiling(128, 0, 256, 4, 8): (1.6, 1),
    Int4Tiling(256, 0, 128, 3, 8): (1.42, 1),
}
"""Microseconds of a step of 128 columns and programs per multiprocessor, on an H200 with the products of 8B and 70B."""

_ROWS = 64, 96, 128, 144, 160, 192, 256, 384, 512
"""Numbers of rows for which tiles are chosen, then powers of 2: each choice is a kernel to compile."""


def _estimate_us(tiling: Int4Tiling, rows: int, n: int, k: int, processors: int, *, glu: bool) -> float:
    """Returns the time of a product, with a standard deviation of 7 % of measured ones."""
    step, programs = _STEP_US[tiling._replace(splits=1)]
    tokens, splits = tiling.block_m + tiling.rest_m, tiling.splits
    tiles = cdiv(rows, tokens) * cdiv(n, tiling.outputs(glu=glu))
    # The last program of a tile reads the parts of all: 64 KB take it a microsecond.
    rest = 5.0 if splits == 1 else 7 + splits * tokens * tiling.block_n * 4 / 64e3
    return cdiv(tiles * splits, processors * programs) * (cdiv(k, 128 * splits) * step + rest)


@cache
def int4_tiling(rows: int, n: int, k: int, processors: int, *, glu: bool) -> Int4Tiling:
    """Returns the tile sizes of a product that take the least time by estimate.

    processors: streaming multiprocessors of the GPU.
    """
    rows = next((most for most in _ROWS if rows <= most), power_of_2(rows))
    choices = [tiling._replace(splits=splits) for tiling in _STEP_US for splits in range(1, 9)]
    return min(choices, key=lambda tiling: _estimate_us(tiling, rows, n, k, processors, glu=glu))


@cache
def _beats_copy(rows: int, n: int, k: int, processors: int, *, glu: bool) -> bool:
    """Returns true if the product takes less time than a dense copy and the vendor's library (790 TFLOP/s, 4 TB/s)."""
    outputs = n * (2 if glu else 1)
    copy = 3 + 2e-6 * rows * outputs * k / 790 + 2.5e-6 * outputs * k / 4 + (2 + 8.6e-7 * rows * outputs if glu else 0)
    tiling = int4_tiling(rows, n, k, processors, glu=glu)
    faster = _estimate_us(tiling, rows, n, k, processors, glu=glu) < copy
    return rows <= 512 or (faster and rows <= MAX_ROWS)
