"""The experts' part of a layer, expert by expert, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from specpipe_kernels.experts.pack_mxfp4 import unpack_mxfp4
from specpipe_kernels.reference.layers.dequantize import dequantize
from specpipe_kernels.reference.layers.quantize_rows import dequantize_rows
from specpipe_kernels.reference.layers.rms_norm import rms_norm, rms_norm_fp8
from specpipe_kernels.weights import (
    Activation,
    Experts,
    ExpertWeights,
    Fp8ExpertWeight,
    Fp8Rows,
    Mxfp4Weight,
    Normed,
    QuantizedWeight,
)


def activate(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """Returns the gated activation of gate and up, elementwise."""
    if activation.clamped:
        gate = gate.clamp(max=activation.limit)
        up = up.clamp(-activation.limit, activation.limit) + 1
    return gate * torch.sigmoid(activation.alpha * gate) * up


def mix_experts(rows: Tensor | Fp8Rows, expert_ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
    """See `specpipe_kernels.mix_experts`."""
    x = dequantize_rows(rows, rows.dtype) if isinstance(rows, Fp8Rows) else rows
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in range(experts.num_experts):
        token, choice = torch.where(expert_ids == expert)
        weight, bias = _weight_of(experts.gate_up, expert, x), _row(experts.gate_up_bias, expert)
        product = functional.linear(x[token], weight, bias)
        gate, up = (product[:, ::2], product[:, 1::2]) if experts.interleaved else product.chunk(2, dim=-1)
        gated = activate(gate.float(), up.float(), experts.activation).to(x.dtype)
        result = functional.linear(gated, _weight_of(experts.down, expert, gated), _row(experts.down_bias, expert))
        out.index_add_(0, token, result.float() * weights[token, choice, None].float())
    return out.to(x.dtype)


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
    h = residual + mix_experts(x, expert_ids, weights, experts)
    if fp8 and norm_weight is not None:
        return h, rms_norm_fp8(h, norm_weight, eps)
    return h, Normed(h if norm_weight is None else rms_norm(h, norm_weight, eps), None, eps)


def _weight_of(weights: ExpertWeights, expert: int, like: Tensor) -> Tensor:
    """Returns the weight [N, K] of one expert in the dtype of `like`."""
    if isinstance(weights, Mxfp4Weight):
        one = Mxfp4Weight(weights.words[expert : expert + 1], weights.exponents[expert : expert + 1])
        return unpack_mxfp4(one, like.shape[1], like.dtype)[0]
    if isinstance(weights, Fp8ExpertWeight):
        return dequantize(
            QuantizedWeight(weights.values[expert], weights.scale[expert], None, weights.block), like.dtype
        )
    return weights[expert]


def _row(bias: Tensor | None, expert: int) -> Tensor | None:
    return None if bias is None else bias[expert]
