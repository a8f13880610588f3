"""Mixtures of experts: routing of tokens, and the products of all experts that are hit.

M tokens, E experts, k experts per token, H hidden size, I intermediate size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.runtime.backend import implementation
from specpipe_kernels.weights import Experts, Fp8Rows, Normed, Routing, values_of


def route_tokens(
    x: Normed, router: Tensor, bias: Tensor | None, top_k: int, *, normalize: bool, fp8: bool = False
) -> Routing:
    """Chooses the k experts with the largest logits x @ router.T + bias; of equal ones those with the lower numbers.

    Args:
        x: [M, H] in 16 or 32 bits. A pending norm is completed.
        router: [E, H], contiguous.
        bias: [E].
        top_k: k.
        normalize: divide the weights by their sum, as a softmax over the chosen logits does; else they are the softmax
            over all experts.
        fp8: the rows for the experts are in 8 bits, one scale a row.
    """
    result: Routing = implementation("experts.route_tokens", router)(
        x, router, bias, top_k, normalize=normalize, fp8=fp8
    )
    return result


def mix_experts(x: Tensor | Fp8Rows, expert_ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
    """Returns the weighted sum [M, H] of the outputs of each token's experts; sums in fp32.

    Neither the host nor the shapes of launches depend on the routing: it can be captured in a CUDA graph.

    Args:
        x: [M, H]; in 8 bits for experts in 8 bits alone.
        expert_ids: [M, k] int32, each in 0 … E - 1, distinct within a row.
        weights: [M, k] fp32.
        experts: weights of all experts. mxfp4 needs x in 16 bits.

    Raises ValueError for ids of another shape or dtype.
    """
    _check(x, expert_ids, weights)
    result: Tensor = implementation("experts.mix_experts", weights)(
        x, expert_ids.contiguous(), weights.contiguous(), experts
    )
    return result


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
    """Returns h = residual [M, H] + `mix_experts` of the other arguments, and the RMS norm of h.

    norm_weight [H]: weight of that norm; without it the second result is undefined. fp8: the norm is in 8 bits.
    """
    _check(x, expert_ids, weights)
    function = implementation("experts.mix_experts", residual, "mix_experts_residual")
    result: tuple[Tensor, Normed | Fp8Rows] = function(
        x, expert_ids.contiguous(), weights.contiguous(), experts, residual, norm_weight, eps, fp8=fp8
    )
    return result


def _check(x: Tensor | Fp8Rows, expert_ids: Tensor, weights: Tensor) -> None:
    """Raises ValueError for ids of another shape or dtype than [M, k] int32, or weights of another shape."""
    rows = values_of(x).shape[0]
    if expert_ids.dtype != torch.int32 or expert_ids.shape[0] != rows or weights.shape != expert_ids.shape:
        raise ValueError(
            f"expert_ids {list(expert_ids.shape)} {expert_ids.dtype}, weights {list(weights.shape)}; expected "
            f"[{rows}, k] torch.int32 and the same shape"
        )
