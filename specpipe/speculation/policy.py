"""What a policy sees and what it decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from specpipe.core import EXPECTED_OUTPUT_TOKENS, PREFILL_BUDGET, ProposerName, SpeculationPlan
from specpipe.speculation.acceptance_estimate import AcceptanceEstimate
from specpipe.speculation.cost_table import CostTable


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyInputs:
    """What is known when a plan is made: when a shard is handed out, and every few rounds in the worker.

    Everything in it is past: a choice of K that saw the token just drawn would bias the output.
    """

    slots: int
    """Rows that the worker generates at once."""
    queue_depth: float
    """Rows running + rows waiting in the worker + rows not yet handed out over live workers."""
    acceptance: Mapping[ProposerName, AcceptanceEstimate] = field(default_factory=dict)
    """Decayed, of every proposer that the worker has; "none" is always there and not listed."""
    costs: CostTable | None = None
    """What rounds take on this worker; None before anything was measured."""
    occupancy: int = 0
    """Rows of the latest round; 0 before any."""
    context: float = 256.0
    """Mean tokens of a running row."""
    input_tokens: float = 256.0
    """Mean prompt of a row."""
    output_tokens: float = EXPECTED_OUTPUT_TOKENS
    """Mean tokens that a row generates."""
    behind: float = 0.0
    """Mean tokens of a running row that the draft model has not seen: what turning it on would have to catch up."""
    left: float = 256.0
    """Mean tokens that a running row may still generate."""
    prefill_budget: int = PREFILL_BUDGET
    """Tokens that the draft model catches up in a round at most."""
    rounds: int = 0
    """That the worker has run."""
    plan: SpeculationPlan | None = None
    """The one in force."""

    @property
    def running(self) -> int:
        """Rows that run at once: as many as in the latest round, or all slots; fewer where no more rows are left."""
        return max(1, min(self.occupancy or self.slots, self.slots, round(self.queue_depth)))


class Policy(Protocol):
    """Decides, for each occupancy, which K."""

    @property
    def max_k(self) -> int:
        """Widest round that any plan of this policy asks for: the engine reserves memory for it."""

    def plan(self, inputs: PolicyInputs) -> SpeculationPlan: ...
