"""The goodput policy: the K and proposer with the highest expected tokens per second. docs/speculation.md explains it.

Shapes: N slots, K widest round; arrays are indexed by draft tokens, 0 … K, and by rows running, 0 … N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specpipe.core import Exploration, ProposerName, SpeculationPlan, followed_ks
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.policies.exploration import WITH_DRAFT_MODEL, DraftRates, explore


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodput:
    """Chooses, for every occupancy, the K (0 included) and proposer with the most expected tokens per second."""

    k: int
    """Widest round of the draft model and of n-grams."""
    proposers: tuple[ProposerName, ...]
    """Proposers to choose from, without "none"."""
    replay_k: int = 0
    """Widest round of the proposers "replay" and "joined"."""

    @property
    def max_k(self) -> int:
        """Widest round of any proposer."""
        return max(self.k, self.replay_k)

    def plan(self, inputs: PolicyInputs) -> SpeculationPlan:
        """Returns the plan with the highest rates, and the trial to run beside it."""
        depth, n = inputs.queue_depth, inputs.running
        if not inputs.costs:
            return SpeculationPlan(ks=(0,), proposer="none", queue_depth=depth, reason="goodput: no round is timed yet")
        choices = [self._rates(name, inputs) for name in self.proposers]
        best = max(choices, key=lambda choice: float(choice.rate[:, n].max()))
        ks = best.rate.argmax(axis=0)
        trials = explore(best, int(ks[n]), choices, inputs)
        return SpeculationPlan(
            ks=tuple(ks.tolist()),
            proposer=best.proposer if ks.any() else "none",
            queue_depth=depth,
            reason=_reason(best, int(ks[n]), trials, inputs),
            explore=trials,
            tokens_per_s=tuple(best.rate.max(axis=0).tolist()),
        )

    def _rates(self, proposer: ProposerName, inputs: PolicyInputs) -> DraftRates:
        """Returns the expected tokens per second of a proposer. Tokens with drafts bear their share of its prefill."""
        follows = proposer in ("replay", "joined")
        max_k = self.replay_k if follows else self.k
        seconds = inputs.costs.grid(proposer=proposer, max_k=max_k, slots=inputs.slots, context=inputs.context)
        if follows:
            seconds[sorted({*range(1, max_k)} - {*followed_ks(max_k)})] = np.inf  # never chosen
        tokens = inputs.acceptance[proposer].tokens(max_k)
        tokens /= 1 + (tokens - 1) / (2 * max(1.0, inputs.output_tokens))  # the last round of a row exceeds its end
        token_s = seconds / (tokens[:, None] * np.maximum(np.arange(inputs.slots + 1.0), 1.0))
        if proposer in WITH_DRAFT_MODEL:
            token_s[1:] += inputs.prefill_s * inputs.missing_per_token
        return DraftRates(proposer, 1 / token_s, tokens, seconds)


def _reason(best: DraftRates, k: int, trials: Sequence[Exploration], inputs: PolicyInputs) -> str:
    """Returns the reason of a plan, as a sentence."""
    rates = best.rate[:, inputs.running].tolist()
    other = 0 if k else max(range(1, len(rates)), key=rates.__getitem__)
    accepted = " ".join(f"{rate:.2f}" for rate in inputs.acceptance[best.proposer].conditional(max(1, k)))
    tries = (f"; tries {_round(each.proposer, each.k)} in 1 of {each.every} rounds" for each in reversed(trials))
    return (
        f"goodput: {_round(best.proposer, k)} at {inputs.running} rows, expects {rates[k]:,.0f} tok/s, "
        f"{_round(best.proposer, other)} {rates[other]:,.0f} tok/s; {best.proposer} accepted {accepted} where reached"
        + "".join(tries)
    )


def _round(proposer: ProposerName, k: int) -> str:
    return f"{proposer} K={k}" if k else "plain"
