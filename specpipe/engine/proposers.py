"""Where draft tokens come from: a draft model, the row's own text, or nowhere.

Every proposer runs inside a round: device operations only, no host sync, shapes given by (B, K).
Shapes: B batch rows, K draft tokens a row, V vocabulary, C token capacity of a slot.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specpipe.core import EngineConfig, Method
from specpipe.engine.min_tokens import hold_open
from specpipe.engine.runner import ModelRunner
from specpipe.engine.slots import NO_TOKEN, SlotState
from specpipe_kernels import Penalties, Purpose, SamplingTensors, apply_penalties, sample


class RoundRows(NamedTuple):
    """The batch rows of a round, read once at its start."""

    slots: Tensor
    """[B] int64."""
    lengths: Tensor
    """[B] int64: tokens committed."""
    room: Tensor
    """[B] int32: draft tokens that still fit before the row's limit, at most K."""
    block_tables: Tensor
    """[B, W] int32."""
    sampling: SamplingTensors
    held: bool
    """Whether a row may have fewer than its min_tokens."""
    penalties: Penalties | None
    """None if no row has any."""

    def penalise(self, logits: Tensor, state: SlotState, drafts: Tensor, *, first: int = 0) -> None:
        """Edits logits [B * T, V] in place; row i of a request follows first + i of `drafts` [B, K]."""
        if self.penalties is not None:
            apply_penalties(
                logits, state.tokens, state.seen, self.slots, self.lengths, self.penalties, drafts, first=first
            )


class Proposal(NamedTuple):
    tokens: Tensor
    """[B, K] int64; -1 beyond a row's K_i."""
    num_tokens: Tensor
    """[B] int32: K_i."""
    logits: Tensor | None
    """[B, K, V] before temperature; None for one-hot proposals."""


class Proposer(Protocol):
    """Proposes up to `rows.room` tokens a row; never looks at anything but the committed prefix."""

    def propose(self, state: SlotState, rows: RoundRows, k: int) -> Proposal: ...

    def commit(self, state: SlotState, rows: RoundRows, k: int, accepted: Tensor) -> None:
        """Called after verification with the accepted tokens [B] of each row."""
        ...


class DraftModelProposer:
    """K steps of a draft model. The first feeds the last two tokens, so that a round in which all drafts were
    accepted (whose last draft has no draft KV) needs no special case."""

    def __init__(self, runner: ModelRunner, *, vocab_size: int, method: Method) -> None:
        """vocab_size: the target's; a draft token beyond it could never be accepted."""
        self.runner = runner
        self._vocab_size = vocab_size
        self._purpose = Purpose.INVARIANT if method == "invariant" else Purpose.DRAFT

    def propose(self, state: SlotState, rows: RoundRows, k: int) -> Proposal:
        # A row whose draft KV is behind attends to nothing unwritten: it does not speculate until caught up.
        caught_up = state.draft_valid[rows.slots] >= rows.lengths - 2
        num_tokens = torch.where(caught_up, rows.room, 0)
        last_two = (rows.lengths[:, None] + torch.arange(-2, 0, device=state.device)).clamp(min=0)
        fed = state.tokens[rows.slots[:, None], last_two]
        tokens = fed.new_full((len(fed), k), NO_TOKEN)
        logits: list[Tensor] = []
        for step in range(k):
            starts = rows.lengths - 2 if step == 0 else rows.lengths - 1 + step
            row_logits = self._step(fed, rows, starts)[:, : self._vocab_size]
            if rows.held:
                hold_open(row_logits, state, rows.slots, rows.lengths[:, None] + step)
            rows.penalise(row_logits, state, tokens, first=step)
            drawn = sample(row_logits, rows.sampling, rows.lengths + step, purpose=self._purpose, index=step).tokens
            tokens[:, step] = torch.where(step < num_tokens, drawn, NO_TOKEN)
            logits.append(row_logits)
            fed = drawn.clamp(min=0)[:, None]  # -1: the draft's logits were unusable
        wanted = None if rows.sampling.all_greedy else torch.stack(logits, dim=1)
        return Proposal(tokens, num_tokens, wanted)

    def _step(self, fed: Tensor, rows: RoundRows, starts: Tensor) -> Tensor:
        """fed [B, T] at positions starts.. → logits [B, V] of each row's last token."""
        count, width = fed.shape
        offsets = torch.arange(width, device=fed.device)
        return self.runner.forward(
            fed.flatten(),
            (starts[:, None] + offsets).flatten(),
            block_tables=rows.block_tables,
            cu_queries=torch.arange(0, count * width + 1, width, dtype=torch.int32, device=fed.device),
            starts=starts,
            max_queries=width,
            keep=torch.arange(width - 1, count * width, width, device=fed.device),
        )

    def commit(self, state: SlotState, rows: RoundRows, k: int, accepted: Tensor) -> None:
        # d_k was never fed, and what follows the first rejected draft is stale.
        valid = rows.lengths + accepted.clamp(max=k - 1)
        old = state.draft_valid[rows.slots]
        state.draft_valid[rows.slots] = torch.where(old >= rows.lengths - 2, valid, old)


class NGramProposer:
    """Prompt lookup: what followed the latest earlier occurrence of the row's last n tokens, longest n first.

    Saxena, "Prompt Lookup Decoding" (2023). Proposals are one-hot: q(x) = 1.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._sizes = range(config.ngram_max, config.ngram_min - 1, -1)
        self._page_size = config.page_size

    def propose(self, state: SlotState, rows: RoundRows, k: int) -> Proposal:
        width = rows.block_tables.shape[1] * self._page_size  # no more than the block table covers is in use
        tokens = state.tokens[rows.slots, :width]
        columns = torch.arange(width, device=tokens.device)
        follows = torch.zeros_like(rows.lengths)
        for n in self._sizes:
            found = self._latest(tokens, columns, rows.lengths, n)
            follows = torch.where(follows > 0, follows, found)
        taken = follows[:, None] + torch.arange(k, device=tokens.device)
        available = torch.where(follows > 0, rows.lengths - follows, 0)
        num_tokens = torch.minimum(rows.room, available.clamp(max=k).to(torch.int32))
        drawn = tokens.gather(1, taken.clamp(max=width - 1))
        within = torch.arange(k, device=tokens.device) < num_tokens[:, None]
        return Proposal(torch.where(within, drawn, NO_TOKEN), num_tokens, None)

    @staticmethod
    def _latest(tokens: Tensor, columns: Tensor, lengths: Tensor, n: int) -> Tensor:
        """→ [B]: where the text after the latest earlier match of the last n tokens starts; 0 without a match."""
        matches = columns < (lengths - n)[:, None]
        for i in range(n):
            wanted = tokens.gather(1, (lengths[:, None] - n + i).clamp(min=0))
            shifted = tokens.roll(-i, dims=1)
            matches &= shifted == wanted
        start = torch.where(matches, columns, -1).amax(dim=1)
        return torch.where((start >= 0) & (lengths > n), start + n, 0)

    def commit(self, state: SlotState, rows: RoundRows, k: int, accepted: Tensor) -> None:
        """The row's text is its only state."""
