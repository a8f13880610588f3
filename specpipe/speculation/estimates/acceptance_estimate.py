"""Acceptance by draft position: decayed counts of one proposer, with a prior for positions that were rarely reached."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from specpipe.core import AcceptanceCounts

Counts = tuple[float, ...]
PRIOR = 0.7
"""Default conditional acceptance of a position, about that of small drafts on chat data."""
PRIOR_WEIGHT = 8.0
"""Weight of the prior, in observations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptanceEstimate:
    """Decayed counts of one proposer. Index i is the draft token at position i, from 0.

    A position counts only where it was reached, which means that all positions before it were accepted. Dividing by
    all drafts instead would give too low a value when K varies.
    """

    reached: tuple[float, ...] = ()
    accepted: tuple[float, ...] = ()
    row_rounds: float = 0.0
    """Rows in rounds with K > 0, summed over rounds."""
    drafts: float = 0.0
    """Row rounds that had a draft. The n-gram proposer may find none."""
    prior: tuple[float, ...] = (PRIOR,)
    """Prior conditional acceptance by position; the last entry holds for all later ones."""
    prior_coverage: float = 1.0
    """Prior share of row rounds that have a draft."""

    def with_counts(self, counts: AcceptanceCounts, *, row_rounds: float, keep: float) -> AcceptanceEstimate:
        """Returns the estimate with its own counts multiplied by `keep` (0 to 1) and `counts` added."""
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
        """Returns k probabilities: position i is accepted, given that it is reached.

        (accepted_i + w·c_i) / (reached_i + w) with w = PRIOR_WEIGHT. c_0 is the prior of position 0. For i > 0, c_i is
        the prior of position i with its odds multiplied by estimate over prior of position i - 1, as odds: neighbouring
        positions are correlated.
        """
        return _conditional(self.reached, self.accepted, self.prior, k)

    @property
    def coverage(self) -> float:
        """Share of row rounds with K > 0 that had a draft."""
        return (self.drafts + PRIOR_WEIGHT * self.prior_coverage) / (self.row_rounds + PRIOR_WEIGHT)

    @property
    def has_no_data(self) -> bool:
        """True if the proposer has neither counts nor a prior from other workers."""
        return not self.row_rounds and self.prior == (PRIOR,)

    def discounted(self, keep: float) -> AcceptanceEstimate:
        """Returns the same estimates with the weight of their counts multiplied by `keep`."""
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
        """Returns an estimate without counts whose prior is the present estimate."""
        known = max(1, len(self.reached))
        return AcceptanceEstimate(
            prior=self.conditional(known),
            prior_coverage=self.coverage,
        )


@lru_cache(maxsize=64)  # one plan needs the same values several times
def _conditional(reached: Counts, accepted: Counts, prior: Counts, k: int) -> Counts:
    """Cached body of `AcceptanceEstimate.conditional`."""
    out: list[float] = []
    shift = 1.0  # odds of the previous position over the odds of its prior
    for i in range(k):
        prior_odds = _odds(prior[min(i, len(prior) - 1)])
        base = prior_odds * shift / (1 + prior_odds * shift)
        seen, passed = (reached[i], accepted[i]) if i < len(reached) else (0.0, 0.0)
        out.append((passed + PRIOR_WEIGHT * base) / (seen + PRIOR_WEIGHT))
        shift = _odds(out[-1]) / prior_odds
    return tuple(out)


def _sum(old: tuple[float, ...], new: tuple[int, ...], keep: float, size: int) -> tuple[float, ...]:
    """Returns keep · old + new, [size]; missing entries count as 0."""
    left, right = (*old, *([0.0] * (size - len(old)))), (*new, *([0] * (size - len(new))))
    return tuple(keep * a + b for a, b in zip(left, right, strict=True))


def _odds(p: float) -> float:
    """p / (1 - p), with p limited to [1e-4, 1 - 1e-4]."""
    p = min(max(p, 1e-4), 1 - 1e-4)
    return p / (1 - p)
