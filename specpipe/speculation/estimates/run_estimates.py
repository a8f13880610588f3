"""Estimates of a run for its policy: acceptance over all workers, round costs by hardware."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from specpipe.core import EXPECTED_OUTPUT_TOKENS, Evidence, Profile, ProposerName
from specpipe.speculation.estimates.observer import Observer
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.estimates.round_costs import RoundCosts


class RunEstimates:
    """Estimates on the driver. The work of a report does not depend on the number of workers."""

    def __init__(
        self,
        *,
        slots: int,
        proposers: Sequence[ProposerName],
        output_tokens: float = EXPECTED_OUTPUT_TOKENS,
        cached_costs: Callable[[str], RoundCosts] = lambda hardware: RoundCosts(),
    ) -> None:
        """cached_costs: returns the round costs that earlier runs measured on a kind of hardware. output_tokens:
        expected length of a row before any has ended."""
        self._observer = Observer(slots=slots, proposers=proposers, output_tokens=output_tokens)
        self._hardware: dict[str, str] = {}
        """By worker."""
        self._cached_costs = cached_costs
        self.costs: dict[str, RoundCosts] = {}
        """By hardware."""

    def admit(self, worker: str, hardware: str, profile: Profile) -> None:
        """Adds a worker that is ready, with its start-up profile."""
        self._hardware[worker] = hardware
        old = self.costs.get(hardware) or self._cached_costs(hardware) or RoundCosts(expert_share=profile.expert_share)
        new = old.with_points(profile.rounds)
        # A profile may mislead: its rounds do not count, so that each proposer is soon tried in the job.
        self.costs[hardware] = replace(new, rounds=min(new.rounds, max(1.0, old.rounds)), confirmed=old.confirmed)

    def add(self, worker: str | None, evidence: Evidence) -> None:
        """Adds evidence of a worker; None for rounds of an earlier start, whose costs are in the cache already."""
        self._observer.add(replace(evidence, costs=()))
        hardware = self._hardware.get(worker) if worker is not None else None
        if hardware is not None:
            self.costs[hardware] = self.costs[hardware].with_points(evidence.costs)

    def policy_inputs(self, worker: str, *, queue_depth: float = 0.0) -> PolicyInputs:
        """Returns the inputs for a plan of this worker, with which it starts too."""
        costs = self.costs.get(self.hardware(worker), RoundCosts())
        return replace(self._observer.inputs, queue_depth=queue_depth, costs=costs)

    def hardware(self, worker: str) -> str:
        """Returns the name of the worker's hardware; empty before the worker is ready."""
        return self._hardware.get(worker, "")
