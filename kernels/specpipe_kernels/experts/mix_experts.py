"""The experts' part of a layer: pairs grouped by expert, two grouped products, weighted sums."""

from __future__ import annotations

from torch import Tensor

from specpipe_kernels.experts.combine_pairs import combine_pairs
from specpipe_kernels.experts.group_pairs import group_pairs
from specpipe_kernels.experts.grouped_gemm import grouped_gemm, grouped_tiling
from specpipe_kernels.reference.layers.quantize_rows import quantize_rows
from specpipe_kernels.types import Experts, Fp8ExpertWeight, Fp8Rows


def mix_experts(x: Tensor, expert_ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
    """See `specpipe_kernels.mix_experts`."""
    tokens, top_k = expert_ids.shape
    if not tokens:
        return x.new_empty(x.shape)
    rows = quantize_rows(x, x.shape[1]) if isinstance(experts.gate_up, Fp8ExpertWeight) else x
    itemsize = 1 if isinstance(rows, Fp8Rows) else x.element_size()
    tiling = grouped_tiling(tokens * top_k, experts.num_experts, itemsize=itemsize)
    tiles = group_pairs(expert_ids, experts.num_experts, tiling.block_m)
    gated = grouped_gemm(
        rows, experts.gate_up, experts.gate_up_bias, tiles, top_k=top_k, tiling=tiling,
        activation=experts.activation, interleaved=experts.interleaved,
    )  # fmt: skip
    parts = grouped_gemm(gated, experts.down, experts.down_bias, tiles, top_k=top_k, tiling=tiling, pair_weight=weights)
    assert isinstance(parts, Tensor)
    return combine_pairs(parts, top_k)
