"""Products of many rows with 4-bit weights, which are converted in registers on their way to the matrix unit.

A program owns a tile of the result and walks K, or its share of K: the last one to arrive adds the parts in a fixed
order. The weight is the left operand, which the matrix unit takes from registers: the result is computed transposed.
Values are rounded to the dtype of x, as `dequantize` does. A gated product keeps gate and up projection of an output in
one thread and stores the activation.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, TypeGuard

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from specpipe_kernels.layers.layer_args import SplitSums
from specpipe_kernels.layers.quantized.int4_layout import INT4_BLOCK, has_int4_tiles
from specpipe_kernels.layers.quantized.int4_tile import load_groups, quarter_of_words, times_scale
from specpipe_kernels.layers.skinny_gemm_kernel import add_splits, load_squares, store_sums
from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.backend import processors
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv, power_of_2
from specpipe_kernels.weights import Normed, QuantizedWeight, Weight

MAX_ROWS = 512
"""Most rows; beyond, a dense copy and the vendor's library take less time (measured at 512 and 768 on an H200)."""


class Int4Tiling(NamedTuple):
    """Tile sizes of a product; compile-time constants."""

    block_m: int
    block_n: int
    """Rows of the weight; of a gated product half of them are the gate's."""
    words: int
    """Words of each row per step: their four quarters are 4 * words columns."""
    stages: int
    """Steps whose loads are in flight."""
    warps: int
    splits: int = 1
    """Programs that share K."""
    joined: bool = False
    """The quarters of a step are one operand of 4 * words columns: pays for tiles of few rows."""


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


@triton.jit
def _entries(
    w_tile, scale, zeros, column, n, in_n,
    SIZES: tl.constexpr, QUARTER: tl.constexpr, DTYPE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Returns a quarter of words [BLOCK_N, WORDS], whose first column is `column`, in the dtype of x."""
    entries = quarter_of_words(w_tile, QUARTER, DTYPE, ASM)
    if zeros is not None:
        zero = load_groups(zeros, column, n, in_n, SIZES)
        entries -= (zero.to(tl.float32) - 8.0).to(DTYPE)[:, None]
    return times_scale(entries, load_groups(scale, column, n, in_n, SIZES), ASM)


@triton.jit
def _tile_of_program(rows, SIZES: tl.constexpr, TILES: tl.constexpr):
    """Returns the tile's place along N and M: programs that run together share tiles of the weight and of x."""
    OUTPUTS: tl.constexpr = TILES.block_n // 2 if SIZES.glu else TILES.block_n
    tiles_n: tl.constexpr = (SIZES.n + OUTPUTS - 1) // OUTPUTS
    tiles_m = tl.cdiv(rows, TILES.block_m)
    band = tl.program_id(0) // (8 * tiles_m) * 8
    width = tl.minimum(tiles_n - band, 8)
    place = tl.program_id(0) - band * tiles_m
    return band + place % width, place // width


@triton.jit(do_not_specialize=["rows"])
def _int4_gemm_kernel(
    x, words, scale, zeros, squares, bias, out, parts, rows, stride_x, eps, SIZES: tl.constexpr, TILES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    N: tl.constexpr = SIZES.n
    ROW: tl.constexpr = SIZES.k // 4
    WHOLE: tl.constexpr = SIZES.k // 512 * 128  # words of whole blocks
    GLU: tl.constexpr = SIZES.glu
    BLOCK_M: tl.constexpr = TILES.block_m
    BLOCK_N: tl.constexpr = TILES.block_n
    WORDS: tl.constexpr = TILES.words
    SPLITS: tl.constexpr = TILES.splits
    DTYPE: tl.constexpr = out.dtype.element_ty
    steps: tl.constexpr = (ROW + WORDS * SPLITS - 1) // (WORDS * SPLITS)
    tile_n, tile_m = _tile_of_program(rows, SIZES, TILES)
    split = tl.program_id(1)
    lane = tl.arange(0, BLOCK_N)
    if GLU:  # 8 rows of the gate, then those of the up projection: a thread of the matrix unit holds both
        n = tile_n * (BLOCK_N // 2) + lane // 16 * 8 + lane % 8
        in_n = n < N
        n += lane // 8 % 2 * N
    else:
        n = tile_n * BLOCK_N + lane
        in_n = n < N
    w_at = words + n.to(tl.int64)[:, None] * ROW + tl.arange(0, WORDS)[None, :]
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    in_m = m < rows
    k_lane = tl.arange(0, 4 * WORDS)
    if TILES.joined:
        x_at = x + m.to(tl.int64)[None, :] * stride_x
    wait_for_inputs(PDL)
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for step in tl.range(split * steps, (split + 1) * steps, num_stages=TILES.stages):
        word = step * WORDS
        column = word // 128 * 512 + word % 128
        quarter = 128
        if ROW > WHOLE:  # short blocks lie behind the whole ones
            column = tl.where(word < WHOLE, column, 4 * word)
            quarter = tl.where(word < WHOLE, 128, 32)
        # Loads come first: they arrive at one barrier. Waiting between products would make the compiler run each
        # instruction of the matrix unit by itself.
        w_tile = tl.load(w_at + word, mask=in_n[:, None] & (word < ROW), other=0)
        if TILES.joined:
            at = column + k_lane // WORDS * quarter + k_lane % WORDS
            at = tl.max_contiguous(tl.multiple_of(at, WORDS), WORDS)
            x_tile = tl.load(x_at + at[:, None], mask=in_m[None, :] & (word < ROW), other=0.0)
            e_0 = _entries(w_tile, scale, zeros, column, n, in_n, SIZES, 0, DTYPE, PDL)
            e_1 = _entries(w_tile, scale, zeros, column + quarter, n, in_n, SIZES, 1, DTYPE, PDL)
            e_2 = _entries(w_tile, scale, zeros, column + 2 * quarter, n, in_n, SIZES, 2, DTYPE, PDL)
            e_3 = _entries(w_tile, scale, zeros, column + 3 * quarter, n, in_n, SIZES, 3, DTYPE, PDL)
            entries = tl.join(tl.join(e_0, e_2), tl.join(e_1, e_3)).permute(0, 2, 3, 1)
            acc = tl.dot(entries.reshape(BLOCK_N, 4 * WORDS), x_tile, acc)
        else:
            x_0 = x.load([tile_m * BLOCK_M, column])
            x_1 = x.load([tile_m * BLOCK_M, column + quarter])
            x_2 = x.load([tile_m * BLOCK_M, column + 2 * quarter])
            x_3 = x.load([tile_m * BLOCK_M, column + 3 * quarter])
            x_tiles = x_0, x_1, x_2, x_3
            for i in tl.static_range(4):
                entries = _entries(w_tile, scale, zeros, column + i * quarter, n, in_n, SIZES, i, DTYPE, PDL)
                acc = tl.dot(entries, x_tiles[i].T, acc)
    let_next_start(PDL)
    if SPLITS > 1:
        entry = lane[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        tile = tl.program_id(0)
        arrived = store_sums(acc, acc, parts, tile, split, entry, 0, BLOCK_M * BLOCK_N, SPLITS)
        if arrived < SPLITS - 1:
            return
        acc, _ = add_splits(acc, acc, parts, tile, entry, 0, BLOCK_M * BLOCK_N, SPLITS)
    if SIZES.parts > 0:
        sums = load_squares(squares, m, rows, SIZES.parts, SIZES.parts_pad)
        acc *= tl.rsqrt(tl.sum(sums, 0) / SIZES.k + eps)[None, :]
    if bias is not None:
        acc += tl.load(bias + n, mask=in_n, other=0.0).to(tl.float32)[:, None]
    if GLU:
        sums = acc.to(DTYPE).reshape(BLOCK_N // 16, 2, 8, BLOCK_M).permute(0, 2, 3, 1)
        gate, up = sums.reshape(BLOCK_N // 2, BLOCK_M, 2).split()
        gate = gate.to(tl.float32)
        result = gate / (1.0 + tl.exp(-gate)) * up.to(tl.float32)
        n = tile_n * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
    else:
        result = acc
    at = out + m[None, :].to(tl.int64) * N + n[:, None]
    tl.store(at, result.to(DTYPE), mask=in_m[None, :] & (n[:, None] < N))


def converts_tiles(weight: Weight, x: Tensor) -> TypeGuard[QuantizedWeight]:
    """Returns true if this kernel multiplies x [M, K] by the weight, without a dense copy of it."""
    is_int4 = isinstance(weight, QuantizedWeight) and has_int4_tiles(weight)
    return is_int4 and x.element_size() == 2 and x.shape[0] <= MAX_ROWS


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
    tiling = tiles or int4_tiling(rows, n, k, weight.block[1], processors(values.device), glu=glu)
    if values.data_ptr() % 16 or values.stride(0) % 8:
        values = values.clone(memory_format=torch.contiguous_format)
    x_in: Any = values if tiling.joined else TensorDescriptor.from_tensor(values, [tiling.block_m, tiling.words])
    outputs = tiling.block_n // 2 if glu else tiling.block_n
    count = cdiv(rows, tiling.block_m) * cdiv(n, outputs)
    splits = SplitSums(None, None)
    if tiling.splits > 1:
        sums = torch.empty(count * tiling.splits * tiling.block_m * tiling.block_n, device=values.device)
        splits = SplitSums(sums, arrivals(values, count))
    parts = 0 if squares is None else squares.shape[0]
    sizes = Int4Sizes(
        n, k, weight.block[1], (scale.stride(0), scale.stride(1)), glu, parts, power_of_2(max(1, parts))
    )  # fmt: skip
    _int4_gemm_kernel[(count, tiling.splits)](
        x_in, weight.values.view(torch.int16), scale, zeros, squares, bias, out, splits, rows, values.stride(0), eps,
        SIZES=sizes, TILES=tiling, num_warps=tiling.warps, num_stages=tiling.stages, **launch_options(values),
    )  # fmt: skip
    return out


@cache
def int4_tiling(rows: int, n: int, k: int, group: int, processors: int, *, glu: bool) -> Int4Tiling:
    """Returns the tile sizes of a product, as measured on an H200 with the products of Llama's 8B and 70B.

    processors: streaming multiprocessors of the GPU.
    """

    def shared(block_n: int, tiles_m: int = 1) -> int:
        """Returns the programs that share K: as many as fit on the GPU at once, each with 1,024 columns or more."""
        outputs = block_n // 2 if glu else block_n
        splits, tiles = 1, cdiv(n, outputs) * tiles_m
        while 2 * splits * tiles <= processors and k // (2 * splits) >= 1024 and splits < 4:
            splits *= 2
        return splits

    large = cdiv(rows, 256) * cdiv(n, 64 if glu else 128)
    if rows <= 64:
        tiling = Int4Tiling(64, 128, 32, 4, 4, shared(128), joined=True)
    elif rows <= 128:
        splits = shared(256)
        fills = k // splits >= 4096 and (glu or 2 * splits * cdiv(n, 256) > processors)
        tiling = Int4Tiling(128, 256, 32, 4, 8, splits) if fills else Int4Tiling(128, 128, 32, 4, 8, shared(128))
    elif rows <= 256 and k <= 4096 and large < processors and not glu:
        few = rows <= 192 and 3 * large <= processors
        tiling = Int4Tiling(64, 128, 64, 3, 4) if few else Int4Tiling(256, 64, 32, 3, 4, shared(64))
    elif 256 < rows <= 384 and large > processors:
        tiling = Int4Tiling(128, 256, 32, 4, 8)
    else:
        tiling = Int4Tiling(256, 128, 32, 3, 8, shared(128, cdiv(rows, 256)))
    words = min(tiling.words, group, 32 if k % INT4_BLOCK else 64)
    return tiling._replace(words=words)
