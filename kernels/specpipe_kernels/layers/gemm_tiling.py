"""How products of few rows are cut."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from specpipe_kernels.layers.skinny_gemm_kernel import GLU, PLAIN, RESIDUAL, ROPE
from specpipe_kernels.runtime.sizes import power_of_2

MAX_ROWS, MAX_GLU_ROWS, MAX_FP8_ROWS = 64, 128, 32
LARGE = 1 << 15
"""Outputs of a plain product from which on it is the head's: as many rows as GLU, and tiles of its own."""
_PROCESSORS = 132  # of an H200


class GemmTiling(NamedTuple):
    """How a product is cut; chosen from shapes alone, measured on an H200 (docs/performance.md)."""

    block_n: int
    block_k: int
    splits: int
    stages: int
    warps: int
    by_descriptor: bool
    """Tiles come through the tensor memory accelerator instead of a load a thread. Not for ROPE."""


@cache
def gemm_tiling(rows: int, n: int, k: int, *, epilogue: int, itemsize: int, head_dim: int = 0) -> GemmTiling:
    """The tiling of a product of so many rows. For ROPE n counts the lower halves of all heads, as does block_n."""
    wide, large = rows > 32, epilogue == PLAIN and n >= LARGE
    block_n, block_k, stages, warps = 64, 128, 4, 4
    # Splits share K until there are so many programs, each with so many steps at least: enough bytes in flight.
    programs, steps = 96 if wide else 128, 4
    if epilogue == ROPE:
        block_n, stages, programs = min(32, max(16, power_of_2(head_dim // 2))), 6, 96
    elif epilogue == GLU and wide:
        block_k = 64
        stages = 3 if -(-n // block_n) > _PROCESSORS else 4
    elif large and wide:
        block_n, block_k = 128, 64
        stages, warps = (3, 4) if rows > MAX_ROWS else (4, 8)
    elif epilogue == RESIDUAL and wide:
        stages, warps = (5, 8) if k > n else (4, 4)
    elif epilogue == RESIDUAL and k <= n:
        stages, steps = 6, 8
    elif epilogue == RESIDUAL and rows > 16:
        warps = 8
    elif epilogue == RESIDUAL:
        programs, steps = 256, 16
    elif epilogue == PLAIN and not wide and not large:
        block_n, block_k = 32, 256
    block_k = block_k * 2 // itemsize
    splits, tiles = 1, -(-n // block_n)
    while epilogue != GLU and tiles * splits < programs and splits < 8 and k // (2 * splits) >= steps * block_k:
        splits *= 2
    if epilogue == RESIDUAL and tiles * splits > _PROCESSORS:
        stages = min(stages, 3)  # two programs share a processor's memory
    return GemmTiling(block_n, block_k, splits, stages, warps, wide and (large or epilogue == GLU))
