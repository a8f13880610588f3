"""The policy without speculation: plain decoding."""

from __future__ import annotations

from dataclasses import dataclass

from specpipe.core import SpeculationPlan
from specpipe.speculation.estimates.policy_inputs import PolicyInputs


@dataclass(frozen=True, slots=True)
class Off:
    """K = 0 at every occupancy; the draft is neither run nor prefilled."""

    max_k: int = 0

    def plan(self, inputs: PolicyInputs) -> SpeculationPlan:
        """Returns K = 0 for every occupancy."""
        return SpeculationPlan(ks=(0,), proposer="none", queue_depth=inputs.queue_depth, reason="off")
