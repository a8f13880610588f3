"""The decoder stack and head of a Llama-like model as a chain of fused kernels, in place of transformers' own.

Five kernels a layer (docs/design.md) instead of about fifteen: projections read concatenated weights, norms are
computed by the products around them, rotation stores keys and values; the head is one more product. Layers with a
mixture of experts have six to nine.

Shapes: N tokens, n tokens whose logits are kept, H hidden size, I intermediate size, V outputs of the head,
Hq/Hkv query/KV heads, D head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from specpipe.engine.forward.attention_batch import AttentionBatch, AttentionSpec
from specpipe.engine.forward.kv_pages import pages_of
from specpipe.engine.forward.merged_projections import concatenate_biases, concatenate_weights, weight_of
from specpipe.engine.forward.mixture import Mixture, mixture_of
from specpipe.engine.forward.quantized_linear import DenseCopies
from specpipe.models.support import OWN_LAYERS
from specpipe_kernels import (
    Fp8Rows,
    Normed,
    Weight,
    is_fp8,
    linear,
    linear_glu,
    linear_residual,
    linear_rope_store_kv,
    paged_attention,
    rms_norm,
    rms_norm_fp8,
    rope_store_kv,
)


class DenseWeights(NamedTuple):
    """Weights of a gated feed-forward part."""

    gate_up: Weight
    """[2 I, H]."""
    down: Weight
    """[H, I]."""


class _Layer(NamedTuple):
    """Weights and constants of one decoder layer."""

    attention: nn.Module
    """The attention module, which owns the KV pages."""
    input_norm: Tensor
    """[H]."""
    qkv: Weight
    """[(Hq + 2 Hkv) * D, H]."""
    qkv_bias: Tensor | None
    """[(Hq + 2 Hkv) * D]."""
    out: Weight
    """[H, Hq * D]."""
    out_bias: Tensor | None
    """[H]; in layers with a mixture."""
    post_norm: Tensor
    """[H]."""
    feed_forward: DenseWeights | Mixture
    q_norm: Tensor | None
    """[D], or [Hq * D] where all query heads have one norm; None without a norm of queries."""
    k_norm: Tensor | None
    """[D], [Hkv * D] or None."""
    clip: float | None
    """Largest absolute entry of queries, keys and values before rotation; None: unlimited."""
    sinks: Tensor | None
    """[Hq] logits of attention sinks."""
    scale: float
    window: int | None


def _make_layer(module: Any, spec: AttentionSpec) -> _Layer:
    """Returns the weights of a transformers decoder layer, merged."""
    attention = module.self_attn
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    return _Layer(
        attention=attention,
        input_norm=module.input_layernorm.weight.data,
        qkv=concatenate_weights(*projections),
        qkv_bias=concatenate_biases(*projections),
        out=weight_of(attention.o_proj),
        out_bias=None if attention.o_proj.bias is None else attention.o_proj.bias.data,
        post_norm=module.post_attention_layernorm.weight.data,
        feed_forward=mixture_of(module.mlp) or _dense_weights(module.mlp),
        q_norm=attention.q_norm.weight.data if hasattr(attention, "q_norm") else None,
        k_norm=attention.k_norm.weight.data if hasattr(attention, "k_norm") else None,
        clip=getattr(attention.config, "clip_qkv", None),
        sinks=spec.sinks,
        scale=spec.scale,
        window=spec.window,
    )


def _with_copies(layer: _Layer, copies: DenseCopies) -> _Layer:
    """Returns the layer with the dense copies that fit."""
    mlp = layer.feed_forward
    if isinstance(mlp, DenseWeights):
        mlp = DenseWeights(copies.add(mlp.gate_up), copies.add(mlp.down))
    return layer._replace(qkv=copies.add(layer.qkv), out=copies.add(layer.out), feed_forward=mlp)


def _dense_weights(mlp: Any) -> DenseWeights:
    return DenseWeights(concatenate_weights(mlp.gate_proj, mlp.up_proj), weight_of(mlp.down_proj))


def can_fuse(model: Any, attention: Mapping[nn.Module, AttentionSpec]) -> bool:
    """Returns True if `FusedStack` reproduces the model's family and configuration. attention: as probed."""
    if type(model).__name__ not in OWN_LAYERS or model.config.hidden_act not in ("silu", "swish"):
        return False
    layers = model.model.layers
    plain = all(_is_plain(layer, attention[layer.self_attn]) for layer in layers)
    return plain and model.lm_head.bias is None and len(layers) == model.config.num_hidden_layers


def _is_plain(layer: Any, spec: AttentionSpec) -> bool:
    """Returns True if `FusedStack` computes the layer: dense without biases behind attention, or a mixture."""
    mlp = layer.mlp
    if not hasattr(mlp, "gate_proj"):
        return spec.softcap is None and mixture_of(mlp) is not None
    biases = (layer.self_attn.o_proj.bias, mlp.gate_proj.bias, mlp.down_proj.bias)
    return spec.plain and all(bias is None for bias in biases)


class FusedStack:
    """Computes what the forward of a transformers causal LM computes: embedding, decoder layers and head.

    The model keeps its modules; merged projections become views of the concatenated weights.
    """

    def __init__(self, model: Any, attention: Mapping[nn.Module, AttentionSpec], *, positions: int) -> None:
        """Prepares a model that `can_fuse` accepts. attention: as probed.

        positions: length of the rotary table in tokens; no token has a position beyond it.
        """
        base = model.model
        self._embed: nn.Module = base.embed_tokens
        self._norm: Tensor = base.norm.weight.data
        self._eps: float = model.config.rms_norm_eps
        self._layers = [_make_layer(module, attention[module.self_attn]) for module in base.layers]
        self._head = weight_of(model.lm_head)
        weight = base.embed_tokens.weight
        with torch.inference_mode():
            cos, sin = base.rotary_emb(weight[:1, :1][None], torch.arange(positions, device=weight.device)[None])
        # Cloned outside of inference mode: graphs and eager rounds alike may read them.
        halves = 2 if cos.shape[-1] < attention[base.layers[0].self_attn].key_dim else 1  # gpt-oss: one half of both
        self._cos, self._sin = cos[0].repeat(1, halves), sin[0].repeat(1, halves)

    def keep_dense_copies(self, budget: int) -> int:
        """Makes dense copies of weights in 4 bits, as many as fit into `budget` bytes. Returns the bytes of all copies.

        Call it before graphs are captured.
        """
        copies = DenseCopies(budget, self._cos.dtype)
        self._layers = [_with_copies(layer, copies) for layer in self._layers]
        self._head = copies.add(self._head)
        return copies.bytes

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        batch: AttentionBatch,
        *,
        keep: Tensor | int,
        out: Tensor | None = None,
    ) -> Tensor:
        """tokens, positions [N] int64 → logits [n, V]; [0, V] if `batch.kv_only`.

        keep: indices [n] of the tokens whose logits are kept, or the number of last tokens (0: all).
        out: [n, V] contiguous, written in place of a new tensor.
        """
        h: Tensor = self._embed(tokens)
        first = self._layers[0]
        normed = self._first_norm(h, first.input_norm, fp8=is_fp8(first.qkv))
        for layer, following in zip(self._layers, [*self._layers[1:], None], strict=True):
            query = self._store_kv(layer, normed, positions, batch)
            if batch.kv_only and following is None:
                return h.new_empty(0, self._head.shape[0])
            attended = self._attend(layer, query, batch)
            h, normed = self._feed_forward(layer, attended, h, following)
        hidden = rms_norm(h, self._norm, self._eps)
        return linear(hidden[-keep:] if isinstance(keep, int) else hidden[keep], self._head, out=out)

    def _feed_forward(
        self, layer: _Layer, attended: Tensor | Fp8Rows, h: Tensor, following: _Layer | None
    ) -> tuple[Tensor, Normed | Fp8Rows]:
        """Adds attention's output [N, Hq * D] and the feed-forward part to h [N, H].

        Returns h and the norm in front of the next layer, undefined without one.
        """
        next_norm, fp8 = (None, False) if following is None else (following.input_norm, is_fp8(following.qkv))
        if isinstance(layer.feed_forward, Mixture):
            h, x = linear_residual(attended, layer.out, h, layer.post_norm, self._eps, bias=layer.out_bias)
            assert isinstance(x, Normed)
            return layer.feed_forward.forward(x, h, next_norm, self._eps, fp8=fp8)
        gate_up, down = layer.feed_forward
        h, normed = linear_residual(attended, layer.out, h, layer.post_norm, self._eps, fp8=is_fp8(gate_up))
        return linear_residual(linear_glu(normed, gate_up, fp8=is_fp8(down)), down, h, next_norm, self._eps, fp8=fp8)

    def _first_norm(self, h: Tensor, weight: Tensor, *, fp8: bool) -> Normed | Fp8Rows:
        """Returns the norm of the first layer's input [N, H], in the number format of the product behind it."""
        if fp8:
            return rms_norm_fp8(h, weight, self._eps)
        return Normed(rms_norm(h, weight, self._eps), None, self._eps)

    def _store_kv(self, layer: _Layer, normed: Normed | Fp8Rows, positions: Tensor, batch: AttentionBatch) -> Tensor:
        """Stores the layer's keys and values and returns its queries [N, Hq, D]. normed: [N, H]."""
        pages = pages_of(layer.attention)
        if layer.clip is not None or (layer.q_norm is not None and layer.q_norm.numel() > pages.k.shape[3]):
            return self._store_normed_kv(layer, normed, positions, batch)
        return linear_rope_store_kv(
            normed,
            layer.qkv,
            layer.qkv_bias,
            self._cos,
            self._sin,
            positions,
            pages.k,
            pages.v,
            batch.write_index,
            q_heads=layer.out.shape[1] // pages.k.shape[3],
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=self._eps,
            scales=pages.scales,
        )

    def _store_normed_kv(
        self, layer: _Layer, normed: Normed | Fp8Rows, positions: Tensor, batch: AttentionBatch
    ) -> Tensor:
        """`_store_kv` with a norm of all query heads, one of all key heads, and clipped entries (OLMoE)."""
        pages = pages_of(layer.attention)
        assert layer.q_norm is not None and layer.k_norm is not None
        qkv = linear(normed, layer.qkv, layer.qkv_bias)
        queries, keys = layer.q_norm.numel(), layer.k_norm.numel()
        q, k, v = qkv.split([queries, keys, keys], dim=1)
        qkv = torch.cat([rms_norm(q, layer.q_norm, self._eps), rms_norm(k, layer.k_norm, self._eps), v], dim=1)
        if layer.clip is not None:
            qkv.clamp_(-layer.clip, layer.clip)
        return rope_store_kv(
            qkv,
            self._cos,
            self._sin,
            positions,
            pages.k,
            pages.v,
            batch.write_index,
            q_heads=queries // pages.k.shape[3],
            scales=pages.scales,
        )

    @staticmethod
    def _attend(layer: _Layer, query: Tensor, batch: AttentionBatch) -> Tensor | Fp8Rows:
        """query [N, Hq, D] → attention output [N, Hq * D], in 8 bits for an 8-bit product."""
        pages = pages_of(layer.attention)
        out = paged_attention(
            query,
            pages.k,
            pages.v,
            batch.block_tables,
            batch.cu_queries,
            batch.starts,
            max_queries=batch.max_queries,
            scale=layer.scale,
            window=layer.window,
            sinks=layer.sinks,
            prefix=batch.prefix,
            scales=pages.scales,
            fp8=is_fp8(layer.out),
        )
        return out.view(out.shape[0], -1) if isinstance(out, Tensor) else out
