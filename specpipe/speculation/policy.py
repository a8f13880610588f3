"""What a policy sees and what it decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from specpipe.core import AcceptanceCounts, SpeculationPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """What is known when a shard is about to be handed out.

    Everything in it is past: a choice of K that saw the token just drawn would bias the output.
    """

    slots: int
    """Rows that the worker generates at once."""
    queue_depth: float
    """Rows running + rows waiting in the worker + rows not yet handed out over live workers."""
    acceptance: AcceptanceCounts
    """All that was verified so far in this run, on every worker."""


class Policy(Protocol):
    """Decides, for each occupancy, which K. Called by the driver only, once a dispatch."""

    @property
    def max_k(self) -> int:
        """Widest round that any plan of this policy asks for: the engine reserves memory for it."""

    def plan(self, situation: Situation) -> SpeculationPlan: ...
