"""Attention of one layer over its KV pages: stores keys and values, then attends. Also callable from compiled code.

Shapes: N tokens, Hq/Hkv query/KV heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor, nn

from specpipe.engine.forward.attention_batch import AttentionBatch, AttentionSpec
from specpipe.engine.forward.kv_pages import pages_of
from specpipe_kernels import paged_attention, store_kv


class LayerCall(NamedTuple):
    """Inputs of one layer's attention beside queries, keys and values."""

    module: nn.Module
    """The attention module, which owns the KV pages."""
    spec: AttentionSpec
    batch: AttentionBatch


def attend(call: LayerCall, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Writes keys and values to the module's pages and returns the attention output [1, N, Hq, D].

    query [1, Hq, N, D]; key and value [1, Hkv, N, D].
    """
    pages, spec, batch = pages_of(call.module), call.spec, call.batch
    store_kv(key[0].transpose(0, 1), value[0].transpose(0, 1), pages.k, pages.v, batch.write_index, pages.scales)
    out = paged_attention(
        query[0].transpose(0, 1),
        pages.k,
        pages.v,
        batch.block_tables,
        batch.cu_queries,
        batch.starts,
        max_queries=batch.max_queries,
        scale=spec.scale,
        window=spec.window,
        softcap=spec.softcap,
        sinks=spec.sinks,
        prefix=batch.prefix,
        scales=pages.scales,
    )
    return out.unsqueeze(0)


# A context variable, for torch.compile has no way to pass the call: as arguments, its tensors' shapes and its numbers
# would be guarded, and code would be compiled for each number of rows, pages and queries.
_current_call: ContextVar[LayerCall] = ContextVar("specpipe_layer_call")


@contextmanager
def layer_call(call: LayerCall) -> Iterator[None]:
    """Makes this the call of `attend_compiled` until the `with` block ends; set around one layer by its wrapper."""
    token = _current_call.set(call)
    try:
        yield
    finally:
        _current_call.reset(token)


# The pages are no argument either: a compiler that sees the mutation may copy them. Nothing else in a layer reads them.
@torch.library.custom_op(
    "specpipe::attend", mutates_args=(), schema="(Tensor query, Tensor key, Tensor value) -> Tensor"
)
def attend_compiled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Calls `attend` with the current layer call; one opaque operation to torch.compile."""
    return attend(_current_call.get(), query, key, value)


@attend_compiled.register_fake
def _(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
