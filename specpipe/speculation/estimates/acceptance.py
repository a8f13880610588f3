"""Acceptance by draft position: fading means of one proposer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specpipe.arrays import Array
from specpipe.core import AcceptanceCounts, ProposerName
from specpipe.speculation.estimates.round_costs import SURPRISE

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
    all drafts instead would give too low a value when K varies. Position 0 is reached by every row that may have
    drafts: a row for which no n-gram is found accepts none.
    """

    rates: tuple[float, ...] = (PRIOR,)
    """Probability that a position is accepted, given that it is reached; the last holds for all later positions."""
    weights: tuple[float, ...] = (MIN_WEIGHT,)

    @classmethod
    def prior(cls, proposer: ProposerName) -> Acceptance:
        """Returns the acceptance before any draft."""
        return cls(rates=(FOLLOWED_PRIOR if proposer in ("replay", "joined") else PRIOR,))

    def with_counts(self, counts: AcceptanceCounts, *, keep: float) -> Acceptance:
        """Returns the means with the weights multiplied by `keep` (0 to 1) and `counts` added.

        Rows of another job accept other drafts. So weights are cut until the counts are within SURPRISE standard
        deviations of the means.
        """
        size = max(len(self.rates), len(counts.reached_per_position))
        means = np.array(self.conditional(size))
        weights = np.array(_padded(self.faded(keep).weights, size, MIN_WEIGHT))
        reached = np.array(_padded(counts.reached_per_position, size, 0.0))
        accepted = np.array(_padded(counts.accepted_per_position, size, 0.0))
        variance = reached * means * (1 - means) * (1 + reached / weights)
        surprise = ((accepted - reached * means) / SURPRISE) ** 2
        doubted = surprise > variance
        weights[doubted] = np.maximum(1.0, (weights * variance)[doubted] / surprise[doubted])
        rates = (weights * means + accepted) / (weights + reached)
        return Acceptance(rates=tuple(rates.tolist()), weights=tuple((weights + reached).tolist()))

    def faded(self, keep: float) -> Acceptance:
        """Returns the same means with the weights multiplied by `keep`."""
        return replace(self, weights=tuple(max(MIN_WEIGHT, keep * weight) for weight in self.weights))

    def conditional(self, k: int) -> tuple[float, ...]:
        """Returns k probabilities: position i is accepted, given that it is reached."""
        return _padded(self.rates, k, self.rates[-1])

    def tokens(self, max_k: int, *, hope: float = 0.0) -> Array:
        """Returns [max_k + 1]: expected tokens of a row's round of K drafts, 1 + Σ_i Π_{j ≤ i} c_j.

        hope: acceptance that replaces a lower mean, in part: as much as `MIN_WEIGHT` is of the position's weight.
        """
        rates, weights = np.array(self.conditional(max_k)), np.array(_padded(self.weights, max_k, MIN_WEIGHT))
        rates += np.maximum(hope - rates, 0.0) * np.minimum(1.0, MIN_WEIGHT / weights)
        return np.cumsum([1.0, *np.cumprod(rates)])


def _padded(values: Sequence[float], size: int, fill: float) -> tuple[float, ...]:
    """Returns the first `size` values, with `fill` for missing ones."""
    return (*values[:size], *[fill] * (size - len(values)))
