"""The attention that transformers models call when they are loaded with `attn_implementation="specpipe"`.

Every forward is packed: one batch row that holds the N tokens of all rows behind each other, so that prefill
chunks and decode rounds take the same path and no shape but N depends on the batch. The KV pages hang on the
attention module itself.

Shapes: N tokens, R rows, Hq/Hkv query/KV heads, D head size, W pages a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from specpipe.engine.attend import LayerCall, attend, attend_current
from specpipe.errors import ModelError

ATTENTION_NAME = "specpipe"

# Keywords that transformers passes along and that carry nothing for attention over our own KV memory.
_IGNORED = frozenset(
    {
        "dropout",
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "use_cache",
    }
)


class AttentionBatch(NamedTuple):
    """Where the queries of one packed forward sit and what they may see."""

    block_tables: Tensor
    """[R, W] int32; unused entries are 0, the trash page."""
    cu_queries: Tensor
    """[R + 1] int32: the tokens of row r are cu_queries[r]:cu_queries[r + 1]."""
    starts: Tensor
    """[R] int64: absolute position of a row's first query."""
    write_index: Tensor
    """[N] int64: flat KV position (page * page_size + offset) that each token's key and value go to."""
    max_queries: int
    """Most tokens of a row, known to the host."""
    kv_only: bool = False
    """Whether keys and values are all that is wanted: what follows those of the last layer may be left out."""


class AttentionFacts(NamedTuple):
    """What one attention module works with, as its model calls it."""

    heads: int
    """KV heads."""
    key_dim: int
    value_dim: int
    scale: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None
    """[Hq]"""

    @property
    def plain(self) -> bool:
        """No softcap and no sinks."""
        return self.softcap is None and self.sinks is None


class AttentionProbe:
    """Collects the facts of every attention module while a model runs once without KV memory."""

    def __init__(self) -> None:
        self.facts: dict[nn.Module, AttentionFacts] = {}

    def record(self, module: nn.Module, facts: AttentionFacts) -> None:
        if module in self.facts:
            raise ModelError(
                f"{type(module).__name__} attends twice in one forward; expected one attention a layer, whose keys and "
                "values can be kept in one place"
            )
        self.facts[module] = facts


def attach_pages(module: nn.Module, k_pages: Tensor, v_pages: Tensor) -> None:
    """Gives an attention module its KV pages, each [pages, Hkv, page_size, D]."""
    module.k_pages = k_pages
    module.v_pages = v_pages


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    specpipe_batch: AttentionBatch | AttentionProbe | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """query [1, Hq, N, D], key and value [1, Hkv, N, D] → ([1, N, Hq, D], None)."""
    if specpipe_batch is None:
        # A compiled layer. What else it is given is as it was when the layer was probed; looking at it here would make
        # the compiled code depend on it.
        return attend_current(query, key, value), None
    unknown = sorted(name for name, given in others.items() if given is not None and name not in _IGNORED)
    if unknown or attention_mask is not None:
        # An attention feature that is ignored gives wrong text without a word.
        raise NotImplementedError(
            f"{type(module).__name__} asks attention for {', '.join(unknown) or 'a mask'}, which specpipe does not have"
        )
    facts = AttentionFacts(key.shape[1], key.shape[3], value.shape[3], scaling, sliding_window, softcap, s_aux)
    if isinstance(specpipe_batch, AttentionProbe):
        specpipe_batch.record(module, facts)
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
    return attend(LayerCall(module, facts, specpipe_batch), query, key, value), None


def register() -> None:
    """Makes `attn_implementation="specpipe"` known. Without an entry in the mask registry no mask is ever built."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, _attend)


def probe_attention(model: nn.Module, device: torch.device) -> dict[nn.Module, AttentionFacts]:
    """One forward over two tokens that finds every attention module and what it works with."""
    probe = AttentionProbe()
    tokens = torch.zeros(1, 2, dtype=torch.int64, device=device)
    with torch.inference_mode():
        model(
            input_ids=tokens,
            position_ids=torch.arange(2, device=device)[None],
            use_cache=False,
            logits_to_keep=1,
            specpipe_batch=probe,
        )
    if not probe.facts:
        raise ModelError(
            f"{type(model).__name__} never called specpipe's attention; expected a model that is loaded with it"
        )
    return probe.facts
