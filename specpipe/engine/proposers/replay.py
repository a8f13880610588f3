"""Drafts from an earlier answer to the row's prompt, else from the row's own text.

Shapes: B batch rows, K draft tokens a row.
"""

from __future__ import annotations

import torch

from specpipe.core import EngineConfig
from specpipe.engine.forward.round_rows import RoundRows
from specpipe.engine.proposers.ngram import NGramProposer
from specpipe.engine.proposers.proposer import Proposal, source_code
from specpipe.engine.state.slot_state import SlotState
from specpipe_kernels import follow

REFERENCE, NGRAM = source_code("reference"), source_code("ngram")


class ReplayProposer:
    """Follows the row's earlier answer (`Request.reference`); n-grams where it has none or has departed from it.

    After a departure the longest suffix of the row that the answer has too gives the place to go on from.
    """

    def __init__(self, config: EngineConfig, *, vocab_size: int) -> None:
        """vocab_size: the target's; an answer's ids beyond it are never proposed."""
        self._ngram, self._vocab_size = NGramProposer(config), vocab_size

    def propose(self, state: SlotState, rows: RoundRows, k: int) -> Proposal:
        """Returns up to k draft tokens a row; none for a row without a match."""
        assert state.references is not None, "proposer replay without replay_k"
        found = follow(
            rows.state,
            state.references,
            rows.slots,
            rows.lengths,
            rows.max_drafts,
            k=k,
            vocab_size=self._vocab_size,
        )
        own, follows = self._ngram.propose(state, rows, k), found.num_tokens > 0
        return Proposal(
            torch.where(follows[:, None], found.tokens, own.tokens),
            torch.where(follows, found.num_tokens, own.num_tokens),
            sources=torch.where(follows, REFERENCE, NGRAM).to(torch.int32),
        )
