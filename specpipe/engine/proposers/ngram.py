"""Drafts from the row's own text (prompt lookup).

Shapes: B batch rows, K draft tokens a row, C tokens of a row that its block table covers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe.core import EngineConfig
from specpipe.engine.forward.round_rows import RoundRows
from specpipe.engine.proposers.proposer import Proposal
from specpipe.engine.state.slot_state import NO_TOKEN, SlotState
from specpipe_kernels import Followed


class NGramProposer:
    """Prompt lookup: proposes what followed the latest earlier occurrence of the row's last n tokens, longest n first.

    Saxena, "Prompt Lookup Decoding" (2023). Proposals are one-hot: q(x) = 1.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._sizes = range(config.ngram_max, config.ngram_min - 1, -1)
        self._page_size = config.page_size

    def propose(self, state: SlotState, rows: RoundRows, k: int) -> Proposal:
        """Returns up to k draft tokens a row; none for a row without a match."""
        found = self.look_up(state, rows, k)
        return Proposal(found.tokens, found.num_tokens)

    def look_up(self, state: SlotState, rows: RoundRows, k: int) -> Followed:
        """Returns up to k draft tokens a row, and the length of the match that they follow."""
        width = rows.block_tables.shape[1] * self._page_size  # C: the block table covers every token in use
        tokens = state.tokens[rows.slots, :width]
        columns = torch.arange(width, device=tokens.device)
        follows, matched = torch.zeros_like(rows.lengths), torch.zeros_like(rows.max_drafts)
        for n in self._sizes:
            match = self._latest_match(tokens, columns, rows.lengths, n)
            matched = torch.where((follows == 0) & (match > 0), n, matched)
            follows = torch.where(follows > 0, follows, match)
        sources = follows[:, None] + torch.arange(k, device=tokens.device)
        available = torch.where(follows > 0, rows.lengths - follows, 0)
        num_tokens = torch.minimum(rows.max_drafts, available.clamp(max=k).to(torch.int32))
        drafts = tokens.gather(1, sources.clamp(max=width - 1))
        within = torch.arange(k, device=tokens.device) < num_tokens[:, None]
        return Followed(torch.where(within, drafts, NO_TOKEN), num_tokens, matched)

    @staticmethod
    def _latest_match(tokens: Tensor, columns: Tensor, lengths: Tensor, n: int) -> Tensor:
        """Returns [B] int64: the position after the latest earlier match of the last n tokens; 0 without a match.

        tokens [B, C] int64; columns [C]: 0, 1, …; lengths [B] int64.
        """
        matches = columns < (lengths - n)[:, None]
        for i in range(n):
            wanted = tokens.gather(1, (lengths[:, None] - n + i).clamp(min=0))
            shifted = tokens.roll(-i, dims=1)
            matches &= shifted == wanted
        start = torch.where(matches, columns, -1).amax(dim=1)
        return torch.where((start >= 0) & (lengths > n), start + n, 0)
