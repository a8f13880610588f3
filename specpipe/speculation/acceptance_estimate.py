"""How often drafts are accepted: reached and accepted per position, decayed, with a prior for positions not reached."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from specpipe.core import AcceptanceCounts

Counts = tuple[float, ...]
PRIOR = 0.7
"""Conditional acceptance of a position before anything is known: of the order of small drafts on chat."""
PRIOR_WEIGHT = 8.0
"""Observations that the prior counts for, and each position for the one behind it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptanceEstimate:
    """Decayed counts of one proposer. Index i is the draft token at position i, from 0.

    A position counts only where it was reached, that is where all before it were accepted: with K varying, accepted
    over all drafts would be too low.
    """

    reached: tuple[float, ...] = ()
    accepted: tuple[float, ...] = ()
    row_rounds: float = 0.0
    """Rows that took part in rounds with K > 0."""
    drafts: float = 0.0
    """Those of them that had a draft: an n-gram may find nothing."""
    prior: tuple[float, ...] = (PRIOR,)
    """Conditional acceptance to lean on where little was seen; the last entry holds beyond."""
    prior_coverage: float = 1.0

    def with_counts(self, counts: AcceptanceCounts, *, row_rounds: float, keep: float) -> AcceptanceEstimate:
        """What was known, weighed with `keep` (0 to 1), and `counts`."""
        size = max(len(self.reached), len(counts.reached_per_position))
        return AcceptanceEstimate(
            reached=_sum(self.reached, counts.reached_per_position, keep, size),
            accepted=_sum(self.accepted, counts.accepted_per_position, keep, size),
            row_rounds=keep * self.row_rounds + max(row_rounds, counts.drafts),
            drafts=keep * self.drafts + counts.drafts,
            prior=self.prior,
            prior_coverage=self.prior_coverage,
        )

    def conditional(self, k: int) -> tuple[float, ...]:
        """→ k: probability that position i is accepted once it is reached.

        (accepted_i + w·c) / (reached_i + w), c being the prior for position 0, and later the prior or, where the
        position before was better known, that one's estimate: a position says something about the next.
        """
        return _conditional(self.reached, self.accepted, self.prior, k)

    @property
    def coverage(self) -> float:
        """Share of rows that had a draft in rounds with K > 0."""
        return (self.drafts + PRIOR_WEIGHT * self.prior_coverage) / (self.row_rounds + PRIOR_WEIGHT)

    @property
    def has_no_data(self) -> bool:
        """Whether nobody has shown anything of this proposer."""
        return not self.row_rounds and self.prior == (PRIOR,)

    def discounted(self, keep: float) -> AcceptanceEstimate:
        """The same estimates, which fewer observations stand for."""
        now = self.as_prior()
        reached = tuple(keep * count for count in self.reached)
        return replace(
            now,
            reached=reached,
            accepted=tuple(c * count for c, count in zip(now.prior, reached, strict=False)),
            row_rounds=keep * self.row_rounds,
            drafts=keep * self.row_rounds * self.coverage,
        )

    def as_prior(self) -> AcceptanceEstimate:
        """Nothing seen yet, and this as what to lean on."""
        known = max(1, len(self.reached))
        return AcceptanceEstimate(
            prior=self.conditional(known),
            prior_coverage=self.coverage,
        )


@lru_cache(maxsize=64)  # a plan asks for the same several times
def _conditional(reached: Counts, accepted: Counts, prior: Counts, k: int) -> Counts:
    out: list[float] = []
    shift = 1.0  # of the position before, from its prior, as a ratio of odds
    for i in range(k):
        leant_on = _odds(prior[min(i, len(prior) - 1)])
        base = leant_on * shift / (1 + leant_on * shift)
        seen, passed = (reached[i], accepted[i]) if i < len(reached) else (0.0, 0.0)
        out.append((passed + PRIOR_WEIGHT * base) / (seen + PRIOR_WEIGHT))
        shift = _odds(out[-1]) / leant_on
    return tuple(out)


def _sum(old: tuple[float, ...], new: tuple[int, ...], keep: float, size: int) -> tuple[float, ...]:
    left, right = (*old, *([0.0] * (size - len(old)))), (*new, *([0] * (size - len(new))))
    return tuple(keep * a + b for a, b in zip(left, right, strict=True))


def _odds(p: float) -> float:
    p = min(max(p, 1e-4), 1 - 1e-4)
    return p / (1 - p)
