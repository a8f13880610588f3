"""The experts' part of a layer: pairs grouped by expert, two grouped products, weighted sums."""

from __future__ import annotations

from torch import Tensor

from specpipe_kernels.experts.combine_pairs import combine_pairs, combine_residual
from specpipe_kernels.experts.expert_args import GroupedTiling, PairTiles
from specpipe_kernels.experts.group_pairs import find_tiles
from specpipe_kernels.experts.grouped_gemm import grouped_gemm, grouped_gemm_residual, grouped_tiling
from specpipe_kernels.layers.quantized.quantize_rows import quantize_rows
from specpipe_kernels.weights import Experts, Fp8ExpertWeight, Fp8Rows, Normed, dtype_of, values_of


def mix_experts(x: Tensor | Fp8Rows, expert_ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
    """See `specpipe_kernels.mix_experts`."""
    rows = values_of(x)
    if not rows.shape[0]:
        return rows.new_empty(rows.shape, dtype=dtype_of(x))
    return combine_pairs(_weighted_parts(*_gated(x, expert_ids, experts), experts, weights), expert_ids.shape[1])


def mix_experts_residual(
    x: Tensor | Fp8Rows,
    expert_ids: Tensor,
    weights: Tensor,
    experts: Experts,
    residual: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    *,
    fp8: bool = False,
) -> tuple[Tensor, Normed | Fp8Rows]:
    """See `specpipe_kernels.mix_experts_residual`."""
    if not residual.shape[0]:
        return residual, Normed(residual, None, eps)
    top_k = expert_ids.shape[1]
    gated, tiles, tiling = _gated(x, expert_ids, experts)
    if tiles.expert is None and residual.element_size() == 2:  # products of few rows complete the norm
        return grouped_gemm_residual(
            gated, experts.down, experts.down_bias, tiles, top_k=top_k, tiling=tiling, pair_weight=weights,
            residual=residual, norm_weight=norm_weight, eps=eps, fp8=fp8,
        )  # fmt: skip
    parts = _weighted_parts(gated, tiles, tiling, experts, weights)
    h, normed = combine_residual(parts, top_k, residual, norm_weight, eps, fp8=fp8)
    return h, normed if isinstance(normed, Fp8Rows) else Normed(normed, None, eps)


def _gated(
    x: Tensor | Fp8Rows, expert_ids: Tensor, experts: Experts
) -> tuple[Tensor | Fp8Rows, PairTiles, GroupedTiling]:
    """Returns the activations of all pairs, the tiles of pairs, and the tile sizes of the second product."""
    tokens, top_k = expert_ids.shape
    rows = quantize_rows(x) if isinstance(experts.gate_up, Fp8ExpertWeight) and isinstance(x, Tensor) else x
    values = values_of(x)
    pairs, count = tokens * top_k, experts.num_experts
    first = grouped_tiling(pairs, count, values, experts.gate_up, gated=True)
    tiles = find_tiles(expert_ids, count, first.block_m)
    gated = grouped_gemm(
        rows, experts.gate_up, experts.gate_up_bias, tiles, top_k=top_k, tiling=first,
        activation=experts.activation, interleaved=experts.interleaved,
    )  # fmt: skip
    return gated, tiles, grouped_tiling(pairs, count, values, experts.down, gated=False)


def _weighted_parts(
    gated: Tensor | Fp8Rows, tiles: PairTiles, tiling: GroupedTiling, experts: Experts, weights: Tensor
) -> Tensor:
    """Returns the weighted outputs of each token's experts, [M * k, H]."""
    parts = grouped_gemm(
        gated, experts.down, experts.down_bias, tiles, top_k=weights.shape[1], tiling=tiling, pair_weight=weights
    )
    assert isinstance(parts, Tensor)
    return parts
