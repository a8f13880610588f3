"""The decoder stack of a Llama-like model as a chain of fused kernels, in place of transformers' own.

Five kernels a layer (docs/design.md) instead of about fifteen: projections read concatenated weights, norms ride on
the products around them, rotation stores keys and values; the head is one more product. The embedding and everything
around the stack stay transformers', and so does any model that is not listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from specpipe.engine.forward.attention_batch import AttentionBatch, AttentionSpec
from specpipe.engine.forward.attention_interface import AttentionProbe
from specpipe.engine.forward.merged_projections import concatenated, concatenated_bias
from specpipe_kernels import (
    Fp8Weight,
    Normed,
    linear,
    linear_glu,
    linear_residual,
    linear_rope_store_kv,
    paged_attention,
    quantize_fp8,
    rms_norm,
)

FAMILIES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})


class _Layer(NamedTuple):
    """The weights of one decoder layer. H hidden size, D head size, I intermediate size."""

    attention: nn.Module
    """Owns the KV pages."""
    input_norm: Tensor
    qkv: Tensor | Fp8Weight
    """[(Hq + 2 Hkv) * D, H]."""
    qkv_bias: Tensor | None
    out: Tensor | Fp8Weight
    """[H, Hq * D]."""
    post_norm: Tensor
    gate_up: Tensor | Fp8Weight
    """[2 I, H]."""
    down: Tensor | Fp8Weight
    """[H, I]."""
    q_norm: Tensor | None
    k_norm: Tensor | None
    scale: float
    window: int | None


def _layer(module: Any, facts: AttentionSpec, *, fp8: bool) -> _Layer:
    attention, mlp = module.self_attn, module.mlp
    stored: Callable[[Tensor], Tensor | Fp8Weight] = quantize_fp8 if fp8 else lambda weight: weight
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    return _Layer(
        attention=attention,
        input_norm=module.input_layernorm.weight.data,
        qkv=stored(concatenated(*projections)),
        qkv_bias=concatenated_bias(*projections),
        out=stored(attention.o_proj.weight.data),
        post_norm=module.post_attention_layernorm.weight.data,
        gate_up=stored(concatenated(mlp.gate_proj, mlp.up_proj)),
        down=stored(mlp.down_proj.weight.data),
        q_norm=attention.q_norm.weight.data if hasattr(attention, "q_norm") else None,
        k_norm=attention.k_norm.weight.data if hasattr(attention, "k_norm") else None,
        scale=facts.scale,
        window=facts.window,
    )


def can_fuse(model: Any, attention: Mapping[nn.Module, AttentionSpec]) -> bool:
    """Whether the model is of a family, and configured in a way, that `fuse` reproduces."""
    if type(model).__name__ not in FAMILIES or model.config.hidden_act not in ("silu", "swish"):
        return False
    layers = model.model.layers
    plain = all(
        layer.self_attn.o_proj.bias is None and layer.mlp.gate_proj.bias is None and layer.mlp.down_proj.bias is None
        for layer in layers
    )
    plain = plain and all(attention[layer.self_attn].plain for layer in layers)
    return plain and model.lm_head.bias is None and len(layers) == model.config.num_hidden_layers


def _pages(layer: _Layer) -> tuple[Tensor, Tensor]:
    """KV memory, which modules get after they are fused."""
    return cast(Tensor, layer.attention.k_pages), cast(Tensor, layer.attention.v_pages)


class FusedStack:
    """Stands in for `model.model.forward`."""

    def __init__(self, model: Any, attention: Mapping[nn.Module, AttentionSpec], *, positions: int, fp8: bool) -> None:
        """positions, fp8: as in `fuse`."""
        base = model.model
        self._unfused: Callable[..., Any] = base.forward
        self._embed: nn.Module = base.embed_tokens
        self._norm: Tensor = base.norm.weight.data
        self._eps: float = model.config.rms_norm_eps
        self._layers = [_layer(module, attention[module.self_attn], fp8=fp8) for module in base.layers]
        weight = base.embed_tokens.weight
        with torch.inference_mode():
            cos, sin = base.rotary_emb(weight[:1, :1][None], torch.arange(positions, device=weight.device)[None])
        # Cloned outside of inference mode: graphs and eager rounds alike may read them.
        self._cos, self._sin = cos[0].clone().contiguous(), sin[0].clone().contiguous()

    def forward(
        self, input_ids: Tensor, *, position_ids: Tensor, specpipe_batch: AttentionBatch | AttentionProbe, **others: Any
    ) -> Any:
        """input_ids, position_ids [1, N] → last_hidden_state [1, N, H]."""
        from transformers.modeling_outputs import BaseModelOutputWithPast

        if isinstance(specpipe_batch, AttentionProbe):
            return self._unfused(input_ids, position_ids=position_ids, specpipe_batch=specpipe_batch, **others)
        h: Tensor = self._embed(input_ids[0])
        normed = Normed(rms_norm(h, self._layers[0].input_norm, self._eps), None, self._eps)
        following = [layer.input_norm for layer in self._layers[1:]] + [None]
        for layer, next_norm in zip(self._layers, following, strict=True):
            query = self._store(layer, normed, position_ids[0], specpipe_batch)
            if specpipe_batch.kv_only and next_norm is None:
                return BaseModelOutputWithPast(last_hidden_state=h[None, :0])
            attended = self._attend(layer, query, specpipe_batch)
            h, normed = linear_residual(attended, layer.out, h, layer.post_norm, self._eps)
            h, normed = linear_residual(linear_glu(normed, layer.gate_up), layer.down, h, next_norm, self._eps)
        return BaseModelOutputWithPast(last_hidden_state=rms_norm(h, self._norm, self._eps)[None])

    def _store(self, layer: _Layer, normed: Normed, positions: Tensor, batch: AttentionBatch) -> Tensor:
        """Stores keys and values; → the queries [N, Hq, D]."""
        k_pages, v_pages = _pages(layer)
        return linear_rope_store_kv(
            normed,
            layer.qkv,
            layer.qkv_bias,
            self._cos,
            self._sin,
            positions,
            k_pages,
            v_pages,
            batch.write_index,
            q_heads=layer.out.shape[1] // k_pages.shape[3],
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=self._eps,
        )

    @staticmethod
    def _attend(layer: _Layer, query: Tensor, batch: AttentionBatch) -> Tensor:
        out = paged_attention(
            query,
            *_pages(layer),
            batch.block_tables,
            batch.cu_queries,
            batch.starts,
            max_queries=batch.max_queries,
            scale=layer.scale,
            window=layer.window,
        )
        return out.view(out.shape[0], -1)


class FusedHead:
    """Stands in for `model.lm_head.forward`."""

    def __init__(self, weight: Tensor | Fp8Weight) -> None:
        self._weight = weight
        self.out: Tensor | None = None
        """[n, V]: where the next logits go, and those alone; None: they get room of their own."""

    def forward(self, hidden: Tensor) -> Tensor:
        """[1, n, H] → [1, n, V]."""
        out, self.out = self.out, None
        return linear(hidden[0], self._weight, out=out)[None]


def fuse(
    model: Any, attention: Mapping[nn.Module, AttentionSpec], *, positions: int, fp8: bool = False
) -> FusedHead | None:
    """Replaces the model's decoder stack and head where `can_fuse`, else does nothing. attention: as probed.

    positions: length of the rotary table; no token stands beyond it. fp8: read all weights but the embedding in 8 bits,
    the head's too; they have been rounded to such values (`fp8_weights`).
    """
    if not can_fuse(model, attention):
        return None
    model.model.forward = FusedStack(model, attention, positions=positions, fp8=fp8).forward
    weight = model.lm_head.weight.data
    head = FusedHead(quantize_fp8(weight) if fp8 else weight)
    model.lm_head.forward = head.forward
    return head
