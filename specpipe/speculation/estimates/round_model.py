"""Model of a round's seconds: a sum of named terms, each the round's work of one kind times a fitted price.

    seconds = Σ price(term) · work(term)

Work of another kind (a further proposer) is another line of TERMS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from specpipe.arrays import Array
from specpipe.core import ProposerName

Amount = float | Array
WIDE = 192.0
"""Verified tokens from which arithmetic bounds a round, instead of memory, on an H200."""


class RoundWork(NamedTuple):
    """Features of a round. `k`, `rows` and `kv_tokens` may be arrays of one shape."""

    proposer: ProposerName
    k: Amount
    """Draft tokens of a row."""
    rows: Amount
    kv_tokens: Amount
    """Tokens whose KV the target reads, summed over the rows."""
    expert_share: float = 0.0
    """Share of the target's experts that one token is routed to; 0 for a dense model."""

    @property
    def tokens(self) -> Amount:
        """Tokens that the target verifies."""
        return self.rows * (self.k + 1)

    def drafted(self, *proposers: ProposerName) -> Amount:
        """Returns K if the round's proposer is one of these, else 0."""
        return self.k * float(self.proposer in proposers)

    def ran(self, *proposers: ProposerName) -> Amount:
        """Returns 1 if one of these proposers drafts, whatever K is, else 0."""
        return np.minimum(self.drafted(*proposers), 1.0)


TERMS: dict[str, Callable[[RoundWork], Amount]] = {
    "weights": lambda work: 1.0,  # reads of the target's weights, launches
    "tokens": lambda work: work.tokens,  # arithmetic of the verified tokens
    "few": lambda work: np.sqrt(work.tokens),  # on a CPU, further tokens cost less with many than with few
    "wide": lambda work: np.maximum(work.tokens - WIDE, 0.0),  # the same where it bounds the round
    "kv": lambda work: work.kv_tokens,
    "experts": lambda work: 1.0 - (1.0 - work.expert_share) ** work.tokens,  # reads of distinct experts, as a share
    "draft": lambda work: work.drafted("draft"),  # reads of the draft model's weights, once a draft token
    "draft_tokens": lambda work: work.drafted("draft") * work.rows,  # arithmetic of the draft tokens
    "ngram": lambda work: work.ran("ngram", "replay"),  # one look-up
    "ngram_rows": lambda work: work.ran("ngram", "replay") * work.rows,
    "joined": lambda work: work.ran("joined"),  # the draft model's steps, as many whatever K
    "joined_rows": lambda work: work.ran("joined") * work.rows,
}
"""Work of a round by name of the term."""
FIRST_WORK = np.array([1.0, 384.0, 40.0, 192.0, 32768.0, 0.3, 2.0, 256.0, 30.0, 3840.0, 0.7, 85.0])
"""Work by term that takes the same time, before any measurement: that of 128 rows of 256 tokens with 2 drafts; 128
tokens, so that a fit begins with their number and not its root; 30 n-gram look-ups, which are cheap; a third of the
experts, which have most of a mixture's weights; 3 steps of the draft model in a joined round."""


def work_by_term(work: RoundWork) -> Array:
    """Returns [terms, ...] with the shape of the features."""
    out = np.empty((len(TERMS), *np.broadcast(work.k, work.rows).shape))
    for i, term in enumerate(TERMS.values()):
        out[i] = term(work)
    return out
