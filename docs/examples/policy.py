"""A policy: speculate only where the slots are not full, and the less the fuller they are."""

from dataclasses import dataclass

from specpipe.core import ProposerName, SpeculationPlan
from specpipe.speculation.policy import PolicyInputs


@dataclass(frozen=True, kw_only=True, slots=True)
class Taper:
    """K falls from `k` with one row running to 0 with every slot taken."""

    k: int
    proposer: ProposerName

    @property
    def max_k(self) -> int:
        """The engine reserves memory for rounds so wide."""
        return self.k

    def plan(self, inputs: PolicyInputs) -> SpeculationPlan:
        """Sees the past alone: a K that depended on the token just drawn would bias the output."""
        slots = inputs.slots
        return SpeculationPlan(
            ks=tuple(round(self.k * (slots - n) / slots) for n in range(slots + 1)),  # by rows that run, from 0
            proposer=self.proposer,
            queue_depth=inputs.queue_depth,
            reason=f"taper: K={self.k} with free slots, 0 with {slots} rows",
        )
