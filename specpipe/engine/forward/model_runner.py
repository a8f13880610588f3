"""One model over its KV pages: packed tokens in, logits out."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from specpipe.engine.forward.attention_batch import AttentionBatch, AttentionSpec
from specpipe.engine.forward.attention_interface import probe_attention
from specpipe.engine.forward.compiled_layers import STANCE, compile_layers
from specpipe.engine.forward.experts_interface import use_own_experts
from specpipe.engine.forward.fused_stack import FusedStack, can_fuse
from specpipe.engine.forward.kv_pages import allocate_pages, copy_pages, page_bytes
from specpipe_kernels import PrefixArgs, write_index


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
    ) -> None:
        """Probes the model's attention and fuses or compiles its layers. page_size in tokens.

        fused: use `FusedStack` for models that it supports, and own kernels for experts; by default everywhere but on a
        CPU.
        compiler: torch.compile's backend for decoder layers that are not fused; by default "inductor" on a GPU and ""
        (no compilation) elsewhere.
        """
        self.model = model
        self.vocab_size = vocab_size
        self.page_size = page_size
        self.context_length = context_length
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self._attention: dict[nn.Module, AttentionSpec] = probe_attention(model, self.device)
        self._pages: list[Tensor] = []
        if fused is None:
            fused = self.device.type != "cpu"
        if fused:
            use_own_experts(model)
        self._stack: FusedStack | None = None
        if fused and can_fuse(model, self._attention):
            self._stack = FusedStack(model, self._attention, positions=context_length)
        backend = ("inductor" if self.device.type == "cuda" else "") if compiler is None else compiler
        self.compiled = False
        if backend and not self.fused:
            self.compiled = compile_layers(model, self._attention, self._probe_logits, backend=backend)

    @property
    def fused(self) -> bool:
        """True if the model runs as a `FusedStack`."""
        return self._stack is not None

    @property
    def num_logits(self) -> int:
        """Outputs of the head (V)."""
        return int(cast(Any, self.model).get_output_embeddings().out_features)

    @property
    def page_bytes(self) -> int:
        """Bytes of one KV page over all layers."""
        return page_bytes(self._attention.values(), self.page_size, self.dtype)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the model's parameters and buffers on the device; views of merged weights count once."""
        storages = (t.untyped_storage() for t in (*self.model.parameters(), *self.model.buffers()))
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def allocate_pages(self, num_pages: int) -> None:
        """Allocates KV memory in place of the present one. num_pages counts the trash page."""
        self._pages = allocate_pages(self._attention, num_pages, self.page_size, self.dtype, self.device)

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
        with torch.compiler.set_stance(STANCE) if self.compiled else nullcontext():
            output = self.model(
                input_ids=tokens[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=keep,
                specpipe_batch=batch,
            )
        logits: Tensor = output.logits[0]
        return logits

    def _probe_logits(self) -> Tensor:
        """Returns logits [n, V] of a forward over n - 1 tokens and one over the next token, on new pages."""
        self.allocate_pages(2)
        n = min(self.page_size, self.context_length)
        tokens = torch.arange(n, device=self.device)
        parts = []
        for start, stop in ((0, n - 1), (n - 1, n)):
            parts.append(
                self.forward(
                    tokens[start:stop] % self.vocab_size,
                    tokens[start:stop],
                    block_tables=torch.ones(1, 1, dtype=torch.int32, device=self.device),
                    cu_queries=torch.tensor([0, stop - start], dtype=torch.int32, device=self.device),
                    starts=tokens[start : start + 1],
                    max_queries=stop - start,
                    keep=0,
                )
            )
        return torch.cat(parts)
