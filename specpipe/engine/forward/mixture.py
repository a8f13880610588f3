"""The feed-forward part of a decoder layer that is a mixture of experts.

Shapes: N tokens, H hidden size, E experts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from specpipe_kernels import Experts, Fp8ExpertWeight, Fp8Rows, Normed, mix_experts_residual, route_tokens

_ALWAYS_NORMALIZED = ("MixtralTopKRouter", "GptOssTopKRouter")
_NORMALIZED_BY_CONFIG = ("Qwen3MoeTopKRouter", "OlmoeTopKRouter")


class Mixture(NamedTuple):
    """Router and experts of one layer."""

    router: Tensor
    """[E, H]."""
    router_bias: Tensor | None
    """[E]."""
    top_k: int
    """Experts per token."""
    normalize: bool
    """True: the weights of a token's experts sum to 1."""
    experts: Experts

    def forward(
        self, x: Normed, h: Tensor, norm_weight: Tensor | None, eps: float, *, fp8: bool
    ) -> tuple[Tensor, Normed | Fp8Rows]:
        """x [N, H] normed, h [N, H] residual stream → h plus the experts' outputs, and its RMS norm.

        norm_weight [H]: weight of that norm; without it the second result is undefined. fp8: the norm is in 8 bits.
        """
        # As in all layers, a CPU multiplies rows as they are.
        eight_bits = isinstance(self.experts.gate_up, Fp8ExpertWeight) and x.values.is_cuda
        ids, weights, rows = route_tokens(
            x, self.router, self.router_bias, self.top_k, normalize=self.normalize, fp8=eight_bits
        )
        return mix_experts_residual(rows, ids, weights, self.experts, h, norm_weight, eps, fp8=fp8)


def mixture_of(mlp: Any) -> Mixture | None:
    """Returns the mixture of a transformers layer's `mlp`, or None if this module does not reproduce it.

    Its experts must have own weights (`experts_interface.use_own_experts`).
    """
    router: Any = getattr(mlp, "gate", getattr(mlp, "router", None))
    experts = getattr(mlp, "experts", None)
    kind, own = type(router).__name__, getattr(experts, "experts", None)
    if own is None or kind not in (*_ALWAYS_NORMALIZED, *_NORMALIZED_BY_CONFIG):
        return None
    bias = getattr(router, "bias", None)
    return Mixture(
        router=router.weight.data,
        router_bias=None if bias is None else bias.data,
        top_k=router.top_k,
        normalize=kind in _ALWAYS_NORMALIZED or bool(router.norm_topk_prob),
        experts=own,
    )
