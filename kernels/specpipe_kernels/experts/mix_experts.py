"""The experts' part of a layer: pairs grouped by expert, two grouped products, weighted sums."""

from __future__ import annotations

from torch import Tensor

from specpipe_kernels.experts.combine_pairs import combine_pairs, combine_residual
from specpipe_kernels.experts.group_pairs import find_tiles
from specpipe_kernels.experts.grouped_gemm import grouped_gemm, grouped_tiling
from specpipe_kernels.layers.quantized.quantize_rows import quantize_rows
from specpipe_kernels.weights import Experts, Fp8ExpertWeight, Normed


def mix_experts(x: Tensor, expert_ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
    """See `specpipe_kernels.mix_experts`."""
    if not x.shape[0]:
        return x.new_empty(x.shape)
    return combine_pairs(_weighted_parts(x, expert_ids, weights, experts), expert_ids.shape[1])


def mix_experts_residual(
    x: Tensor,
    expert_ids: Tensor,
    weights: Tensor,
    experts: Experts,
    residual: Tensor,
    norm_weight: Tensor | None,
    eps: float,
) -> tuple[Tensor, Normed]:
    """See `specpipe_kernels.mix_experts_residual`."""
    if not x.shape[0]:
        return residual, Normed(residual, None, eps)
    parts = _weighted_parts(x, expert_ids, weights, experts)
    h, normed = combine_residual(parts, expert_ids.shape[1], residual, norm_weight, eps)
    return h, Normed(normed, None, eps)


def _weighted_parts(x: Tensor, expert_ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
    """Returns the weighted outputs of each token's experts, [M * k, H]."""
    tokens, top_k = expert_ids.shape
    rows = quantize_rows(x) if isinstance(experts.gate_up, Fp8ExpertWeight) else x
    pairs, count = tokens * top_k, experts.num_experts
    first = grouped_tiling(pairs, count, x, experts.gate_up, gated=True)
    second = grouped_tiling(pairs, count, x, experts.down, gated=False)
    tiles = find_tiles(expert_ids, count, first.block_m)
    gated = grouped_gemm(
        rows, experts.gate_up, experts.gate_up_bias, tiles, top_k=top_k, tiling=first,
        activation=experts.activation, interleaved=experts.interleaved,
    )  # fmt: skip
    parts = grouped_gemm(gated, experts.down, experts.down_bias, tiles, top_k=top_k, tiling=second, pair_weight=weights)
    assert isinstance(parts, Tensor)
    return parts
