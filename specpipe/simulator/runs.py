"""Runs of one scenario: under a policy, under every fixed K, and under the oracle.

Driver, worker steps, scheduler, tuner, estimates and policies are those of real runs; only the rounds are simulated,
and telemetry is left out. Reference runs repeat the plans of the policy up to the end of its warm-up. There the oracle
and every fixed K begin, with the draft model caught up at no cost. They leave out evidence too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import numpy as np

from specpipe.core import Profile, ProposerName, SpeculationPlan, StepReport
from specpipe.pipeline.run.one_engine import OneEngine
from specpipe.pipeline.worker.engine_steps import EngineSteps
from specpipe.simulator.draws import Draws
from specpipe.simulator.engine import SimulatedEngine
from specpipe.simulator.measurement import Measurement, cached_costs, start_profile
from specpipe.simulator.oracle import Oracle, tokens_by_k
from specpipe.simulator.scenarios import Scenario
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.estimates.run_estimates import RunEstimates
from specpipe.speculation.policies.fixed import Fixed
from specpipe.speculation.policies.policy import REPLAN_ROUNDS, Policy
from specpipe.speculation.tuner import Tuner
from specpipe.telemetry.timeline_sampler import TimelineSampler

_POLL_ROUNDS = 64.0  # plain rounds between two statuses: about one second of the scenarios, as in a run
_NEAR = 1.04  # fixed K up to this multiple of the least estimate are simulated; estimates were within 2 %


class _TooSlowError(Exception):
    """A run takes longer than another one that has ended."""


class _Reference:
    """Policy of a reference run: the recorded plans of the warm-up, then those of `policy`."""

    def __init__(self, engine: SimulatedEngine, policy: Policy, warm_up: list[SpeculationPlan]) -> None:
        """warm_up: the plan of every step."""
        self._engine, self._policy, self._warm_up = engine, policy, warm_up

    @property
    def max_k(self) -> int:
        """Largest K of any plan."""
        return self._policy.max_k

    def plan(self, inputs: PolicyInputs) -> SpeculationPlan:
        """Returns the plan of the next step."""
        steps = len(self._engine.plans)
        return self._warm_up[steps] if steps < len(self._warm_up) else self._policy.plan(inputs)


class _Steps(EngineSteps):
    """Worker steps without telemetry."""

    def observe(self, step: StepReport) -> None:
        """Counts completions, for the driver, and plans."""
        for completion in step.completions:
            self._totals.add_completion(completion)
        self._tune(step)


class _ReferenceSteps(_Steps):
    """Worker steps that only plan: in every step of the warm-up, then every few rounds."""

    def __init__(self, engine: SimulatedEngine, tuner: Tuner, policy: Policy, warm_up_steps: int) -> None:
        """tuner: plans where a shard arrives. policy: of the tuner."""
        super().__init__(engine, TimelineSampler(worker="", epoch=0), tuner)
        self._simulated, self._policy, self._warm_up_steps = engine, policy, warm_up_steps
        self._inputs = PolicyInputs(slots=engine.config.slots, queue_depth=0.0)  # reference policies read none

    def _tune(self, step: StepReport) -> None:
        engine, left = self._simulated, self._warm_up_steps - len(self._simulated.plans)
        if left == 0:
            engine.catch_up()
        if left >= 0 or engine.rounds % REPLAN_ROUNDS == 0:
            engine.submit([], self._policy.plan(self._inputs))


class SimulatedRuns:
    """Runs of one scenario with the same draws. `run_policy` comes first."""

    def __init__(self, scenario: Scenario, *, warm_up: int) -> None:
        """warm_up: rounds of the policy that the other runs repeat."""
        self._scenario, self._draws = scenario, Draws(scenario)
        self._shards = scenario.requests()
        self._sizes: dict[str, Any] = {
            "slots": scenario.slots,
            "proposers": scenario.proposers,
            "output_tokens": float(scenario.output.max()),
        }
        self._warm_up_rounds = warm_up
        self._warm_up: list[SpeculationPlan] = []
        self.warm_up_s = 0.0
        """Seconds of the warm-up, on an undisturbed machine."""

    def run_policy(self, policy: Policy, on_step: Callable[[StepReport], None] = lambda step: None) -> SimulatedEngine:
        """Runs all shards with the policy in driver and worker, and returns the engine."""
        measurement = Measurement(self._scenario)
        engine = SimulatedEngine(self._scenario, self._draws, measurement)

        def watch(step: StepReport) -> None:
            if not self._warm_up and engine.rounds >= self._warm_up_rounds:
                self._warm_up, self.warm_up_s = engine.plans.copy(), engine.seconds
            on_step(step)

        tuner = self._tuner(policy, measurement.now)
        steps = _Steps(engine, TimelineSampler(worker="", epoch=0), tuner)
        estimates = RunEstimates(cached_costs=lambda hardware: cached_costs(self._scenario), **self._sizes)
        self._run(engine, steps, policy, measurement.now, watch, estimates, start_profile(self._scenario))
        return engine

    def fixed_s(self, who: ProposerName, k: int, *, within_s: float = math.inf) -> float:
        """Returns the seconds of a run with one K, or infinity if they exceed `within_s`."""
        return self._reference_s(lambda engine: Fixed(k=k, proposer=who if k else "draft"), within_s)

    def oracle_s(self, *, within_s: float) -> float:
        """Returns the seconds of the oracle, at most `within_s`: one that charges the cost of catching up, or not."""
        best = within_s
        for charge in (True, False):
            oracles: list[Oracle] = []

            def make(engine: SimulatedEngine, charge: bool = charge, oracles: list[Oracle] = oracles) -> Policy:
                oracles.append(Oracle(self._scenario, engine, charge_catch_up=charge))
                return oracles[0]

            best = min(best, self._reference_s(make, best))
            if not oracles[0].catch_up_mattered:
                break
        return best

    def _reference_s(self, make_policy: Callable[[SimulatedEngine], Policy], within_s: float) -> float:
        """Returns the seconds of a reference run, or infinity if they exceed `within_s`."""
        measurement = Measurement(self._scenario)
        engine = SimulatedEngine(self._scenario, self._draws, measurement, counts=False)

        def watch(step: StepReport) -> None:
            if engine.seconds > within_s:
                raise _TooSlowError

        policy = _Reference(engine, make_policy(engine), self._warm_up)
        steps = _ReferenceSteps(engine, self._tuner(policy, measurement.now), policy, len(self._warm_up))
        try:
            unread = RunEstimates(slots=self._scenario.slots, proposers=())
            self._run(engine, steps, Fixed(k=0, proposer="draft"), measurement.now, watch, unread, Profile())
        except _TooSlowError:
            return math.inf
        return engine.seconds

    def _tuner(self, policy: Policy, now: Callable[[], float]) -> Tuner:
        return Tuner(policy, clock=now, **self._sizes)

    def _run(
        self,
        engine: SimulatedEngine,
        steps: EngineSteps,
        policy: Policy,
        now: Callable[[], float],
        on_step: Callable[[StepReport], None],
        estimates: RunEstimates,
        profile: Profile,
    ) -> None:
        """Runs all shards. policy, estimates: the driver's."""
        scenario = self._scenario
        drained = scenario.refill * scenario.slots
        OneEngine(
            steps,
            policy,
            estimates,
            slots=scenario.slots,
            profile=profile,
            now=now,
            poll_s=_POLL_ROUNDS * scenario.plain_round_s,
            on_step=on_step,
            may_arrive=lambda: scenario.refill >= 1 or (not engine.waiting and engine.running <= drained),
        ).run(self._shards)

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
        prefill_s = machine.prefill_s(float(scenario.input.sum()), 0.0) if k and who == "draft" else 0.0
        return (
            float(machine.forwards(who, k, scenario.slots)[running].sum()) + machine.token_s(who, k) * read + prefill_s
        )

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
