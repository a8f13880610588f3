"""Counts of one step for each shard: acceptance, emitted tokens, prefill and preemptions.

Shapes: B rows, K positions.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specpipe.core import DRAFT_SOURCES, AcceptanceCounts, ShardRound

Ints = NDArray[np.integer[Any]]


def count_acceptance(proposed: Ints, accepted: Ints) -> AcceptanceCounts:
    """Returns the acceptance counts of one round. proposed, accepted [B]: draft tokens of each verified row."""
    k = int(proposed.max(initial=0))
    if not k:
        return AcceptanceCounts()
    table = np.bincount(proposed * (k + 1) + accepted, minlength=(k + 1) ** 2).reshape(k + 1, k + 1)
    at_least = table[::-1, ::-1].cumsum(0).cumsum(1)[::-1, ::-1].tolist()  # rows by proposed and accepted tokens
    offered = tuple(at_least[i + 1][0] for i in range(k))
    kept = tuple(at_least[i + 1][i + 1] for i in range(k))
    bonus = int(table.diagonal()[1:].sum())
    return AcceptanceCounts(
        drafts=offered[0],
        draft_tokens=sum(offered),
        accepted_tokens=sum(kept),
        recovered_tokens=offered[0] - bonus,
        bonus_tokens=bonus,
        proposed_per_position=offered,
        reached_per_position=tuple(at_least[i + 1][i] for i in range(k)),
        accepted_per_position=kept,
    )


class ShardTally:
    """Running counts of one step for one shard."""

    def __init__(self) -> None:
        self.proposed: defaultdict[int, list[int]] = defaultdict(list)
        """Draft tokens of each row, by `source_code`."""
        self.accepted: defaultdict[int, list[int]] = defaultdict(list)
        self.gaps: list[float] = []
        self.rows = self.plain = self.emitted = self.emitted_accepted = self.prefill_tokens = self.scored = (
            self.preemptions
        ) = 0
        self.uncompiled_forwards = 0

    def add_row(
        self, *, source: int, proposed: int, accepted: int, kept: int, gap: float | None, speculates: bool
    ) -> None:
        """Adds one row's part of a round.

        source: `source_code` of the drafts, 0 without any; proposed, accepted: draft tokens verified and accepted;
        kept: tokens that became output; gap: seconds since the row's last emission, None for its first; speculates:
        the row may have drafts.
        """
        self.plain += not speculates
        self.rows += 1
        self.proposed[source].append(proposed)
        self.accepted[source].append(accepted)
        self.emitted += kept
        self.emitted_accepted += min(accepted, kept)
        if gap is not None:
            self.gaps.append(gap)

    def freeze(self) -> ShardRound:
        """Returns the counts as an immutable report."""
        by_source = {
            source: count_acceptance(np.array(self.proposed[code]), np.array(self.accepted[code]))
            for code, source in enumerate(DRAFT_SOURCES, start=1)
            if code in self.proposed
        }
        return ShardRound(
            rows=self.rows,
            plain_rows=self.plain,
            prefill_tokens=self.prefill_tokens,
            scored_tokens=self.scored,
            preemptions=self.preemptions,
            uncompiled_forwards=self.uncompiled_forwards,
            verified=sum(by_source.values(), AcceptanceCounts()),
            by_source=by_source,
            emitted_tokens=self.emitted,
            emitted_accepted_tokens=self.emitted_accepted,
            gaps_s=tuple(self.gaps),
        )
