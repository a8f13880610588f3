"""Comparison of a policy with an oracle and with the best fixed K, over many simulated runs.

Policy, observers and plans are those of real runs; only the rounds are simulated. After a warm-up the oracle and every
fixed K continue from the state that the policy has reached, with the draft model caught up at no cost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

from specpipe.core import ProposerName
from specpipe.simulator.draws import Draws
from specpipe.simulator.fixed_k import FixedKRuns
from specpipe.simulator.oracle import Oracle, RoundChoice
from specpipe.simulator.policy_run import PolicyRun
from specpipe.simulator.scenarios import Scenario
from specpipe.simulator.simulated_worker import SimulatedWorker
from specpipe.speculation.policies.goodput import Goodput
from specpipe.speculation.policies.policy import Policy

WARM_UP = 50
"""Rounds of a scenario that are not compared."""
_WORTH_A_PROCESS = 8  # scenarios per process, at least
_PLAIN: RoundChoice = ("none", 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationResult:
    """Result of one scenario."""

    family: str
    index: int
    rounds: int
    """Rounds of the policy, warm-up included."""
    shards: int
    policy_s: float
    """Seconds of the policy after the warm-up."""
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
    worker = SimulatedWorker(scenario, Draws(scenario))
    run = PolicyRun(scenario, worker, policy or Goodput(k=scenario.max_k, proposers=scenario.proposers))
    while worker.rounds < warm_up and run.step(warm_up - worker.rounds):
        pass
    began, start = worker.seconds, worker.fork().caught_up()
    while run.step():
        pass
    choices = [_PLAIN]
    choices += [(who, k) for who in scenario.proposers for k in range(1, scenario.max_k + 1)]
    best, choice = FixedKRuns(start).best(choices)
    oracle = Oracle(scenario).seconds(start, within_s=best)
    return SimulationResult(
        family=scenario.family,
        index=scenario.index,
        rounds=worker.rounds,
        shards=int(scenario.shard[-1]) + 1,
        policy_s=worker.seconds - began,
        oracle_s=oracle - began,
        fixed_s=best - began,
        fixed_k=choice[1],
        fixed_proposer=choice[0],
    )


def simulate_all(
    scenarios: Sequence[Scenario], *, warm_up: int = WARM_UP, processes: int | None = None
) -> Iterator[SimulationResult]:
    """Yields results in the order of the scenarios. Runs one process per core, or `processes`."""
    play = partial(simulate, warm_up=warm_up)
    wanted = min(processes or len(os.sched_getaffinity(0)), len(scenarios) // _WORTH_A_PROCESS)
    if wanted < 2:
        yield from map(play, scenarios)
        return
    with ProcessPoolExecutor(wanted, mp_context=get_context("spawn")) as pool:
        yield from pool.map(play, scenarios, chunksize=2)
