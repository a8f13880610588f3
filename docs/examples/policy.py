"""Example of a policy: K is limited by a column of the user's dataset, and chosen by goodput below the limit."""

from collections.abc import Iterable
from dataclasses import dataclass

from specpipe.core import ProposerName, SpeculationPlan
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.policies.goodput import Goodput


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnLimit:
    """Drafts at most as many tokens as every row allows."""

    k: int
    proposers: tuple[ProposerName, ...]

    @classmethod
    def of(cls, column: Iterable[int | None], *, k: int, proposers: tuple[ProposerName, ...]) -> "ColumnLimit":
        """Returns the policy for the values of a column; rows without a value have no limit."""
        return cls(k=min([k, *(value for value in column if value is not None)]), proposers=proposers)

    @property
    def max_k(self) -> int:
        """Largest K of any plan; the engine reserves memory for it."""
        return self.k

    def plan(self, inputs: PolicyInputs) -> SpeculationPlan:
        """Returns K for each number of running rows, from past measurements only, so that outputs are not biased."""
        return Goodput(k=self.k, proposers=self.proposers).plan(inputs)
