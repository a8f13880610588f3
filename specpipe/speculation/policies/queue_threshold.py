"""The queue-threshold policy: no speculation, for all rows or for new ones, while more than `threshold` rows run."""

from __future__ import annotations

from dataclasses import dataclass

from specpipe.core import AppliesTo, ProposerName, SpeculationPlan
from specpipe.speculation.estimates.policy_inputs import PolicyInputs


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueThreshold:
    """K = k while at most `threshold` rows run; while more do, K = 0 for all rows or for those that start then.

    "new" is the rule as vLLM first had it (pull request 4592, `speculative_disable_by_batch_size`).
    """

    k: int
    threshold: int
    proposer: ProposerName
    applies_to: AppliesTo = "batch"
    """Rows without drafts above the threshold: all ("batch"), or those that get a slot then ("new")."""

    @property
    def max_k(self) -> int:
        """Widest round: k."""
        return self.k

    def plan(self, inputs: PolicyInputs) -> SpeculationPlan:
        """Returns K = k up to the threshold and 0 above it, or K = k and the threshold as the limit of new rows."""
        new = self.applies_to == "new"
        speculating = (self.k,) * (min(self.threshold, inputs.slots) + 1)  # occupancies 0 … threshold
        which = "for rows that start while at most {} run" if new else "while at most {} rows run"
        return SpeculationPlan(
            ks=(self.k,) if new else (*speculating, 0),
            proposer=self.proposer,
            queue_depth=inputs.queue_depth,
            new_rows_limit=self.threshold if new else None,
            reason=f"queue_threshold: K={self.k} {which.format(self.threshold)}, else 0",
        )
