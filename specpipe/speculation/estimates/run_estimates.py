"""Estimates of a run for its policy: acceptance over all workers, round costs by hardware."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from specpipe.core import EXPECTED_OUTPUT_TOKENS, PREFILL_BUDGET, Evidence, Profile, ProposerName
from specpipe.speculation.estimates.cost_table import CostTable
from specpipe.speculation.estimates.observer import Observer, Priors
from specpipe.speculation.estimates.policy_inputs import PolicyInputs


class RunEstimates:
    """Estimates on the driver. The work of a report does not depend on the number of workers."""

    def __init__(
        self,
        *,
        slots: int,
        proposers: Sequence[ProposerName],
        prefill_budget: int = PREFILL_BUDGET,
        output_tokens: float = EXPECTED_OUTPUT_TOKENS,
        cached_costs: Callable[[str], CostTable] = lambda hardware: CostTable(),
    ) -> None:
        """cached_costs: returns the round costs that earlier runs measured on a kind of hardware. output_tokens:
        expected length of a row before any has ended."""
        self._observer = Observer(
            slots=slots, proposers=proposers, output_tokens=output_tokens, prefill_budget=prefill_budget
        )
        self._hardware: dict[str, str] = {}
        """By worker."""
        self._cached_costs = cached_costs
        self.tables: dict[str, CostTable] = {}
        """By hardware."""

    def admit(self, worker: str, hardware: str, profile: Profile) -> None:
        """Adds a worker that is ready, with its start-up profile."""
        self._hardware[worker] = hardware
        table = self.tables[hardware] if hardware in self.tables else self._cached_costs(hardware)
        self.tables[hardware] = table.with_profile(profile)

    def add(self, worker: str | None, evidence: Evidence) -> None:
        """Adds evidence of a worker; None for rounds of an earlier start, whose costs are in the cache already."""
        self._observer.add(evidence)
        hardware = self._hardware.get(worker) if worker is not None else None
        if hardware is None:
            return
        table = self.tables[hardware]
        if evidence.costs:
            table = table.with_points(evidence.costs)
        if evidence.draft_prefills:
            table = table.with_prefills(evidence.draft_prefills)
        self.tables[hardware] = table

    def priors(self, worker: str) -> Priors:
        """Returns the estimates to send with a shard to this worker."""
        return dataclasses.replace(self._observer.priors, costs=self._table(worker))

    def policy_inputs(self, worker: str, *, queue_depth: float) -> PolicyInputs:
        """Returns the inputs for a plan of this worker."""
        found = self._observer.policy_inputs(queue_depth=queue_depth, plan=None)
        return dataclasses.replace(found, costs=self._table(worker) or None)

    def hardware(self, worker: str) -> str:
        """Returns the name of the worker's hardware; empty before the worker is ready."""
        return self._hardware.get(worker, "")

    def _table(self, worker: str) -> CostTable:
        return self.tables.get(self.hardware(worker), CostTable())
