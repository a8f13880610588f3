"""Tile sizes of skinny GEMMs."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from specpipe_kernels.layers.skinny_gemm_kernel import GLU, PLAIN, RESIDUAL, ROPE
from specpipe_kernels.runtime.sizes import power_of_2

MAX_ROWS, MAX_GLU_ROWS = 64, 128
MAX_INT4_GLU_ROWS = 32
"""Most rows of a gated product in 4 bits; beyond, converting once for tiles of 64 rows is faster."""
MAX_WHOLE_HEAD_ROWS = 32
"""Most rows of a projection that completes norms of heads: with 64 it takes 16 µs, apart 9 and 4 (5120 x 2048)."""
LARGE = 1 << 15
"""Smallest number of outputs of a plain product that counts as the LM head: up to MAX_GLU_ROWS rows, own tile sizes."""
DEEP = 8192
"""Least K of a product with a residual whose programs share multiprocessors."""
ROUTER = 512
"""Most outputs of a plain product that count as a router of experts: more programs share K."""
_PIPELINE = 200 << 10
"""Bytes of shared memory for the steps in flight of a program that has a multiprocessor to itself."""


class GemmTiling(NamedTuple):
    """Tile sizes of a product; chosen from shapes alone, measured on an H200 (docs/notebook.md)."""

    block_n: int
    """Rows of the weight per program."""
    block_k: int
    """Columns of the weight per step."""
    splits: int
    """Programs that share K."""
    stages: int
    """Steps whose loads are in flight."""
    warps: int
    by_descriptor: bool
    """Tiles are loaded by the tensor memory accelerator instead of by each thread. Not for ROPE."""


def max_int4_rows(entries: int) -> int:
    """Returns the most rows for which 4 bits are read of a weight that has a dense copy. entries: of the weight.

    With more, the copy takes as long or less: in 8B/70B, gate and up projection of 136 rows 75/255 µs, not 77/256;
    in 8B queries, keys, values and attention's output of 72 rows 31, not 33 (H200).
    """
    return 64 if entries <= 1 << 25 else 128


@cache
def gemm_tiling(
    rows: int,
    n: int,
    k: int,
    *,
    epilogue: int,
    itemsize: int,
    processors: int,
    head_dim: int = 0,
    whole_heads: bool = False,
    int4_group: int = 0,
) -> GemmTiling:
    """Returns the tile sizes of a product x [rows, k] times weight [n, k].

    For ROPE, n and block_n count the rows of the lower halves of all heads. itemsize: bytes of an element of x and the
    weight. processors: streaming multiprocessors of the GPU. whole_heads: a program of ROPE owns a head. int4_group:
    columns that share a scale of a weight in 4 bits; 0 for other weights.
    """
    if int4_group:
        return _int4_tiling(rows, n, k, int4_group, epilogue=epilogue, head_dim=head_dim)
    if itemsize == 1:
        return _fp8_tiling(
            rows, n, k, epilogue=epilogue, processors=processors, head_dim=head_dim, whole_heads=whole_heads
        )
    if epilogue == ROPE:
        return _rope_tiling(rows, n, k, itemsize=itemsize, processors=processors, dim=head_dim, whole_heads=whole_heads)
    wide, large = rows > 32, epilogue == PLAIN and n >= LARGE
    block_n, block_k, stages, warps = 64, 128, 4, 4
    # K is split until there are `programs` programs, as long as each keeps `steps` steps: enough bytes in flight.
    programs, steps = 96 if wide else 128, 4
    if epilogue == GLU and wide:
        block_k = 64
        stages = 3 if -(-n // block_n) > processors else 4
    elif epilogue == PLAIN and n <= ROUTER:
        block_n, steps, stages = 16, 2, 3
    elif large and wide:
        block_n, block_k = 128, 64
        stages, warps = (3, 4) if rows > MAX_ROWS else (4, 8)
    elif epilogue == RESIDUAL and wide:
        stages, warps = (5, 8 if k >= DEEP else 4) if k > n else (4, 4)
    elif epilogue == RESIDUAL and k <= n:
        stages, steps = 6, 8
    elif epilogue == RESIDUAL and rows > 16:
        warps = 8
    elif epilogue == RESIDUAL and k < DEEP:
        block_k, stages = 256, 3
    elif epilogue == RESIDUAL:
        programs, steps = 256, 16
    elif epilogue == PLAIN and not wide and not large:
        block_n, block_k = 32, 256
    block_k = block_k * 2 // itemsize
    # More programs than multiprocessors pay where each has many steps.
    most = programs if programs > processors else processors
    splits = _splits(n, k, block_n, block_k, epilogue, programs, steps, most)
    if epilogue == RESIDUAL and -(-n // block_n) * splits > processors:
        stages = min(stages, 3)  # two programs share the shared memory of a multiprocessor
    return GemmTiling(block_n, block_k, splits, stages, warps, wide and (large or epilogue == GLU))


def _rope_tiling(
    rows: int, n: int, k: int, *, itemsize: int, processors: int, dim: int, whole_heads: bool
) -> GemmTiling:
    """Returns the tile sizes of a projection to queries, keys and values in 16 or 32 bits.

    A multiprocessor has one program. Of 160 programs on 132 some would share one: 13.0 instead of 9.8 µs for 5120 x
    2880.
    """
    half = max(16, power_of_2(dim // 2))
    block_n, block_k = half if whole_heads else min(32, half), 256 // itemsize
    tiles = -(-n // block_n)
    splits = max(1, min(8, processors // tiles, k // (4 * block_k)))
    step = (2 * block_n + max(16, power_of_2(rows))) * block_k * itemsize
    return GemmTiling(block_n, block_k, splits, min(6, _PIPELINE // step), 4, False)


def _fp8_tiling(
    rows: int, n: int, k: int, *, epilogue: int, processors: int, head_dim: int, whole_heads: bool
) -> GemmTiling:
    """Returns the tile sizes of a product in 8 bits.

    Tiles of RESIDUAL and GLU have as many outputs as the next product has columns a step: they share a scale. Up to 32
    rows eight steps in flight take 2 to 11 % less time than four to six (16 rows of 8B and 70B, H200).
    """
    wide = rows > 32
    if epilogue == GLU:
        return GemmTiling(128, 128, 1, 4, 4 if rows <= 16 else 8, False)
    if epilogue == ROPE:
        few, half = n < 32 * processors, max(16, power_of_2(head_dim // 2))
        if whole_heads:
            return GemmTiling(half, 128, _splits(n, k, half, 128, epilogue, 160 if few else 64, 4), 6, 4, False)
        block_n = min(64 if wide and not few else 32, half)
        return GemmTiling(
            block_n, 128, _splits(n, k, block_n, 128, epilogue, 160 if wide else 96, 4), 4 if wide else 8, 4, False
        )
    splits = _splits(n, k, 128, 128, epilogue, 96, 4)
    if not wide:
        return GemmTiling(128, 128, splits, 8, 4 if splits > 2 else 8, False)
    if k // splits > 8192 and splits < 8:  # two programs share a multiprocessor and its shared memory
        return GemmTiling(128, 128, 2 * splits, 4, 4, False)
    return GemmTiling(128, 128, splits, 5, 8, False)


def _int4_tiling(rows: int, n: int, k: int, group: int, *, epilogue: int, head_dim: int) -> GemmTiling:
    """Returns the tile sizes of a product of a weight in 4 bits.

    Converting takes about as long as loading: several programs on a multiprocessor hide each other's waits. Steps are
    as long as registers hold the converted weight beside the sums.
    """
    block_n, stages, warps, words = 64, 3, 4, 128 if rows <= 16 else 64
    programs = 192 if 8 < rows <= 16 else 224
    if rows <= 8:  # tokens fill half of the matrix unit's smallest tile
        stages, programs = 3 if epilogue == GLU else 4, 384
        if epilogue in (GLU, RESIDUAL):
            block_n, warps = 32, 2
    if epilogue == ROPE:
        block_n = min(block_n // 2, max(32, power_of_2(head_dim // 2)))
    words = min(words, group)
    splits, tiles = 1, -(-n // block_n)
    while tiles * splits < programs and splits < (4 if rows <= 16 else 8) and k // (2 * splits) >= 4 * words:
        splits *= 2
    return GemmTiling(block_n, 4 * words, splits, stages, warps, False)


def _splits(
    n: int, k: int, block_n: int, block_k: int, epilogue: int, programs: int, steps: int, most: int = 1 << 20
) -> int:
    """Returns the programs that share K: enough for `programs`, at most `most`, as long as each keeps `steps` steps."""
    splits, tiles = 1, -(-n // block_n)
    while (
        epilogue != GLU and tiles * splits < programs and 2 * tiles * splits <= most and splits < 8
        and k // (2 * splits) >= steps * block_k
    ):  # fmt: skip
        splits *= 2
    return splits
