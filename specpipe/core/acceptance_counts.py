"""Counts of draft tokens that were proposed, reached and accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add


def _add(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    """Returns the sum by position; a missing position counts as 0."""
    if len(left) < len(right):
        left, right = right, left
    return (*map(add, left, right), *left[len(right) :])


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptanceCounts:
    """Sums over rounds of rows. A draft is one row's round with K_i > 0; positions i count from 0.

    acceptance_rate = accepted / draft_tokens; acceptance_length = 1 + accepted / drafts;
    conditional_i = accepted_i / reached_i; unconditional_i = accepted_i / proposed_i.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    recovered_tokens: int = 0
    """Tokens drawn from the residual distribution after a rejection."""
    bonus_tokens: int = 0
    """Tokens drawn from the target after every draft token of the round was accepted. Plain decoding draws none."""
    proposed_per_position: tuple[int, ...] = ()
    """Drafts with K_i > i."""
    reached_per_position: tuple[int, ...] = ()
    """Drafts with K_i > i whose first i tokens were all accepted."""
    accepted_per_position: tuple[int, ...] = ()
    """Drafts whose first i + 1 tokens were all accepted."""

    def __add__(self, other: AcceptanceCounts) -> AcceptanceCounts:
        if not other.drafts:  # most rounds of a run without speculation
            return self
        if not self.drafts:
            return other
        return AcceptanceCounts(
            drafts=self.drafts + other.drafts,
            draft_tokens=self.draft_tokens + other.draft_tokens,
            accepted_tokens=self.accepted_tokens + other.accepted_tokens,
            recovered_tokens=self.recovered_tokens + other.recovered_tokens,
            bonus_tokens=self.bonus_tokens + other.bonus_tokens,
            proposed_per_position=_add(self.proposed_per_position, other.proposed_per_position),
            reached_per_position=_add(self.reached_per_position, other.reached_per_position),
            accepted_per_position=_add(self.accepted_per_position, other.accepted_per_position),
        )

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of draft tokens; 0.0 when nothing was drafted."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def acceptance_length(self) -> float:
        """Mean tokens that a draft yields, the recovered or bonus token included; 1.0 when nothing was drafted."""
        return 1.0 + (self.accepted_tokens / self.drafts if self.drafts else 0.0)

    @property
    def conditional(self) -> tuple[float, ...]:
        """Acceptance rate by position, given that all earlier positions were accepted."""
        pairs = zip(self.accepted_per_position, self.reached_per_position, strict=True)
        return tuple(a / r if r else 0.0 for a, r in pairs)

    @property
    def unconditional(self) -> tuple[float, ...]:
        """Acceptance rate by position, over all drafts that have this position."""
        pairs = zip(self.accepted_per_position, self.proposed_per_position, strict=True)
        return tuple(a / n if n else 0.0 for a, n in pairs)
