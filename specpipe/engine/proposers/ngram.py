"""Drafts from the row's own text (prompt lookup).

Shapes: B batch rows, K draft tokens a row.
"""

from __future__ import annotations

from specpipe.core import EngineConfig
from specpipe.engine.forward.round_rows import RoundRows
from specpipe.engine.proposers.proposer import Proposal
from specpipe.engine.state.slot_state import SlotState
from specpipe_kernels import Followed, ReferenceTensors, follow

ANY_TOKEN = 2**31 - 1
"""Above every token id: those of the row's own text are the target's."""


class NGramProposer:
    """Prompt lookup: proposes what followed the latest earlier occurrence of the row's last n tokens, longest n first.

    Saxena, "Prompt Lookup Decoding" (2023). Proposals are one-hot: q(x) = 1.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config

    def propose(self, state: SlotState, rows: RoundRows, k: int) -> Proposal:
        """Returns up to k draft tokens a row; none for a row without a match."""
        found = self.look_up(state, rows, k)
        return Proposal(found.tokens, found.num_tokens)

    def look_up(self, state: SlotState, rows: RoundRows, k: int) -> Followed:
        """Returns up to k draft tokens a row, and the length of the match that they follow."""
        # The block table covers every token in use: on a CPU no more are compared.
        own = state.tokens[:, : rows.block_tables.shape[1] * self._config.page_size]
        return follow(
            state.tokens,
            ReferenceTensors(own, state.length, None),
            rows.slots,
            rows.lengths,
            rows.max_drafts,
            k=k,
            vocab_size=ANY_TOKEN,
            min_match=self._config.ngram_min,
            max_match=self._config.ngram_max,
        )
