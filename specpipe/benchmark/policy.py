"""How close a policy comes to an oracle and to the best fixed K, over many simulated runs.

The policy, its observers and its plans are the ones that runs use; only the rounds are simulated. After a warm-up both
the oracle and every fixed K go on from the state that the policy has reached, with the draft caught up for nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np

from specpipe.benchmark.policy_course import Courses
from specpipe.benchmark.policy_draws import Draws
from specpipe.benchmark.policy_log import RoundLog
from specpipe.benchmark.policy_oracle import Choice, Oracle
from specpipe.benchmark.policy_scenarios import Scenario
from specpipe.benchmark.policy_worker import SimulatedWorker
from specpipe.core import CostPoint, ProposerName
from specpipe.speculation.cost import CostTable
from specpipe.speculation.evidence import Shape, Usual
from specpipe.speculation.goodput import Goodput
from specpipe.speculation.observer import WORKER_HALF_LIFE, Beliefs, Observer
from specpipe.speculation.points import PROFILED_CONTEXT, points_to_time
from specpipe.speculation.policy import Policy
from specpipe.speculation.tuner import REPLAN_ROUNDS, rounds_to_plan

WARM_UP = 50
CHOOSE_AGAIN = 16
"""Rounds after which the oracle looks again, as it does where the number of rows has changed by more than CHANGED."""
CHANGED = 1 / 16
_WORTH_A_PROCESS = 8  # scenarios
_PLAIN: Choice = ("none", 0)
_NOISE = 0.03  # of a measured round's seconds, log-normal
_HICCUP = 0.002  # share of rounds that take three times as long


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One scenario."""

    family: str
    index: int
    rounds: int
    """Of the policy, warm-up included."""
    shards: int
    policy_s: float
    """Seconds after the warm-up, as the following."""
    oracle_s: float
    fixed_s: float
    """Of the best fixed K."""
    fixed_k: int
    fixed_proposer: ProposerName

    @property
    def against_oracle(self) -> float:
        """Seconds over the oracle's, less 1."""
        return self.policy_s / self.oracle_s - 1

    @property
    def against_fixed(self) -> float:
        return self.policy_s / self.fixed_s - 1


class PolicyRun:
    """A driver and a worker under a policy, round by round."""

    def __init__(self, scenario: Scenario, worker: SimulatedWorker, policy: Policy) -> None:
        self._scenario, self.worker, self._policy = scenario, worker, policy
        self._rng = np.random.default_rng([scenario.seed, 1])
        names, slots = scenario.proposers, scenario.slots
        observer = partial(
            Observer,
            slots=slots,
            proposers=names,
            output_tokens=float(scenario.output.max()),
            prefill_budget=scenario.prefill_budget,
        )
        self._driver, self._observer = observer(), observer(half_life=WORKER_HALF_LIFE)
        self._observer.lean_on(Beliefs(costs=CostTable(self._profile())))
        self._recent, self._shard_log = RoundLog(scenario, worker.draws), RoundLog(scenario, worker.draws)
        self._usual = Usual()
        self.chosen: Counter[Choice] = Counter()
        """Rounds by proposer and K."""
        self._shards_in = 0
        self._since = 0
        self.plan = policy.plan(self._observer.situation(queue_depth=worker.queue_depth, plan=None))

    def _profile(self) -> tuple[CostPoint, ...]:
        """The points of a worker's start: few rounds."""
        scenario, context = self._scenario, float(PROFILED_CONTEXT)
        out = []
        for rows, who, k in points_to_time(scenario.slots, scenario.max_k, scenario.proposers):
            timed = [self._measured(scenario.machine.seconds(who, k, rows, context)) for _ in range(5)]
            seconds = 5 * float(np.median(timed))
            out.append(CostPoint(proposer=who, k=k, running=rows, context=context, rounds=5, seconds=seconds))
        return tuple(out)

    def _measured(self, seconds: float) -> float:
        noise = float(np.exp(_NOISE * self._rng.standard_normal()))
        return seconds * noise * (3.0 if self._rng.random() < _HICCUP else 1.0)

    def step(self, most: int = REPLAN_ROUNDS) -> int:
        """Rounds until the next decision, at most so many → how many; 0 when no row is left."""
        worker = self.worker
        if not worker.admit():
            return 0
        if worker.shards_in != self._shards_in:  # the driver hands shards out with what it knows
            self._shards_in = worker.shards_in
            self._driver.see(self._shard_log.evidence())
            self._shard_log = RoundLog(self._scenario, self.worker.draws)
            self._observer.lean_on(self._driver.beliefs)
            self._replan(rows_come=True)
        elif self._left() < 1:
            self._replan()
        choice = self.plan.choice(len(worker.rows), worker.rounds)
        most = min(most, self._left())
        if self.plan.explore is not None:
            most = min(most, self.plan.explore.unchanged(worker.rounds))
        explore = self.plan.exploring(worker.rounds)
        limit = None if explore is None else explore.catch_up_at(worker.rounds)
        waits = self.plan.least_ready if explore is None else 0.0
        played = worker.play(*choice, most, least_ready=waits, catch_up=limit)
        self.chosen[played.proposer, played.k] += played.rounds
        shape = Shape.of(played.proposer, played.k, played.running)
        measured = np.array([self._usual.believe(shape, self._measured(seconds)) for seconds in played.seconds])
        self._recent.add(played, measured)
        self._shard_log.add(played, measured)
        self._since += played.rounds
        return played.rounds

    def _left(self) -> int:
        """Rounds until the next plan."""
        return rounds_to_plan(self.worker.rounds - self._since) - self._since

    def _replan(self, *, rows_come: bool = False) -> None:
        self._since = 0
        self._observer.see(self._recent.evidence(self.worker.mean_behind))
        self._recent = RoundLog(self._scenario, self.worker.draws)
        depth = self.worker.queue_depth
        seen = self._observer.situation(queue_depth=depth, plan=self.plan, rows_come=rows_come)
        self.plan = self._policy.plan(seen)


def simulate(scenario: Scenario, *, policy: Policy | None = None, warm_up: int = WARM_UP) -> Outcome:
    """Plays one scenario with the policy, by default goodput, and from the end of the warm-up with all others."""
    worker = SimulatedWorker(scenario, Draws(scenario))
    run = PolicyRun(scenario, worker, policy or Goodput(k=scenario.max_k, proposers=scenario.proposers))
    while worker.rounds < warm_up and run.step(warm_up - worker.rounds):
        pass
    began, start = worker.seconds, worker.fork().caught_up()
    while run.step():
        pass
    choices = [_PLAIN]
    choices += [(who, k) for who in scenario.proposers for k in range(1, scenario.max_k + 1)]
    best, choice = Courses(start).best(choices)
    oracle = best
    for patient in (True, False):
        oracle = min(oracle, _finish(start.fork(), Oracle(scenario, patient=patient), within_s=oracle))
    return Outcome(
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
) -> Iterator[Outcome]:
    """In order; as many at once as there are cores, or as `processes` says."""
    play = partial(simulate, warm_up=warm_up)
    wanted = min(processes or len(os.sched_getaffinity(0)), len(scenarios) // _WORTH_A_PROCESS)
    if wanted < 2:
        yield from map(play, scenarios)
        return
    with ProcessPoolExecutor(wanted, mp_context=get_context("spawn")) as pool:
        yield from pool.map(play, scenarios, chunksize=2)


def _finish(worker: SimulatedWorker, choose: Callable[[SimulatedWorker], Choice], *, within_s: float = np.inf) -> float:
    """→ seconds at the end, or some beyond `within_s` where it would be later. It chooses again after so many rounds,
    and where the number of rows has changed."""
    rows, until, choice = 0, 0, _PLAIN
    while worker.seconds <= within_s and worker.admit():
        if worker.rounds >= until or abs(len(worker.rows) - rows) > CHANGED * rows:
            rows, until, choice = len(worker.rows), worker.rounds + CHOOSE_AGAIN, choose(worker)
        worker.play(*choice, until - worker.rounds)
    return worker.seconds
