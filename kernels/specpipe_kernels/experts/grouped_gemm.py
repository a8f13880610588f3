"""Products of tokens with the weights of their experts, for all experts in one launch.

A program multiplies one tile of pairs (a token and one of its experts, grouped by expert) with BLOCK_N rows of that
expert's weight. Weights are in 16 or 32 bits, in mxfp4, which is converted in registers, or in 8 bits, which are
multiplied with activations in 8 bits. Where there are few programs, several share K.

The gated product reads the rows of its tokens from x and writes activations in the order of the sorted pairs; the
second product reads them in that order and writes weighted results in the order of the pairs. Of few tokens, the last
program to arrive at a block of outputs adds the residual and the results of each token's pairs.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specpipe_kernels.experts.expert_args import Fp8Blocks, GroupedInputs, GroupedSizes, GroupedTiling, PairTiles
from specpipe_kernels.experts.grouped_gemm_kernel import _grouped_gemm_kernel, _ungrouped_gemm_kernel
from specpipe_kernels.layers.layer_args import GemmOutputs, SplitSums
from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.backend import gpu_of, processors
from specpipe_kernels.runtime.dependent_launch import launch_options
from specpipe_kernels.runtime.sizes import cdiv, power_of_2
from specpipe_kernels.weights import Activation, ExpertWeights, Fp8ExpertWeight, Fp8Rows, Mxfp4Weight, Normed

_FEW_PAIRS = 16
"""Most pairs whose products have few programs, and many steps in flight in each."""


@cache
def _multiplies_bf16_pairs(device: torch.device) -> bool:
    """Returns True if a GPU has the instruction that multiplies two bf16 values (compute capability 9.0)."""
    gpu = gpu_of(device)
    return gpu is not None and torch.cuda.get_device_capability(gpu) >= (9, 0)


def grouped_tiling(pairs: int, experts: int, x: Tensor, weight: ExpertWeights, *, gated: bool) -> GroupedTiling:
    """Returns the tile sizes of a product of `pairs` pairs, the fastest of a sweep on an H200.

    x, weight: as in `grouped_gemm`. block_m does not depend on `gated`: both products of a layer share the tiles.
    """
    rows = cdiv(pairs, experts)
    if isinstance(weight, Fp8ExpertWeight):
        block_m = 16 if rows <= 8 else 32 if rows <= 32 else 64
        # The gated product's block_n is the group of the other one's x, which bounds its block_k.
        stages = (3 if rows <= 32 else 4) if gated else 6 if pairs <= _FEW_PAIRS else 4
        warps = 8 if gated and rows > 16 else 4
        tiling = GroupedTiling(block_m, 16 if rows <= 16 else block_m, 128, 128, stages, warps)
    elif isinstance(weight, Mxfp4Weight) and rows <= 64:
        # 8 pairs: without the waits of the asynchronous matrix unit. More: converting once for a large tile pays, and
        # computing a small one where an expert has few pairs (256 rows of gpt-oss-20b: 241 instead of 276 µs a layer).
        block_m = 8 if pairs <= 64 else 32 if rows <= 16 else 64
        narrow = gated or pairs <= _FEW_PAIRS or (pairs <= 64 and experts <= pairs)  # else there are programs enough
        tiling = GroupedTiling(block_m, 8 if rows <= 32 else 16, 64 if narrow else 128, 128, 3, 4)
    elif rows <= 32:  # loads are uneven: a tile of many rows costs less than the weight of a busy expert once more
        block_m = 16 if rows <= 4 else 32 if rows <= 16 else 64
        tiling = GroupedTiling(block_m, block_m, 64, max(64, 256 // x.element_size()), 4, 4)
    else:
        block_m = 64 if rows <= 64 else 128
        tiling = GroupedTiling(block_m, block_m, 128, max(64, 128 // x.element_size()), 4, 8)
    if isinstance(weight, Tensor):
        return tiling
    _, outputs, columns = weight.shape
    programs = min(pairs, experts) * cdiv(outputs // (2 if gated else 1), tiling.block_n)
    least = 2 if isinstance(weight, Mxfp4Weight) else 3 if pairs <= _FEW_PAIRS else 4
    return tiling._replace(splits=_splits(programs, columns // tiling.block_k, least, processors(x.device)))


def _splits(programs: int, steps: int, least: int, processors: int) -> int:
    """Returns the programs that share K: enough for four on each multiprocessor, of at least `least` steps each.

    In 16 bits none share: joining the sums takes longer than it gains (one row: 31 instead of 25 µs a layer).
    """
    splits = 1
    while programs * splits < 4 * processors and steps // (2 * splits) >= least:
        splits *= 2
    return splits


class _Operands(NamedTuple):
    """x and weight of a product, and what belongs to them; None where there is none."""

    x: Tensor
    x_scale: Tensor | None
    dtype: torch.dtype
    """Of results in 16 or 32 bits."""
    weight: Tensor
    exponents: Tensor | None
    weight_scale: Tensor | None
    fp8: Fp8Blocks
    block_k: int


def _operands(x: Tensor | Fp8Rows, weight: ExpertWeights, tiling: GroupedTiling) -> _Operands:
    """Returns the operands of a product in its number formats."""
    if isinstance(x, Fp8Rows):
        assert isinstance(weight, Fp8ExpertWeight) and weight.values.is_contiguous()
        block_k = min(tiling.block_k, *(power_of_2(n) for n in (x.group, weight.block[1])))
        blocks = Fp8Blocks(*weight.block, x.group)
        return _Operands(x.values, x.scale, x.dtype, weight.values, None, weight.scale, blocks, block_k)
    values, exponents = weight if isinstance(weight, Mxfp4Weight) else (weight, None)
    assert isinstance(values, Tensor) and values.is_contiguous()
    return _Operands(x, None, x.dtype, values, exponents, None, Fp8Blocks(0, 0, 0), tiling.block_k)


def grouped_gemm(
    x: Tensor | Fp8Rows,
    weight: ExpertWeights,
    bias: Tensor | None,
    tiles: PairTiles,
    *,
    top_k: int,
    tiling: GroupedTiling,
    activation: Activation | None = None,
    interleaved: bool = False,
    pair_weight: Tensor | None = None,
) -> Tensor | Fp8Rows:
    """Multiplies the rows of all pairs with their experts' weights [E, N, K]; bias [E, N].

    With an activation: x [M, K]; returns activations [P, N / 2] in the order of grouped pairs, or of all pairs if none
    are; in 8 bits with a scale for each tile of block_n columns if x is. interleaved: gate and up alternate in the rows
    of the weight; else all gates come first.
    Without: x [P, K] in that order; returns results [P, N] times pair_weight [P], in the order of the pairs.
    """
    given = _operands(x, weight, tiling)
    pairs = tiles.pairs.shape[0]
    n = weight.shape[1] // 2 if activation else weight.shape[1]
    eight_bits = given.x_scale is not None and activation is not None
    out = given.x.new_empty(pairs, n, dtype=torch.float8_e4m3fn if eight_bits else given.dtype)
    scale = given.x.new_empty(cdiv(n, tiling.block_n), pairs, dtype=torch.float32) if eight_bits else None
    up_offset = 0 if activation is None else 1 if interleaved else n
    sizes = GroupedSizes(n, given.x.shape[1], top_k, 2 if interleaved and activation else 1, up_offset)
    count = pairs if tiles.expert is None else tiles.expert.shape[0]
    parts = _split_sums(out, tiling, count * cdiv(n, tiling.block_n), gated=activation is not None)
    inputs = GroupedInputs(given.exponents, given.weight_scale, given.x_scale, bias, pair_weight)
    _launch(given, inputs, tiles, GemmOutputs(out, None, scale, None), parts, sizes, tiling, activation)
    return out if scale is None else Fp8Rows(out, scale, tiling.block_n, given.dtype)


def grouped_gemm_residual(
    x: Tensor | Fp8Rows,
    weight: ExpertWeights,
    bias: Tensor | None,
    tiles: PairTiles,
    *,
    top_k: int,
    tiling: GroupedTiling,
    pair_weight: Tensor,
    residual: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    fp8: bool = False,
) -> tuple[Tensor, Normed | Fp8Rows]:
    """Returns h = residual [M, N] + the results of `grouped_gemm` of each token's pairs, and the pending RMS norm of h.

    tiles: of ungrouped pairs. norm_weight [N]; without it the second result is h. fp8: the norm is in 8 bits.
    """
    assert tiles.expert is None and residual.stride(1) == 1
    given = _operands(x, weight, tiling)
    pairs, (tokens, n) = tiles.pairs.shape[0], residual.shape
    blocks, fp8 = cdiv(n, tiling.block_n), fp8 and norm_weight is not None
    h, scaled, scale, squares = given.x.new_empty(tokens, n, dtype=given.dtype), None, None, None
    if norm_weight is not None:
        scaled = torch.empty_like(h, dtype=torch.float8_e4m3fn if fp8 else h.dtype)
        squares = h.new_empty(blocks, tokens, dtype=torch.float32)
        scale = torch.empty_like(squares) if fp8 else None
    part = tiling.block_n * (top_k if pairs == top_k else power_of_2(pairs))
    sums = h.new_empty(blocks * tiling.splits * part, dtype=torch.float32)
    inputs = GroupedInputs(
        given.exponents, given.weight_scale, given.x_scale, bias, pair_weight, residual, residual.stride(0), norm_weight
    )
    sizes = GroupedSizes(n, given.x.shape[1], top_k, 1, 0)
    outputs = GemmOutputs(h, scaled, scale, squares)
    _launch(given, inputs, tiles, outputs, SplitSums(sums, arrivals(h, blocks)), sizes, tiling, None)
    if scaled is not None and scale is not None:
        return h, Fp8Rows(scaled, scale, tiling.block_n, given.dtype, squares, eps)
    return h, Normed(h if scaled is None else scaled, squares, eps)


def _launch(
    given: _Operands, inputs: GroupedInputs, tiles: PairTiles, outputs: GemmOutputs, parts: SplitSums,
    sizes: GroupedSizes, tiling: GroupedTiling, activation: Activation | None,
) -> None:  # fmt: skip
    """Launches a product."""
    pairs, rows = tiles.pairs.shape[0], given.x
    columns = given.weight.shape[2] if given.exponents is None else sizes.k
    assert rows.stride(1) == 1 and columns == sizes.k
    grouped = tiles.expert is not None
    kernel: Any = _grouped_gemm_kernel if grouped else _ungrouped_gemm_kernel
    own = {} if grouped else {"P_PAD": 1 if pairs == sizes.top_k else power_of_2(pairs)}
    count = pairs if tiles.expert is None else tiles.expert.shape[0]
    kernel[(count, cdiv(sizes.n, tiling.block_n), tiling.splits)](
        rows, given.weight, inputs, tiles, outputs, parts, pairs, rows.stride(0), SIZES=sizes,
        TILES=tiling._replace(block_k=given.block_k), ACTIVATION=activation or Activation(False), FP8=given.fp8,
        MXFP4=given.exponents is not None, ASM=given.dtype == torch.bfloat16 and _multiplies_bf16_pairs(rows.device),
        num_warps=tiling.warps, num_stages=tiling.stages, **own, **launch_options(rows),
    )  # fmt: skip


def _split_sums(like: Tensor, tiling: GroupedTiling, results: int, *, gated: bool) -> SplitSums:
    """Returns memory for the sums of the programs that share K. results: tiles times blocks of outputs."""
    if tiling.splits == 1:
        return SplitSums(None, None)
    part = tiling.block_n * tiling.block_m * (2 if gated else 1)
    sums = torch.empty(results * tiling.splits * part, dtype=torch.float32, device=like.device)
    return SplitSums(sums, arrivals(like, results))
