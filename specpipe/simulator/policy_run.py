"""A driver and a worker under a policy, over simulated rounds."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np

from specpipe.arrays import Array
from specpipe.core import CostPoint, PrefillPoint, Profile
from specpipe.simulator.oracle import RoundChoice
from specpipe.simulator.round_log import RoundLog
from specpipe.simulator.scenarios import Scenario
from specpipe.simulator.segment import Segment
from specpipe.simulator.simulated_worker import SimulatedWorker
from specpipe.speculation.estimates.cost_table import CostTable
from specpipe.speculation.estimates.evidence_log import RoundShape, TypicalRounds
from specpipe.speculation.estimates.observer import WORKER_HALF_LIFE, Observer, Priors
from specpipe.speculation.estimates.profiled_rounds import PROFILED_CONTEXT, rounds_to_profile
from specpipe.speculation.policies.policy import Policy
from specpipe.speculation.tuner import MOSTLY_NEW, REPLAN_ROUNDS, rounds_to_plan

_NOISE = 0.03  # standard deviation of measured seconds, log-normal
_HICCUP = 0.002  # share of rounds that are measured three times as long
_AT_ONCE = 512  # rounds whose noise is drawn together
_PROFILED_PREFILLS = (16, 128, 1024)  # tokens


class Noise:
    """Measurement noise: the same factors for the same rounds, in segments of any length."""

    def __init__(self, seed: list[int]) -> None:
        self._rng = np.random.default_rng(seed)
        self._factors = np.empty(0)

    def of(self, seconds: Array) -> Array:
        """Returns seconds [m] of the next rounds as measured."""
        while len(self._factors) < len(seconds):
            drawn = np.exp(_NOISE * self._rng.standard_normal(_AT_ONCE))
            drawn[self._rng.random(_AT_ONCE) < _HICCUP] *= 3.0
            self._factors = np.concatenate([self._factors, drawn])
        now, self._factors = np.split(self._factors, [len(seconds)])
        return seconds * now


class PolicyRun:
    """Steps a simulated driver and worker from plan to plan."""

    def __init__(self, scenario: Scenario, worker: SimulatedWorker, policy: Policy) -> None:
        self._scenario, self.worker, self._policy = scenario, worker, policy
        self._noise, self._prefill_noise = Noise([scenario.seed, 1]), Noise([scenario.seed, 2])
        names, slots = scenario.proposers, scenario.slots
        observer = partial(
            Observer,
            slots=slots,
            proposers=names,
            output_tokens=float(scenario.output.max()),
            prefill_budget=scenario.prefill_budget,
        )
        self._driver, self._observer = observer(), observer(half_life=WORKER_HALF_LIFE)
        self._observer.use_priors(Priors(costs=CostTable().with_profile(self._profile())))
        self._recent, self._shard_log = RoundLog(scenario, worker.draws), RoundLog(scenario, worker.draws)
        self._typical = TypicalRounds()
        self.chosen: Counter[RoundChoice] = Counter()
        """Rounds by proposer and K."""
        self._shards_in = 0
        self._since = 0
        self.plan = policy.plan(self._observer.policy_inputs(queue_depth=worker.queue_depth, plan=None))

    def _profile(self) -> Profile:
        """Returns the start-up profile of the worker, with one measurement error per point."""
        scenario, machine, context = self._scenario, self._scenario.machine, float(PROFILED_CONTEXT)
        shapes = rounds_to_profile(scenario.slots, scenario.max_k, scenario.proposers)
        timed = self._off(np.array([machine.profiled(who, k, rows, context) for rows, who, k in shapes]))
        prefills = self._off(np.array([machine.prefill_s(tokens, 1.0) for tokens in _PROFILED_PREFILLS]))
        return Profile(
            rounds=tuple(
                CostPoint(proposer=who, k=k, running=rows, context=context, rounds=5, seconds=5 * seconds)
                for (rows, who, k), seconds in zip(shapes, timed.tolist(), strict=True)
            ),
            draft_prefills=tuple(
                PrefillPoint(forwards=1, tokens=tokens, seconds=seconds)
                for tokens, seconds in zip(_PROFILED_PREFILLS, prefills.tolist(), strict=True)
            ),
        )

    def _off(self, seconds: Array) -> Array:
        """Returns seconds with the errors of a profile, which measures a few rounds without load."""
        random = np.random.default_rng([self._scenario.seed, 3])
        return seconds * np.exp(_NOISE * random.standard_normal(len(seconds)))

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
        noisy = self._noise.of(played.seconds).tolist()
        measured = [
            self._typical.clip(RoundShape.of(played.proposer, played.k, running), seconds)
            for running, seconds in zip(played.running.tolist(), noisy, strict=True)
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
        tokens = played.prefills[played.prefills > 0]
        if not len(tokens):
            return []
        took = self._prefill_noise.of(self._scenario.machine.prefill_s(tokens.astype(float), np.ones(len(tokens))))
        return [
            PrefillPoint(forwards=1, tokens=count, seconds=seconds)
            for count, seconds in zip(tokens.tolist(), took.tolist(), strict=True)
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
