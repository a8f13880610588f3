"""Products of many rows with 4-bit weights, which are converted in registers on their way to the matrix unit of Hopper.

Values are rounded to the dtype of x, as `dequantize` does. Tokens of a tile may be divided into two operands, whose
sizes are powers of 2. A gated product keeps gate and up projection of an output in one thread and stores the
activation. The kernel has a module of its own.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from specpipe_kernels.layers.layer_args import SplitSums
from specpipe_kernels.layers.quantized.int4_gemm_kernel import BLOCK_N, WARPS, WORDS, int4_gemm_kernel
from specpipe_kernels.layers.quantized.int4_layout import has_int4_tiles
from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.backend import gpu_of, processors
from specpipe_kernels.runtime.dependent_launch import launch_options
from specpipe_kernels.runtime.sizes import cdiv, power_of_2
from specpipe_kernels.weights import Normed, QuantizedWeight, Weight

MAX_ROWS = 2048
"""Most rows. A layer's products of 8B/70B take 1.24/4.79 ms with 2,048, by a copy made each time 1.32/5.13; with 4,096
2.51/10.52 and 2.46/10.14 (H200)."""
MAX_REGISTERS = 80
"""Registers of a thread, on the average of 12 warps, of two programs on a multiprocessor."""


class Int4Tiling(NamedTuple):
    """Tile sizes of a product; compile-time constants."""

    block_m: int
    rest_m: int
    """Further tokens of a tile, fewer than block_m: tiles are not limited to powers of 2. 0: none."""
    stages: int
    """Steps whose loads are in flight."""
    shared: bool = False
    """Two programs share a multiprocessor, with fewer registers and stages each."""
    programs: int = 0
    """Programs among which the steps of all tiles are divided; no constant of the kernel."""


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


def converts_tiles(weight: Weight, x: Tensor, *, glu: bool = False) -> TypeGuard[QuantizedWeight]:
    """Returns true if this kernel multiplies x [M, K] by the weight, without a dense copy of it. glu: as there.

    It runs on GPUs of compute capability 9.0 alone, and not in Triton's interpreter.
    """
    if not isinstance(weight, QuantizedWeight) or not has_int4_tiles(weight) or x.element_size() != 2:
        return False
    gpu, (n, k), parts = gpu_of(x.device), weight.shape, 2 if glu else 1
    if gpu is None or torch.cuda.get_device_capability(gpu) != (9, 0):
        return False
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
    tiling: Int4Tiling | None = None,
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
    tiling = tiling or int4_tiling(rows, n, k, processors(values.device), glu=glu)
    limit = {"maxnreg": MAX_REGISTERS} if tiling.shared else {}
    tokens = tiling.block_m + tiling.rest_m
    tiles = _tiles(tiling, rows, n, glu=glu)
    sums = torch.empty(2 * tiling.programs * tokens * BLOCK_N.value, device=values.device)
    parts = 0 if squares is None else squares.shape[0]
    sizes = Int4Sizes(
        n, k, weight.block[1], (scale.stride(0), scale.stride(1)), glu, parts, power_of_2(max(1, parts))
    )  # fmt: skip
    int4_gemm_kernel[(tiling.programs,)](
        _rows(values, tiling.block_m), _rows(values, tiling.rest_m or tiling.block_m), _words(weight, glu=glu),
        Int4Inputs(scale, zeros, bias, squares), out, SplitSums(sums, arrivals(values, 2 * tiles)), rows, tiles, eps,
        SIZES=sizes, TILES=tiling._replace(programs=0), num_warps=WARPS, **limit, **launch_options(values),
    )  # fmt: skip
    return out


def _rows(x: Tensor, tokens: int) -> TensorDescriptor:
    """Returns the descriptor of tiles of x."""
    return TensorDescriptor.from_tensor(x, [tokens, WORDS.value], gl.NVMMASharedLayout(64, 16, rank=2))


def _words(weight: QuantizedWeight, *, glu: bool) -> TensorDescriptor:
    """Returns the descriptor of the weight's tiles."""
    words = weight.values.view(torch.int16)
    n, row = words.shape
    if not glu:
        return TensorDescriptor.from_tensor(words, [BLOCK_N.value, WORDS.value], gl.NVMMASharedLayout(64, 16, rank=2))
    shape, strides = [n // 16, 2, 8, row], [8 * row, n // 2 * row, row, 1]
    layout = gl.NVMMASharedLayout(64, 16, rank=4)
    return TensorDescriptor(words, shape, strides, [BLOCK_N.value // 16, 2, 8, WORDS.value], layout)


_STEP_US = {
    Int4Tiling(64, 0, 4, shared=True): 1.03,
    Int4Tiling(64, 32, 6): 0.89,
    Int4Tiling(128, 0, 5): 0.87,
    Int4Tiling(128, 16, 5): 1.08,
    Int4Tiling(128, 32, 4): 1.12,
    Int4Tiling(128, 64, 3): 1.2,
    Int4Tiling(256, 0, 3): 1.38,
}
"""Microseconds of a step of 128 columns, on an H200 with the products of 8B and 70B."""

_ROWS = 64, 96, 128, 144, 160, 192, 256, 384, 512
"""Numbers of rows for which tiles are chosen, then powers of 2: each choice is a kernel to compile."""


def _tiles(tiling: Int4Tiling, rows: int, n: int, *, glu: bool) -> int:
    """Returns the tiles of a product."""
    return cdiv(rows, tiling.block_m + tiling.rest_m) * cdiv(n, BLOCK_N.value // (2 if glu else 1))


def _slots(tiling: Int4Tiling, processors: int) -> int:
    """Returns the programs that run at the same time."""
    return processors * (2 if tiling.shared else 1)


def _estimate_us(tiling: Int4Tiling, rows: int, n: int, k: int, processors: int, *, glu: bool) -> float:
    """Returns the time of a product, with a standard deviation of 9 % of measured ones."""
    tiles, steps, programs = _tiles(tiling, rows, n, glu=glu), k // 128, tiling.programs
    step, size = _STEP_US[tiling._replace(programs=0)], (tiling.block_m + tiling.rest_m) / 256
    if programs == tiles:
        return 2.6 + cdiv(tiles, _slots(tiling, processors)) * (0.2 + steps * step)
    share = tiles * steps / programs
    if programs % tiles == 0:
        return 2.6 + share * step + 2.6 * size * programs // tiles
    return 2.6 + share * step + size * (9.6 + 2.6 * steps / share)


@cache
def int4_tiling(rows: int, n: int, k: int, processors: int, *, glu: bool) -> Int4Tiling:
    """Returns the tile sizes and programs of a product that take the least time by estimate.

    processors: streaming multiprocessors of the GPU.
    """
    rows = next((most for most in _ROWS if rows <= most), power_of_2(rows))
    choices = []
    for tiling in _STEP_US:
        tiles, slots = _tiles(tiling, rows, n, glu=glu), _slots(tiling, processors)
        most = min(slots, max(1, tiles * k // 1024))  # at least eight steps each
        choices += [tiling._replace(programs=count) for count in {tiles, tiles * max(1, most // tiles), most}]
    return min(choices, key=lambda tiling: _estimate_us(tiling, rows, n, k, processors, glu=glu))


@cache
def _beats_copy(rows: int, n: int, k: int, processors: int, *, glu: bool) -> bool:
    """Returns true if the product takes less time than a dense copy and the vendor's library (790 TFLOP/s, 4 TB/s)."""
    outputs = n * (2 if glu else 1)
    copy = 3 + 2e-6 * rows * outputs * k / 790 + 2.5e-6 * outputs * k / 4 + (2 + 8.6e-7 * rows * outputs if glu else 0)
    tiling = int4_tiling(rows, n, k, processors, glu=glu)
    faster = _estimate_us(tiling, rows, n, k, processors, glu=glu) < copy
    return rows <= 512 or (faster and rows <= MAX_ROWS)
