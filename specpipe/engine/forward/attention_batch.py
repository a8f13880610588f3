"""Inputs of attention beside queries, keys and values: constants of a module and the layout of a packed batch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from specpipe_kernels import PrefixArgs


class AttentionSpec(NamedTuple):
    """Constants of one attention module, as its model passes them."""

    heads: int
    """KV heads."""
    key_dim: int
    """Head size of keys."""
    value_dim: int
    """Head size of values."""
    scale: float
    """Factor of q · k."""
    window: int | None
    """Sliding window in tokens; None: unlimited."""
    softcap: float | None
    """Logits become softcap * tanh(logits / softcap); None: unchanged."""
    sinks: Tensor | None
    """[Hq] logits of attention sinks, one for each query head; None without sinks."""

    @property
    def plain(self) -> bool:
        """True without softcap and sinks."""
        return self.softcap is None and self.sinks is None


class AttentionBatch(NamedTuple):
    """Positions of the queries of one packed forward and the pages that they read and write.

    Shapes: N tokens, R rows, W pages a row.
    """

    block_tables: Tensor
    """[R, W] int32; unused entries are 0, the trash page."""
    cu_queries: Tensor
    """[R + 1] int32: the tokens of row r are cu_queries[r]:cu_queries[r + 1]."""
    starts: Tensor
    """[R] int64: absolute position of a row's first query."""
    write_index: Tensor
    """[N] int64: flat KV position (page * page_size + offset) that each token's key and value are written to."""
    max_queries: int
    """Maximum tokens of a row, known to the host."""
    prefix: PrefixArgs | None = None
    """Rows that share their first pages, read once a group; None where each row reads its own."""
    kv_only: bool = False
    """True if keys and values alone are needed: the last layer may stop once it has stored them."""
