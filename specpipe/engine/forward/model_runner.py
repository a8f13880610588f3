"""One model over its KV pages: packed tokens in, logits out."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from specpipe.engine.forward.attention_batch import AttentionBatch, AttentionSpec
from specpipe.engine.forward.attention_interface import probe_attention
from specpipe.engine.forward.compiled_layers import STANCE, compile_layers
from specpipe.engine.forward.fp8_weights import check_fp8, round_to_fp8
from specpipe.engine.forward.fused_stack import fuse
from specpipe.engine.forward.kv_pages import allocate_pages, page_bytes
from specpipe_kernels import write_index


class ModelRunner:
    """Runs a transformers causal LM that was loaded with specpipe's attention.

    `forward` neither synchronises nor depends on device values, so that it can be captured in a CUDA graph.
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
        fp8: bool = False,
    ) -> None:
        """fused: run the decoder stack as `fused_stack` does where it can; by default on a GPU.

        compiler: torch.compile's backend for decoder layers that are not fused (`compiled_layers`); by default
        "inductor" on a GPU and "", none, elsewhere.
        fp8: round the weights to 8 bits (`fp8_weights`). Raises MachineError for a GPU that cannot.
        """
        self.model = model
        self.vocab_size = vocab_size
        self.page_size = page_size
        self.context_length = context_length
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        if fp8:
            check_fp8(self.device)
            round_to_fp8(model)
        self._attention: dict[nn.Module, AttentionSpec] = probe_attention(model, self.device)
        wanted = self.device.type != "cpu" if fused is None else fused
        self._head = fuse(model, self._attention, positions=context_length, fp8=fp8) if wanted else None
        backend = ("inductor" if self.device.type == "cuda" else "") if compiler is None else compiler
        self.compiled = False
        if backend and not self.fused:
            self.compiled = compile_layers(model, self._attention, self._few_logits, backend=backend)

    @property
    def fused(self) -> bool:
        return self._head is not None

    @property
    def num_logits(self) -> int:
        """Outputs of the head."""
        return int(cast(Any, self.model).get_output_embeddings().weight.shape[0])

    @property
    def page_bytes(self) -> int:
        return page_bytes(self._attention.values(), self.page_size, self.dtype)

    def allocate_pages(self, num_pages: int) -> None:
        allocate_pages(self._attention, num_pages, self.page_size, self.dtype, self.device)

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
        out: Tensor | None = None,
    ) -> Tensor:
        """tokens, positions [N] int64; block_tables [R, W]; cu_queries [R + 1] int32; starts [R] → logits [n, V].

        keep: indices [n] of the tokens whose logits are wanted, the number of last tokens (0: all), or None for none:
        keys and values alone. A token that stands, by starts, at a negative position or past the block table writes to
        the trash page and its logits mean nothing; `positions` are what the model is told, 0 … context_length - 1.
        out: [n, V] contiguous, where the logits go; a fused head writes them there, others are copied.
        """
        batch = AttentionBatch(
            block_tables=block_tables,
            cu_queries=cu_queries,
            starts=starts,
            write_index=write_index(block_tables, cu_queries, starts, tokens.shape[0], self.page_size),
            max_queries=max_queries,
            kv_only=keep is None,
        )
        if self._head is not None:
            self._head.out = out
        steady = torch.compiler.set_stance(STANCE) if self.compiled else nullcontext()
        with torch.inference_mode(), steady:
            told = self.model(
                input_ids=tokens[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=starts.new_empty(0) if keep is None else keep,
                specpipe_batch=batch,
            )
        logits: Tensor = told.logits[0]
        return logits if out is None or self.fused else out.copy_(logits)

    def _few_logits(self) -> Tensor:
        """[n, V] of n - 1 tokens, and of one behind them; on pages of their own."""
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
