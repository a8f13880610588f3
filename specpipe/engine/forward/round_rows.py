"""Forwards within a round: a few tokens of each batch row, committed ones and drafts, through one model.

Shapes: B batch rows, K draft tokens a row, T tokens fed of each row, V outputs of the head, W pages a row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specpipe.engine.forward.model_runner import ModelRunner
from specpipe_kernels import Penalties, PrefixArgs, SamplingTensors, SlotTensors, feed_rows


class RowLayout(NamedTuple):
    """Positions of B rows of T tokens each in a packed forward."""

    cu_queries: Tensor
    """[B + 1] int32: the tokens of row b are cu_queries[b]:cu_queries[b + 1]."""
    last: Tensor
    """[B] int64: index of each row's last token."""


class RowLayouts:
    """Layouts by (B, T), made once and kept.

    A captured graph reads these tensors at their addresses: whoever captures a round owns the object and keeps it as
    long as the graph.
    """

    def __init__(self) -> None:
        self._layouts: dict[tuple[int, int], RowLayout] = {}

    def get(self, rows: int, width: int, device: torch.device) -> RowLayout:
        """Returns the layout of `rows` rows (B) of `width` tokens each (T)."""
        if (rows, width) not in self._layouts:
            with torch.inference_mode(False):
                cu_queries = torch.arange(0, rows * width + 1, width, dtype=torch.int32, device=device)
                last = torch.arange(width - 1, rows * width, width, device=device)
            self._layouts[rows, width] = RowLayout(cu_queries, last)
        return self._layouts[rows, width]


class RoundRows(NamedTuple):
    """The batch rows of a round, read once at its start."""

    state: SlotTensors
    slots: Tensor
    """[B] int64."""
    lengths: Tensor
    """[B] int64: tokens committed."""
    max_drafts: Tensor
    """[B] int32: draft tokens that fit before the row's limit, at most K."""
    max_model_drafts: Tensor
    """[B] int32: as max_drafts, but 0 where the draft model's KV is behind: it attends to nothing unwritten."""
    block_tables: Tensor
    """[B, W] int32."""
    sampling: SamplingTensors
    below_min_tokens: bool
    """True if any row may have fewer than its min_tokens."""
    penalties: Penalties | None
    """None if no row has any."""
    prefix: PrefixArgs | None
    """Batch rows that share their first pages; None if the round has no groups."""
    layouts: RowLayouts
    """Layouts of the round's forwards, owned by whoever runs or captures the round."""


class RowLogits(NamedTuple):
    """The result of `forward_rows`."""

    logits: Tensor
    """[B, V] of each row's last token, or [B * T, V] of all tokens."""
    next_positions: Tensor
    """[B] int64: position after each row's last token."""


def forward_rows(
    runner: ModelRunner,
    rows: RoundRows,
    drafts: Tensor | None,
    *,
    shift: int,
    width: int,
    last_only: bool,
    out: Tensor | None = None,
) -> RowLogits:
    """Feeds `width` tokens (T) of each row from position lengths + shift on.

    drafts [B, K] int64: they follow the committed tokens. last_only: keep the logits of each row's last token alone.
    out: where the logits go, as in `ModelRunner.forward`.
    """
    fed = feed_rows(
        rows.state, rows.slots, rows.lengths, drafts, shift=shift, width=width, last=runner.context_length - 1
    )
    layout = rows.layouts.get(rows.slots.shape[0], width, rows.slots.device)
    logits = runner.forward(
        fed.tokens,
        fed.positions,
        block_tables=rows.block_tables,
        cu_queries=layout.cu_queries,
        starts=fed.starts,
        max_queries=width,
        keep=layout.last if last_only and width > 1 else 0,
        prefix=rows.prefix,
        out=out,
    )
    return RowLogits(logits, fed.next)
