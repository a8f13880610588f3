"""A driver and a worker under a policy, over simulated rounds."""

from __future__ import annotations

from collections import Counter
from functools import partial

from specpipe.core import PrefillPoint
from specpipe.simulator.measurement import Measurement, cached_costs, start_profile
from specpipe.simulator.oracle import RoundChoice
from specpipe.simulator.round_log import RoundLog
from specpipe.simulator.scenarios import Scenario
from specpipe.simulator.segment import Segment
from specpipe.simulator.simulated_worker import SimulatedWorker
from specpipe.speculation.estimates.evidence_log import RoundShape, TypicalRounds
from specpipe.speculation.estimates.observer import WORKER_HALF_LIFE, Observer, Priors
from specpipe.speculation.policies.policy import Policy
from specpipe.speculation.tuner import MOSTLY_NEW, REPLAN_ROUNDS, rounds_to_plan


class PolicyRun:
    """Steps a simulated driver and worker from plan to plan."""

    def __init__(self, scenario: Scenario, worker: SimulatedWorker, policy: Policy) -> None:
        self._scenario, self.worker, self._policy = scenario, worker, policy
        self._measurement = Measurement(scenario)
        names, slots = scenario.proposers, scenario.slots
        observer = partial(
            Observer,
            slots=slots,
            proposers=names,
            output_tokens=float(scenario.output.max()),
            prefill_budget=scenario.prefill_budget,
        )
        self._driver, self._observer = observer(), observer(half_life=WORKER_HALF_LIFE)
        self._observer.use_priors(Priors(costs=cached_costs(scenario).with_profile(start_profile(scenario))))
        self._recent, self._shard_log = RoundLog(scenario, worker.draws), RoundLog(scenario, worker.draws)
        self._typical = TypicalRounds()
        self.chosen: Counter[RoundChoice] = Counter()
        """Rounds by proposer and K."""
        self._shards_in = 0
        self._since = 0
        self.plan = policy.plan(self._observer.policy_inputs(queue_depth=worker.queue_depth, plan=None))

    def step(self, most: int = REPLAN_ROUNDS) -> int:
        """Plays the rounds until the next decision, at most `most`. Returns their number; 0 when no row is left."""
        worker = self.worker
        if not worker.admit():
            return 0
        if worker.queue.shards_in != self._shards_in:  # the driver sends its priors with each shard
            self._shards_in = worker.queue.shards_in
            self._replan(admit_rows=True)
        elif self._left() < 1:
            self._replan()
        played = self._play(min(most, self._left()))
        self.chosen[played.proposer, played.k] += played.rounds
        who, k = played.proposer, played.k
        measured = [
            self._typical.clip(RoundShape.of(who, k, rows), self._measurement.round_s(who, k, rows, seconds))
            for rows, seconds in zip(played.running.tolist(), played.seconds.tolist(), strict=True)
        ]
        self._recent.add(played, measured, self._prefills(played))
        self._since += played.rounds
        return played.rounds

    def _play(self, most: int) -> Segment:
        """Plays the rounds for which the plan has the same K."""
        worker, plan = self.worker, self.plan
        choice = plan.choice(len(worker.rows), worker.rounds)
        if plan.explore is not None:
            most = min(most, plan.explore.unchanged(worker.rounds))
        if (explore := plan.exploring(worker.rounds)) is not None:
            return worker.play(*choice, most, catch_up=explore.catch_up_at(worker.rounds))
        return worker.play(*choice, most, same_k=lambda n: plan.k_for(n) == choice[1], least_ready=plan.least_ready)

    def _prefills(self, played: Segment) -> list[PrefillPoint]:
        """Returns the draft prefills of a segment as measured."""
        machine, measurement = self._scenario.machine, self._measurement
        return [
            PrefillPoint(forwards=1, tokens=tokens, seconds=measurement.prefill_s(machine.prefill_s(tokens, 1.0)))
            for tokens in played.prefills[played.prefills > 0].tolist()
        ]

    def _left(self) -> int:
        """Returns the rounds until the next plan."""
        return rounds_to_plan(self.worker.rounds - self._since) - self._since

    def _replan(self, *, admit_rows: bool = False) -> None:
        """Makes a new plan from the evidence so far. admit_rows: a shard has arrived."""
        self._since = 0
        recent, self._recent = self._recent, RoundLog(self._scenario, self.worker.draws)
        self._shard_log.merge(recent)
        depth, in_force, new = self.worker.queue_depth, self.plan, 0.0
        if admit_rows:
            self._driver.add(self._shard_log.evidence())
            self._shard_log = RoundLog(self._scenario, self.worker.draws)
            self._observer.use_priors(self._driver.priors)
        self._observer.add(recent.evidence(self.worker.mean_behind, self.worker.mean_left))
        if admit_rows:
            new = self._observer.admit_rows(queue_depth=depth)
        seen = self._observer.policy_inputs(queue_depth=depth, plan=None if new > MOSTLY_NEW else in_force)
        self.plan = self._policy.plan(seen)
