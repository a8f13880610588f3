"""Comparison of a policy with an oracle and with the best fixed K, over many simulated runs.

Driver, worker steps, scheduler, tuner, estimates and policies are those of real runs; only the rounds are simulated.
All runs of a scenario repeat the policy's plans up to the end of its warm-up. There the oracle and every fixed K begin,
with the draft model caught up at no cost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from multiprocessing import get_context

import numpy as np

from specpipe.core import ProposerName, SpeculationPlan, StepReport
from specpipe.pipeline.run.one_engine import OneEngine
from specpipe.simulator.draws import Draws
from specpipe.simulator.engine import SimulatedEngine
from specpipe.simulator.measurement import Measurement, cached_costs, start_profile
from specpipe.simulator.oracle import Oracle, tokens_by_k
from specpipe.simulator.scenarios import Scenario
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.estimates.run_estimates import RunEstimates
from specpipe.speculation.policies.fixed import Fixed
from specpipe.speculation.policies.goodput import Goodput
from specpipe.speculation.policies.policy import Policy
from specpipe.speculation.tuner import Tuner

WARM_UP = 50
"""Rounds of a scenario that are not compared."""
_WORTH_A_PROCESS = 8  # scenarios per process, at least
_NEAR = 1.08  # fixed K up to this multiple of the least estimate are simulated


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


class _TooSlowError(Exception):
    """A run takes longer than another one that has ended."""


@dataclass(slots=True)
class _WarmUp:
    """Plans of a policy up to the end of its warm-up."""

    rounds: int
    plans: list[SpeculationPlan] = field(default_factory=list)
    ended: bool = False
    """True once `plans` is complete."""
    seconds: float = 0.0
    """Seconds at the end of the warm-up."""


class _AfterWarmUp:
    """Policy that begins after a warm-up: records the plans of the first one, and repeats them for later ones."""

    def __init__(self, policy: Policy, engine: SimulatedEngine, warm_up: _WarmUp) -> None:
        self._policy, self._engine, self._warm_up = policy, engine, warm_up
        self._records = not warm_up.ended
        self._repeated = 0

    @property
    def max_k(self) -> int:
        """Largest K of any plan."""
        return self._policy.max_k

    def plan(self, inputs: PolicyInputs) -> SpeculationPlan:
        warm_up, engine = self._warm_up, self._engine
        if self._records and not warm_up.ended:
            if engine.rounds < warm_up.rounds:
                warm_up.plans.append(self._policy.plan(inputs))
                return warm_up.plans[-1]
            warm_up.ended, warm_up.seconds = True, engine.seconds
        elif not self._records and self._repeated < len(warm_up.plans):
            self._repeated += 1
            return warm_up.plans[self._repeated - 1]
        elif not self._records and self._repeated == len(warm_up.plans):
            self._repeated += 1
            engine.catch_up()
        return self._policy.plan(inputs)


class Simulation:
    """Runs of one scenario with the same draws."""

    def __init__(self, scenario: Scenario, *, warm_up: int = WARM_UP) -> None:
        self._scenario, self._draws = scenario, Draws(scenario)
        self._shards = scenario.requests()
        self.warm_up = _WarmUp(warm_up)

    def run(
        self,
        make_policy: Callable[[SimulatedEngine], Policy],
        *,
        within_s: float = float("inf"),
        on_step: Callable[[StepReport], None] = lambda step: None,
    ) -> SimulatedEngine:
        """Runs all shards and returns the engine. The first run's policy plans the warm-up of all later ones.

        Raises _TooSlowError after `within_s` seconds.
        """
        scenario, measurement = self._scenario, Measurement(self._scenario)
        engine = SimulatedEngine(scenario, self._draws, measurement)
        policy = make_policy(engine)

        def checked(step: StepReport) -> None:
            on_step(step)
            if engine.seconds > within_s:
                raise _TooSlowError

        tuner = Tuner(
            _AfterWarmUp(policy, engine, self.warm_up),
            slots=scenario.slots,
            proposers=scenario.proposers,
            prefill_budget=scenario.prefill_budget,
            output_tokens=float(scenario.output.max()),
            clock=measurement.now,
        )
        estimates = RunEstimates(
            slots=scenario.slots,
            proposers=scenario.proposers,
            prefill_budget=scenario.prefill_budget,
            output_tokens=float(scenario.output.max()),
            cached_costs=lambda hardware: cached_costs(scenario),
        )
        OneEngine(
            engine,
            policy,
            tuner,
            estimates,
            profile=start_profile(scenario),
            now=measurement.now,
            on_step=checked,
            may_arrive=lambda: (
                scenario.refill >= 1 or (not engine.waiting and engine.running <= scenario.refill * scenario.slots)
            ),
        ).run(self._shards)
        self.warm_up.ended = True
        return engine

    def best_fixed(self) -> tuple[float, ProposerName, int]:
        """Returns the seconds of the fastest fixed K, its proposer and K. Those near the least estimate are run."""
        scenario = self._scenario
        choices: list[tuple[ProposerName, int]] = [("none", 0)]
        choices += [(who, k) for who in scenario.proposers for k in range(1, scenario.max_k + 1)]
        estimates = sorted((self._expected_s(*choice), choice) for choice in choices)
        best, found = float("inf"), choices[0]
        for estimate, choice in estimates:
            if estimate <= _NEAR * estimates[0][0]:
                seconds = self.fixed_s(*choice, within_s=best)
                best, found = min((best, found), (seconds, choice))
        return best, *found

    def fixed_s(self, who: ProposerName, k: int, *, within_s: float = float("inf")) -> float:
        """Returns the seconds of a run with one K, or infinity if they exceed `within_s`."""
        try:
            return self.run(lambda engine: Fixed(k=k, proposer=who if k else "draft"), within_s=within_s).seconds
        except _TooSlowError:
            return float("inf")

    def _expected_s(self, who: ProposerName, k: int) -> float:
        """Estimates the seconds of a run with one K, with the expected tokens of each row in every round."""
        scenario, machine = self._scenario, self._scenario.machine
        tokens = tokens_by_k(scenario, who)[:, k] if k else np.ones(len(scenario.coverage["draft"]))
        rounds = np.ceil(scenario.output / tokens[scenario.kind]).astype(np.int64)
        began = np.array(self._starts(rounds.tolist()), dtype=np.int64)
        running = np.cumsum(
            np.bincount(began, minlength=int((began + rounds).max())) - np.bincount(began + rounds)[:-1]
        )
        read = float((rounds * (scenario.input + scenario.output / 2)).sum())
        return float(machine.forwards(who, k, scenario.slots)[running].sum()) + machine.token_s(who, k) * read

    def _starts(self, rounds: list[int]) -> list[int]:
        """Takes the rounds of each row and returns the round in which it gets a slot."""
        scenario, shard = self._scenario, self._scenario.shard.tolist()
        busy: list[int] = []  # rounds in which slots become free
        began: list[int] = []
        now = 0
        for row, count in enumerate(rounds):
            drains = scenario.refill < 1 and row and shard[row] != shard[row - 1]
            while len(busy) > (scenario.refill * scenario.slots if drains else scenario.slots - 1):
                now = max(now, heappop(busy))
            heappush(busy, now + count)
            began.append(now)
        return began

    def oracle_s(self, *, within_s: float) -> float:
        """Returns the seconds of the oracle, at most `within_s`."""
        best = within_s
        for charge in (True, False):
            oracles: list[Oracle] = []

            def make(engine: SimulatedEngine, charge: bool = charge, oracles: list[Oracle] = oracles) -> Policy:
                oracles.append(Oracle(self._scenario, engine, charge_catch_up=charge))
                return oracles[0]

            with suppress(_TooSlowError):
                best = min(best, self.run(make, within_s=best).seconds)
            if not oracles[0].catch_up_mattered:
                break
        return best


def simulate(scenario: Scenario, *, policy: Policy | None = None, warm_up: int = WARM_UP) -> SimulationResult:
    """Simulates one scenario with the policy, goodput by default, and from the end of the warm-up with the others."""
    simulation = Simulation(scenario, warm_up=warm_up)
    chosen = policy or Goodput(k=scenario.max_k, proposers=scenario.proposers)
    engine = simulation.run(lambda engine: chosen)
    began = simulation.warm_up.seconds
    best, who, k = simulation.best_fixed()
    return SimulationResult(
        family=scenario.family,
        index=scenario.index,
        rounds=engine.rounds,
        shards=int(scenario.shard[-1]) + 1,
        policy_s=engine.seconds - began,
        oracle_s=simulation.oracle_s(within_s=best) - began,
        fixed_s=best - began,
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
        yield from map(play, scenarios)
        return
    with ProcessPoolExecutor(wanted, mp_context=get_context("spawn")) as pool:
        yield from pool.map(play, scenarios, chunksize=2)
