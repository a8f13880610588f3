"""The fixed policy: the same K at every load."""

from __future__ import annotations

from dataclasses import dataclass

from specpipe.core import ProposerName, SpeculationPlan
from specpipe.speculation.estimates.policy_inputs import PolicyInputs


@dataclass(frozen=True, kw_only=True, slots=True)
class Fixed:
    """K = k at every occupancy. With k = 0 the draft is neither run nor prefilled: policy `off`."""

    k: int = 0
    proposer: ProposerName = "none"

    @property
    def max_k(self) -> int:
        """Widest round: k."""
        return self.k

    def plan(self, inputs: PolicyInputs) -> SpeculationPlan:
        """Returns the same K for every occupancy."""
        reason = f"fixed: K={self.k}" if self.k else "off"
        return SpeculationPlan(ks=(self.k,), proposer=self.proposer, queue_depth=inputs.queue_depth, reason=reason)
