"""Example of a policy: the more slots are taken, the fewer tokens are drafted."""

from dataclasses import dataclass

from specpipe.core import ProposerName, SpeculationPlan
from specpipe.speculation.estimates.policy_inputs import PolicyInputs


@dataclass(frozen=True, kw_only=True, slots=True)
class Taper:
    """K falls from `k` with one row running to 0 with every slot taken."""

    k: int
    proposer: ProposerName

    @property
    def max_k(self) -> int:
        """Largest K of any plan; the engine reserves memory for it."""
        return self.k

    def plan(self, inputs: PolicyInputs) -> SpeculationPlan:
        """Returns K for each number of running rows, from past measurements only, so that outputs are not biased."""
        slots = inputs.slots
        return SpeculationPlan(
            ks=tuple(round(self.k * (slots - n) / slots) for n in range(slots + 1)),  # index: running rows
            proposer=self.proposer,
            queue_depth=inputs.queue_depth,
            reason=f"taper: K={self.k} with free slots, 0 with {slots} rows",
        )
