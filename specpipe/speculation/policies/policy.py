"""Protocol of a speculation policy."""

from __future__ import annotations

from typing import Protocol

from specpipe.core import SpeculationPlan
from specpipe.speculation.estimates.policy_inputs import PolicyInputs

REPLAN_ROUNDS = 16
"""Rounds between two plans; fewer at first, while each round adds much evidence."""


class Policy(Protocol):
    """Chooses K and the proposer for every number of running rows."""

    @property
    def max_k(self) -> int:
        """Largest K of any plan; the engine reserves memory for it."""

    def plan(self, inputs: PolicyInputs) -> SpeculationPlan:
        """Returns the plan for these inputs. Must depend on nothing else, so that runs can be compared."""
