"""Drafts from earlier answers where a row follows one, from the draft model elsewhere.

Shapes: B batch rows, K draft tokens a row.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from specpipe.engine.forward.round_rows import RoundRows
from specpipe.engine.proposers.corpus import Corpus
from specpipe.engine.proposers.draft_model import DRAFT, DraftModelProposer
from specpipe.engine.proposers.proposer import Proposal
from specpipe.engine.proposers.replay import follow_texts
from specpipe.engine.state.slot_state import NO_TOKEN, SlotState

OWN_MATCH = 2
"""Tokens that a place in the row's earlier answer matches at least, unless it is the expected one."""
MIN_MATCH = 12
"""Tokens that a place in the corpus matches at least before its text goes before the draft model. Accepted tokens a
round of the embedded pair: 2.4 behind matches of 11 tokens, 3.3 behind 12, 6.1 behind 15; 2.8 by the draft at K = 4."""


class JoinedProposer:
    """A few steps of the draft model for all rows; rows that follow an earlier answer have up to K drafts from it.

    Rows without an answer of their own follow the corpus after a long match.

    The draft model is fed what a row follows, so that a row that departs within its steps has no KV to catch up.
    """

    def __init__(self, draft: DraftModelProposer, *, draft_k: int, vocab_size: int, corpus: Corpus | None) -> None:
        """draft_k: steps of the draft model, at most; vocab_size: ids that both models have."""
        self._draft, self._draft_k, self._vocab_size, self._corpus = draft, draft_k, vocab_size, corpus

    def propose(self, state: SlotState, rows: RoundRows, k: int) -> Proposal:
        """Returns up to k draft tokens for rows that follow a text, fewer for others; logits are [B, steps, V]."""
        found, sources = follow_texts(
            state,
            rows,
            k,
            vocab_size=self._vocab_size,
            corpus=self._corpus,
            own_match=OWN_MATCH,
            min_match=MIN_MATCH,
        )
        steps, follows = min(k, self._draft_k), found.num_tokens > 0
        drafted = self._draft.propose(state, rows, steps, given=found)
        own = torch.arange(len(rows.slots), device=rows.slots.device)
        return drafted._replace(
            tokens=torch.where(follows[:, None], found.tokens, pad(drafted.tokens, (0, k - steps), value=NO_TOKEN)),
            num_tokens=torch.where(follows, found.num_tokens, drafted.num_tokens.clamp(max=steps)),
            draft_rows=None if drafted.logits is None else torch.where(follows, -1, own),
            sources=torch.where(follows, sources, DRAFT),
        )
