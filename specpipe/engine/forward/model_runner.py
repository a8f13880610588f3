"""One model over its KV pages: packed tokens in, logits out."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from specpipe.core import KVDtypeChoice, LayerScales, ModelScales
from specpipe.engine.forward.attention_batch import AttentionBatch, AttentionSpec
from specpipe.engine.forward.attention_interface import probe_attention
from specpipe.engine.forward.compiled_layers import STANCE, FallbackCounter, compile_layers
from specpipe.engine.forward.experts_interface import use_own_experts
from specpipe.engine.forward.fused_stack import FusedStack, can_fuse
from specpipe.engine.forward.kv_pages import allocate_pages, copy_pages, page_bytes, pages_of
from specpipe_kernels import KVScales, PrefixArgs, write_index

log = logging.getLogger(__name__)


_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of the number of experts in transformers' configurations."""


class ModelRunner:
    """Runs a transformers causal LM that was loaded with specpipe's attention.

    `forward` neither synchronises nor depends on device values, so that it can be captured in a CUDA graph.
    Shapes: N tokens, R rows, W pages a row, n tokens whose logits are kept, V outputs of the head.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        vocab_size: int,
        context_length: int,
        page_size: int,
        fused: bool | None = None,
        compiler: str | None = None,
        kv_dtype: KVDtypeChoice = "auto",
    ) -> None:
        """Probes the model's attention and fuses or compiles its layers. page_size in tokens.

        fused: use `FusedStack` for models that it supports, and own kernels for experts; by default everywhere but on a
        CPU.
        compiler: torch.compile's backend for decoder layers that are not fused; by default "inductor" on a GPU and ""
        (no compilation) elsewhere.
        kv_dtype: number format of KV pages. In 8 bits all scales are 1 until `set_kv_scales`.
        """
        self.model = model
        self.vocab_size = vocab_size
        self.page_size = page_size
        self.context_length = context_length
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        if fused is None:
            fused = self.device.type != "cpu"
        if fused:
            use_own_experts(model)
        self._attention: dict[nn.Module, AttentionSpec] = probe_attention(model, self.device)
        self._pages: list[Tensor] = []
        self.copy_bytes = 0
        """Bytes of dense copies of 4-bit weights, which `weight_bytes` leaves out."""
        self._scales: dict[nn.Module, KVScales] = {}
        self._stack: FusedStack | None = None
        if fused and can_fuse(model, self._attention):
            self._stack = FusedStack(model, self._attention, positions=context_length)
        backend = ("inductor" if self.device.type == "cuda" else "") if compiler is None else compiler
        self.uncompiled_forwards = 0
        """Forwards in which a compiled layer ran uncompiled; replays of a graph are not counted."""
        self._fallbacks: FallbackCounter | None = None
        if backend and not self.fused:
            self._fallbacks = compile_layers(model, self._attention, self._probe_logits, backend=backend)
        if kv_dtype == "fp8":  # not before: rounding to 8 bits would hide or exaggerate what compilation changes
            ones = (torch.ones(2, spec.heads, device=self.device) for spec in self._attention.values())
            self._scales = {module: KVScales(*one) for module, one in zip(self._attention, ones, strict=True)}

    @property
    def fused(self) -> bool:
        """True if the model runs as a `FusedStack`."""
        return self._stack is not None

    @property
    def compiled(self) -> bool:
        """True if the layers run through torch.compile."""
        return self._fallbacks is not None

    @property
    def num_logits(self) -> int:
        """Outputs of the head (V)."""
        return int(cast(Any, self.model).get_output_embeddings().out_features)

    @property
    def expert_share(self) -> float:
        """Share of a layer's experts that one token is routed to; 0 for a dense model."""
        config: Any = self.model.config
        count = next((found for name in _EXPERT_COUNTS if (found := getattr(config, name, None))), 0)
        return float(config.num_experts_per_tok / count) if count else 0.0

    @property
    def page_bytes(self) -> int:
        """Bytes of one KV page over all layers."""
        return page_bytes(self._attention.values(), self.page_size, self.kv_dtype)

    @property
    def kv_dtype(self) -> torch.dtype:
        """dtype of KV pages."""
        return torch.float8_e4m3fn if self._scales else self.dtype

    @property
    def kv_scales(self) -> ModelScales:
        """Scales of KV pages in 8 bits, by layer; empty for other pages."""
        return tuple(
            LayerScales(*(tuple(x.tolist()) for x in scales if x is not None)) for scales in self._scales.values()
        )

    def attention_heads(self) -> list[tuple[nn.Module, int]]:
        """Returns the attention modules in the order of `kv_scales`, each with its number of KV heads."""
        return [(module, spec.heads) for module, spec in self._attention.items()]

    def set_kv_scales(self, scales: ModelScales) -> None:
        """Replaces the scales of KV pages in 8 bits. Pages that were written before lose their meaning."""
        for own, given in zip(self._scales.values(), scales, strict=True):
            for tensor, values in zip(own, given, strict=True):
                assert tensor is not None
                tensor.copy_(torch.tensor(values))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the model's parameters and buffers on the device; views of merged weights count once."""
        storages = (t.untyped_storage() for t in (*self.model.parameters(), *self.model.buffers()))
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def keep_dense_copies(self, budget: int) -> None:
        """Makes dense copies of 4-bit weights, as many as fit into `budget` bytes; none without a `FusedStack`.

        Call it before graphs are captured.
        """
        if self._stack is not None:
            self.copy_bytes = self._stack.keep_dense_copies(budget)

    def allocate_pages(self, num_pages: int) -> None:
        """Allocates KV memory in place of the present one. num_pages counts the trash page."""
        self._pages = allocate_pages(
            self._attention, num_pages, self.page_size, self.kv_dtype, self.device, self._scales
        )

    def largest_kv(self, prompts: Iterable[Sequence[int]]) -> list[LayerScales]:
        """Returns the largest absolute key and value of each layer and KV head over prompts of at least one token.

        Pages have the model's dtype meanwhile; call `allocate_pages` afterwards.
        """
        scales, self._scales = self._scales, {}
        largest = {module: torch.zeros(2, spec.heads, device=self.device) for module, spec in self._attention.items()}
        for prompt in prompts:
            self.allocate_pages(-(-len(prompt) // self.page_size) + 1)
            self._feed_alone(torch.tensor(prompt, device=self.device), 0, len(prompt), keep=None)
            for module, found in largest.items():
                pages = pages_of(module)
                amax = torch.stack([x.abs().amax((0, 2, 3)).float() for x in (pages.k, pages.v)])
                torch.maximum(found, amax, out=found)
        self._scales, self._pages = scales, []
        return [LayerScales(*(tuple(x.tolist()) for x in found)) for found in largest.values()]

    def copy_pages(self, source: Tensor, target: Tensor) -> None:
        """Copies KV pages source[i] to target[i], [n] int64 each, in all layers. No page is in both."""
        copy_pages(self._pages, source, target)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        *,
        block_tables: Tensor,
        cu_queries: Tensor,
        starts: Tensor,
        max_queries: int,
        keep: Tensor | int | None,
        prefix: PrefixArgs | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Feeds the tokens of R rows, packed, and returns logits [n, V].

        tokens, positions [N] int64; block_tables [R, W] int32; cu_queries [R + 1] int32; starts [R] int64.
        keep: indices [n] of the tokens whose logits are kept, the number of last tokens (0: all), or None for keys and
        values alone. A token whose position by `starts` is negative or past the block table writes to the trash page
        and its logits are undefined; `positions`, 0 … context_length - 1, go to the model's position encoding.
        prefix: rows that share their first pages, as in `paged_attention`.
        out: [n, V] contiguous, filled with the logits and returned; the fused head writes there, others are copied.
        """
        batch = AttentionBatch(
            block_tables=block_tables,
            cu_queries=cu_queries,
            starts=starts,
            write_index=write_index(block_tables, cu_queries, starts, tokens.shape[0], self.page_size),
            max_queries=max_queries,
            prefix=prefix,
            kv_only=keep is None,
        )
        with torch.inference_mode():
            if self._stack is not None:
                return self._stack.forward(tokens, positions, batch, keep=0 if keep is None else keep, out=out)
            logits = self._forward_model(tokens, positions, batch, starts.new_empty(0) if keep is None else keep)
            return logits if out is None else out.copy_(logits)

    def _forward_model(self, tokens: Tensor, positions: Tensor, batch: AttentionBatch, keep: Tensor | int) -> Tensor:
        """Runs transformers' own forward; arguments and result as in `forward`."""
        before = 0 if self._fallbacks is None else self._fallbacks.layers
        with torch.compiler.set_stance(STANCE) if self.compiled else nullcontext():
            output = self.model(
                input_ids=tokens[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=keep,
                specpipe_batch=batch,
            )
        if self._fallbacks is not None and self._fallbacks.layers > before:
            self._note_uncompiled(tokens.shape[0])
        logits: Tensor = output.logits[0]
        return logits

    def _note_uncompiled(self, tokens: int) -> None:
        if not self.uncompiled_forwards:
            log.warning(
                "a forward of %s over %d tokens ran uncompiled, and slower: no compiled code fits; such forwards are "
                "counted as uncompiled_forwards",
                type(self.model).__name__,
                tokens,
            )
        self.uncompiled_forwards += 1

    def _probe_logits(self) -> Tensor:
        """Returns logits [n, V] of a forward over n - 1 tokens and one over the next token, on new pages."""
        self.allocate_pages(2)
        n = min(self.page_size, self.context_length)
        tokens = torch.arange(n, device=self.device) % self.vocab_size
        return torch.cat([self._feed_alone(tokens, *span, keep=0) for span in ((0, n - 1), (n - 1, n))])

    def _feed_alone(self, tokens: Tensor, start: int, stop: int, *, keep: int | None) -> Tensor:
        """Returns logits [n, V] of a forward over tokens[start:stop] of one row, whose pages are 1, 2, …"""
        pages = -(-stop // self.page_size)
        positions = torch.arange(start, stop, device=self.device)
        return self.forward(
            tokens[start:stop],
            positions,
            block_tables=torch.arange(1, pages + 1, dtype=torch.int32, device=self.device)[None],
            cu_queries=torch.tensor([0, stop - start], dtype=torch.int32, device=self.device),
            starts=positions[:1],
            max_queries=stop - start,
            keep=keep,
        )
