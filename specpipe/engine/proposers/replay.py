"""Drafts from earlier answers: the row's own, else the corpus or the row's own text, where the match is longer.

Shapes: B batch rows, K draft tokens a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe.core import EngineConfig
from specpipe.engine.forward.round_rows import RoundRows
from specpipe.engine.proposers.corpus import Corpus
from specpipe.engine.proposers.ngram import NGramProposer
from specpipe.engine.proposers.proposer import Proposal, source_code
from specpipe.engine.state.slot_state import SlotState
from specpipe_kernels import MAX_MATCH, Followed, follow

REFERENCE, CORPUS, NGRAM = source_code("reference"), source_code("corpus"), source_code("ngram")
OWN_MATCH = 1
"""Tokens that a place in the row's earlier answer matches at least: 2.67 tokens a round where the draft's answers stand
for yesterday's; 2.60 with 2 (embedded pair, greedy, K = 15)."""


def follow_texts(
    state: SlotState,
    rows: RoundRows,
    k: int,
    *,
    vocab_size: int,
    corpus: Corpus | None,
    own_match: int = OWN_MATCH,
    min_match: int = 1,
) -> tuple[Followed, Tensor]:
    """Returns drafts from each row's earlier answer or the corpus, whichever match is longer, and their sources.

    Sources are [B] int32. Behind a match of MAX_MATCH tokens in a row's own answer the corpus is not searched.

    vocab_size: ids beyond it are never proposed; own_match, min_match: tokens that a place in the row's answer and in
    the corpus matches at least. The source of a row without such drafts is that of the corpus.
    """
    assert state.references is not None, "earlier answers without replay_k"
    own = follow(
        state.tokens,
        state.references,
        rows.slots,
        rows.lengths,
        rows.max_drafts,
        k=k,
        vocab_size=vocab_size,
        min_match=own_match,
    )
    follows = own.num_tokens > 0
    if corpus is None:
        return own, torch.where(follows, REFERENCE, CORPUS).to(torch.int32)
    searched = torch.where(follows & (own.matched >= MAX_MATCH), 0, rows.max_drafts)
    others = corpus.lookup(rows, searched, k, min_match=min_match)
    follows &= (own.matched >= others.matched) | (others.num_tokens == 0)
    return (
        Followed(
            torch.where(follows[:, None], own.tokens, others.tokens),
            torch.where(follows, own.num_tokens, others.num_tokens),
            torch.where(follows, own.matched, others.matched),
        ),
        torch.where(follows, REFERENCE, CORPUS).to(torch.int32),
    )


class ReplayProposer:
    """Follows the row's earlier answer (`Request.reference`), the corpus or n-grams, whichever match is longest.

    After a departure the longest suffix of the row that the answer has too gives the place to go on from.
    """

    def __init__(self, config: EngineConfig, *, vocab_size: int, corpus: Corpus | None) -> None:
        """vocab_size: the target's; an answer's ids beyond it are never proposed."""
        self._ngram, self._vocab_size, self._corpus = NGramProposer(config), vocab_size, corpus

    def propose(self, state: SlotState, rows: RoundRows, k: int) -> Proposal:
        """Returns up to k draft tokens a row; none for a row without a match."""
        found, sources = follow_texts(state, rows, k, vocab_size=self._vocab_size, corpus=self._corpus)
        own = self._ngram.look_up(state, rows, k)
        longer = (found.matched + (sources == REFERENCE) > own.matched) | (own.num_tokens == 0)
        follows = (found.num_tokens > 0) & longer
        return Proposal(
            torch.where(follows[:, None], found.tokens, own.tokens),
            torch.where(follows, found.num_tokens, own.num_tokens),
            sources=torch.where(follows, sources, NGRAM),
        )
