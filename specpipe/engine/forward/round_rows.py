"""Forwards within a round: a few tokens of each batch row, committed ones and drafts, through one model."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from specpipe.engine.forward.model_runner import ModelRunner
from specpipe_kernels import Penalties, SamplingTensors, SlotTensors, feed_rows


class RoundRows(NamedTuple):
    """The batch rows of a round, read once at its start."""

    state: SlotTensors
    slots: Tensor
    """[B] int64."""
    lengths: Tensor
    """[B] int64: tokens committed."""
    room: Tensor
    """[B] int32: draft tokens that still fit before the row's limit, at most K."""
    draft_room: Tensor
    """[B] int32: the same, but 0 where the draft model's KV is behind: it attends to nothing unwritten."""
    block_tables: Tensor
    """[B, W] int32."""
    sampling: SamplingTensors
    held: bool
    """Whether a row may have fewer than its min_tokens."""
    penalties: Penalties | None
    """None if no row has any."""


@lru_cache(maxsize=1024)
def _ends(rows: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """→ cu_queries [rows + 1] int32 and the index [rows] of each row's last token. Kept: graphs read them."""
    with torch.inference_mode(False):
        cu_queries = torch.arange(0, rows * width + 1, width, dtype=torch.int32, device=device)
        return cu_queries, torch.arange(width - 1, rows * width, width, device=device)


def forward_rows(
    runner: ModelRunner,
    rows: RoundRows,
    drafts: Tensor | None,
    *,
    shift: int,
    width: int,
    last_only: bool,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Feeds `width` tokens of each row from position lengths + shift on; drafts [B, K] follow the committed ones.

    Returns logits, [B, V] of each row's last token or [B * width, V] of all, and the positions [B] after the last one.
    out: where the logits go, as in `ModelRunner.forward`.
    """
    fed = feed_rows(
        rows.state, rows.slots, rows.lengths, drafts, shift=shift, width=width, last=runner.context_length - 1
    )
    cu_queries, last = _ends(rows.slots.shape[0], width, rows.slots.device)
    logits = runner.forward(
        fed.tokens,
        fed.positions,
        block_tables=rows.block_tables,
        cu_queries=cu_queries,
        starts=fed.starts,
        max_queries=width,
        keep=last if last_only and width > 1 else 0,
        out=out,
    )
    return logits, fed.next
