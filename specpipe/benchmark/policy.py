"""How close a policy comes to an oracle and to the best fixed K, over many simulated runs.

The policy, its observers and its plans are the ones that runs use; only the rounds are simulated. After a warm-up both
the oracle and every fixed K go on from the state that the policy has reached, with the draft caught up for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from specpipe.benchmark.policy_log import RoundLog
from specpipe.benchmark.policy_scenarios import Scenario
from specpipe.benchmark.policy_worker import SimulatedWorker, draws
from specpipe.core import CostPoint, ProposerName
from specpipe.speculation.cost import CostTable, points_to_time
from specpipe.speculation.goodput import Goodput
from specpipe.speculation.observer import WORKER_HALF_LIFE, Beliefs, Observer
from specpipe.speculation.policy import Policy

WARM_UP = 50
REPLAN = 16
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
        names, slots, output = scenario.proposers, scenario.slots, float(scenario.output.max())
        self._driver = Observer(slots=slots, proposers=names, output_tokens=output)
        self._observer = Observer(slots=slots, proposers=names, half_life=WORKER_HALF_LIFE, output_tokens=output)
        self._observer.lean_on(Beliefs(costs=CostTable(self._profile())))
        self._recent, self._shard_log = RoundLog(), RoundLog()
        self._shards_in = 0
        self._since = 0
        self.plan = policy.plan(self._observer.situation(queue_depth=worker.queue_depth, plan=None))

    def _profile(self) -> tuple[CostPoint, ...]:
        """The points of a worker's start: short rows, few rounds."""
        scenario = self._scenario
        out = []
        for rows, who, k in points_to_time(scenario.slots, scenario.max_k, scenario.proposers):
            seconds = 5 * self._measured(scenario.machine.seconds(who, k, rows, 16.0))
            out.append(CostPoint(proposer=who, k=k, running=rows, context=16.0, rounds=5, seconds=seconds))
        return tuple(out)

    def _measured(self, seconds: float) -> float:
        noise = float(np.exp(_NOISE * self._rng.standard_normal()))
        return seconds * noise * (3.0 if self._rng.random() < _HICCUP else 1.0)

    def step(self) -> bool:
        """One round; False when no row is left."""
        worker = self.worker
        if not worker.admit():
            return False
        if worker.shards_in != self._shards_in:  # the driver hands shards out with what it knows
            self._shards_in = worker.shards_in
            self._driver.see(self._shard_log.evidence())
            self._shard_log = RoundLog()
            self._observer.lean_on(self._driver.beliefs)
            self._replan()
        elif self._since >= REPLAN:
            self._replan()
        proposer, k = self.plan.choice(len(worker.rows), worker.rounds)
        played = worker.play(proposer, k)
        measured = self._measured(played.seconds)
        self._recent.add(played, measured, self._scenario)
        self._shard_log.add(played, measured, self._scenario)
        self._since += 1
        return True

    def _replan(self) -> None:
        self._since = 0
        self._observer.see(self._recent.evidence())
        self._recent = RoundLog()
        self.plan = self._policy.plan(self._observer.situation(queue_depth=self.worker.queue_depth, plan=self.plan))


def simulate(scenario: Scenario, *, policy: Policy | None = None, warm_up: int = WARM_UP) -> Outcome:
    """Plays one scenario with the policy, by default goodput, and from the end of the warm-up with all others."""
    worker = SimulatedWorker(scenario, draws(scenario))
    run = PolicyRun(scenario, worker, policy or Goodput(k=scenario.max_k, proposers=scenario.proposers))
    for _ in range(warm_up):
        run.step()
    began, start = worker.seconds, worker.fork()
    start.behind[start.rows] = 0
    while run.step():
        pass
    fixed = {
        (who, k): _finish(start.fork(), partial(_always, who, k))
        for who in scenario.proposers
        for k in range(scenario.max_k + 1)
    }
    (who, k), best = min(fixed.items(), key=lambda item: item[1])
    oracle = min(best, _finish(start.fork(), Oracle(scenario)), _finish(start.fork(), Oracle(scenario, patient=False)))
    return Outcome(
        family=scenario.family,
        index=scenario.index,
        rounds=worker.rounds,
        shards=int(scenario.shard[-1]) + 1,
        policy_s=worker.seconds - began,
        oracle_s=oracle - began,
        fixed_s=best - began,
        fixed_k=k,
        fixed_proposer=who if k else "none",
    )


def _always(proposer: ProposerName, k: int, worker: SimulatedWorker) -> tuple[ProposerName, int]:
    return proposer, k


def _finish(worker: SimulatedWorker, choose: Callable[[SimulatedWorker], tuple[ProposerName, int]]) -> float:
    """→ seconds at the end."""
    while worker.admit():
        worker.play(*choose(worker))
    return worker.seconds


class Oracle:
    """Knows what rounds take and what each row accepts: the best K of every round, and when catching up pays."""

    def __init__(self, scenario: Scenario, *, patient: bool = True) -> None:
        """`patient`: leaves the draft off until what it brings pays for catching up."""
        self._scenario, self._patient = scenario, patient
        self._tokens = {
            who: np.concatenate(
                [
                    np.ones((len(scenario.coverage[who]), 1)),
                    1 + scenario.coverage[who][:, None] * np.cumsum(np.cumprod(scenario.accepts[who], axis=1), axis=1),
                ],
                axis=1,
            )
            for who in scenario.proposers
        }

    def __call__(self, worker: SimulatedWorker) -> tuple[ProposerName, int]:
        scenario, rows = self._scenario, worker.rows
        context = worker.context
        left = float(np.sum(scenario.output[rows] - worker.made[rows]))
        left += max(0.0, worker.queue_depth - len(rows)) * float(scenario.output.mean())
        best: tuple[float, ProposerName, int] = (np.inf, "none", 0)
        for who, table in self._tokens.items():
            tokens = table[scenario.kind[rows]].mean(axis=0)
            for k in range(scenario.max_k + 1):
                seconds = scenario.machine.seconds(who, k, len(rows), context) / (len(rows) * tokens[k])
                if k and who == "draft" and self._patient:
                    seconds += float(worker.behind[rows].sum()) * scenario.machine.draft_prefill / left
                best = min(best, (seconds, who, k))
        return best[1], best[2]
