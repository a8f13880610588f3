"""One layer's attention over its KV pages: keys and values are stored, queries attend. Also from compiled code.

Shapes: N tokens, Hq/Hkv query/KV heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn

from specpipe_kernels import paged_attention, store_kv

if TYPE_CHECKING:
    from specpipe.engine.attention import AttentionBatch, AttentionFacts


class LayerCall(NamedTuple):
    """What attention needs beside queries, keys and values."""

    module: nn.Module
    """Owns the KV pages."""
    facts: AttentionFacts
    batch: AttentionBatch


def attend(call: LayerCall, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """query [1, Hq, N, D], key and value [1, Hkv, N, D] → [1, N, Hq, D]; writes to the module's pages."""
    k_pages, v_pages = cast(Tensor, call.module.k_pages), cast(Tensor, call.module.v_pages)
    batch, facts = call.batch, call.facts
    store_kv(key[0].transpose(0, 1), value[0].transpose(0, 1), k_pages, v_pages, batch.write_index)
    out = paged_attention(
        query[0].transpose(0, 1),
        k_pages,
        v_pages,
        batch.block_tables,
        batch.cu_queries,
        batch.starts,
        max_queries=batch.max_queries,
        scale=facts.scale,
        window=facts.window,
        softcap=facts.softcap,
        sinks=facts.sinks,
    )
    return out.unsqueeze(0)


# Compiled code cannot hold a batch: it would depend on the numbers of rows, pages and queries, and exist for each.
_current: ContextVar[LayerCall] = ContextVar("specpipe_layer_call")


@contextmanager
def attending(call: LayerCall) -> Iterator[None]:
    """Inside, `attend_current` is this call's attention."""
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)


# The pages are no argument either: a compiler that knew of the mutation might copy them. Nothing else in a layer reads
# them.
@torch.library.custom_op(
    "specpipe::attend", mutates_args=(), schema="(Tensor query, Tensor key, Tensor value) -> Tensor"
)
def attend_current(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """As `attend`, one opaque operation to torch.compile."""
    return attend(_current.get(), query, key, value)


@attend_current.register_fake
def _(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
