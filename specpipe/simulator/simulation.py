"""Comparison of a policy with an oracle and with the best fixed K, over many simulated runs."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

from specpipe.core import ProposerName
from specpipe.simulator.runs import SimulatedRuns
from specpipe.simulator.scenarios import Scenario
from specpipe.speculation.policies.goodput import Goodput
from specpipe.speculation.policies.policy import Policy

WARM_UP = 50
"""Rounds of a scenario that are not compared."""
_WORTH_A_PROCESS = 8  # scenarios per process, at least


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationResult:
    """Result of one scenario."""

    family: str
    index: int
    rounds: int
    """Rounds of the policy, warm-up included."""
    shards: int
    policy_s: float
    """Seconds of the policy after the warm-up, on an undisturbed machine, as all seconds here."""
    oracle_s: float
    """Seconds of the oracle after the warm-up."""
    fixed_s: float
    """Seconds of the best fixed K after the warm-up."""
    fixed_k: int
    fixed_proposer: ProposerName

    @property
    def against_oracle(self) -> float:
        """Relative excess over the oracle's seconds."""
        return self.policy_s / self.oracle_s - 1

    @property
    def against_fixed(self) -> float:
        """Relative excess over the seconds of the best fixed K."""
        return self.policy_s / self.fixed_s - 1


def simulate(scenario: Scenario, *, policy: Policy | None = None, warm_up: int = WARM_UP) -> SimulationResult:
    """Simulates one scenario with the policy, goodput by default, and from the end of the warm-up with the others."""
    runs = SimulatedRuns(scenario, warm_up=warm_up)
    engine = runs.run_policy(policy or Goodput(k=scenario.max_k, proposers=scenario.proposers))
    best, who, k = runs.best_fixed()
    return SimulationResult(
        family=scenario.family,
        index=scenario.index,
        rounds=engine.rounds,
        shards=int(scenario.shard[-1]) + 1,
        policy_s=engine.seconds - runs.warm_up_s,
        oracle_s=runs.oracle_s(within_s=best) - runs.warm_up_s,
        fixed_s=best - runs.warm_up_s,
        fixed_k=k,
        fixed_proposer=who,
    )


def simulate_all(
    scenarios: Sequence[Scenario], *, warm_up: int = WARM_UP, processes: int | None = None
) -> Iterator[SimulationResult]:
    """Yields results in the order of the scenarios. Runs one process per core, or `processes`."""
    play = partial(simulate, warm_up=warm_up)
    wanted = min(processes or len(os.sched_getaffinity(0)), len(scenarios) // _WORTH_A_PROCESS)
    if wanted < 2:
        gc.freeze()  # imported libraries: to look for garbage among them took a third of the time
        yield from map(play, scenarios)
        return
    with ProcessPoolExecutor(wanted, mp_context=get_context("spawn"), initializer=gc.freeze) as pool:
        yield from pool.map(play, scenarios, chunksize=2)
