"""The queue-threshold policy: no speculation while more than `threshold` rows run."""

from __future__ import annotations

from dataclasses import dataclass

from specpipe.core import ProposerName, SpeculationPlan
from specpipe.speculation.estimates.policy_inputs import PolicyInputs


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueThreshold:
    """K = k while at most `threshold` rows run, 0 while more do."""

    k: int
    threshold: int
    proposer: ProposerName

    @property
    def max_k(self) -> int:
        """Widest round: k."""
        return self.k

    def plan(self, inputs: PolicyInputs) -> SpeculationPlan:
        """Returns K = k up to the threshold and 0 above it."""
        speculating = (self.k,) * (min(self.threshold, inputs.slots) + 1)  # occupancies 0 … threshold
        plain = (0,) if self.threshold < inputs.slots else ()
        return SpeculationPlan(
            ks=speculating + plain,
            proposer=self.proposer,
            queue_depth=inputs.queue_depth,
            reason=f"queue_threshold: K={self.k} while at most {self.threshold} rows run, else 0",
        )
