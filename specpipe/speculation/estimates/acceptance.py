"""Acceptance by draft position: fading means of one proposer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specpipe.core import AcceptanceCounts, ProposerName

PRIOR = 0.7
"""Conditional acceptance of a position before any draft: about that of a small draft model on chat data."""
FOLLOWED_PRIOR = 0.95
"""The same for an earlier answer: it is tried first, and one round shows if the model still gives it."""
MIN_WEIGHT = 8.0
"""Smallest weight of a mean, in observations: a round of one or two rows must not decide."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Acceptance:
    """Means by draft position, from 0, and their weights in observations. Weights fade, means stay.

    A position counts only where it was reached, which means that all positions before it were accepted. Dividing by
    all drafts instead would give too low a value when K varies.
    """

    rates: tuple[float, ...] = (PRIOR,)
    """Probability that a position is accepted, given that it is reached; the last holds for all later positions."""
    weights: tuple[float, ...] = (MIN_WEIGHT,)
    coverage: float = 1.0
    """Share of row rounds that have a draft. The n-gram proposer may find none."""
    coverage_weight: float = MIN_WEIGHT

    @classmethod
    def prior(cls, proposer: ProposerName) -> Acceptance:
        """Returns the acceptance before any draft."""
        return cls(rates=(FOLLOWED_PRIOR if proposer in ("replay", "joined") else PRIOR,))

    def with_counts(self, counts: AcceptanceCounts, *, row_rounds: float, keep: float) -> Acceptance:
        """Returns the means with the weights multiplied by `keep` (0 to 1) and `counts` added.

        row_rounds: rows in rounds with K > 0, summed over rounds, rows without a draft included.
        """
        old, size = self.faded(keep), max(len(self.rates), len(counts.reached_per_position))
        reached = (*counts.reached_per_position, *([0] * size))
        accepted = (*counts.accepted_per_position, *([0] * size))
        before = (*old.weights, *([MIN_WEIGHT] * size))
        weights = tuple(before[i] + reached[i] for i in range(size))
        means = enumerate(old.conditional(size))
        return Acceptance(
            rates=tuple((before[i] * mean + accepted[i]) / weights[i] for i, mean in means),
            weights=weights,
            coverage=(old.coverage_weight * old.coverage + counts.drafts) / (old.coverage_weight + row_rounds),
            coverage_weight=old.coverage_weight + row_rounds,
        )

    def faded(self, keep: float) -> Acceptance:
        """Returns the same means with the weights multiplied by `keep`."""
        return replace(
            self,
            weights=tuple(max(MIN_WEIGHT, keep * weight) for weight in self.weights),
            coverage_weight=max(MIN_WEIGHT, keep * self.coverage_weight),
        )

    def conditional(self, k: int) -> tuple[float, ...]:
        """Returns k probabilities: position i is accepted, given that it is reached."""
        return tuple(self.rates[min(i, len(self.rates) - 1)] for i in range(k))

    def tokens(self, max_k: int, *, hope: float = 0.0, hope_weight: float = 0.0) -> list[float]:
        """Returns max_k + 1 values: expected tokens of a row's round of K drafts, 1 + coverage · Σ_i Π_{j ≤ i} c_j.

        hope: acceptance that `hope_weight` further observations of each position would have, where above its mean.
        """
        weights = (*self.weights, *([MIN_WEIGHT] * max_k))
        share = hope_weight / (hope_weight + self.coverage_weight - MIN_WEIGHT) if hope else 0.0
        product, out = self.coverage + share * (1 - self.coverage), [1.0]
        for rate, weight in zip(self.conditional(max_k), weights, strict=False):
            if hope > rate:
                rate += (hope - rate) * hope_weight / (hope_weight + weight - MIN_WEIGHT)
            product *= rate
            out.append(out[-1] + product)
        return out
