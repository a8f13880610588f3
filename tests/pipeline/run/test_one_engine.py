"""Shards on one engine through driver, worker steps and tuner, on the calling thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.fake_engine import FakeEngine, token_at

from specpipe.core import Completion, CostPoint, EngineConfig, Profile, Request, SamplingParams, StepReport
from specpipe.pipeline.run.one_engine import OneEngine
from specpipe.pipeline.worker.engine_steps import EngineSteps
from specpipe.speculation.estimates.acceptance import MIN_WEIGHT
from specpipe.speculation.estimates.run_estimates import RunEstimates
from specpipe.speculation.policies.fixed import Fixed
from specpipe.speculation.tuner import Tuner
from specpipe.telemetry.timeline_sampler import TimelineSampler

SLOTS = 3
PROFILE = Profile(rounds=(CostPoint(proposer="none", k=0, running=1, context=9.0, rounds=5, seconds=1.0),))


def shards(count: int, rows: int) -> list[list[Request]]:
    return [
        [
            Request(
                request_id=f"{shard}-{row}", shard=shard, row=row, prompt="p", prompt_token_ids=(1, 2, 3),
                sampling=SamplingParams(max_new_tokens=7), seed=100 * shard + row,
            )
            for row in range(rows)
        ]
        for shard in range(count)
    ]  # fmt: skip


class Loop:
    """OneEngine over a fake engine, with everything that ended."""

    def __init__(self, **settings: Any) -> None:
        self.engine = FakeEngine(EngineConfig(slots=SLOTS, max_model_len=100, max_k=4, proposer="draft"))
        policy = Fixed(k=2, proposer="draft")
        tuner = Tuner(policy, slots=SLOTS, proposers=("draft",))
        self.estimates = RunEstimates(slots=SLOTS, proposers=("draft",))
        self.ended: list[Completion] = []
        self.waiting: list[int] = []
        steps = EngineSteps(self.engine, TimelineSampler(worker="w", epoch=0), tuner)
        self.one = OneEngine(
            steps, policy, self.estimates, slots=SLOTS, profile=PROFILE, on_step=self.observe, **settings
        )

    def observe(self, step: StepReport) -> None:
        self.ended += step.completions
        self.waiting.append(step.waiting)


def test_every_row_of_every_shard_ends_once() -> None:
    loop = Loop()
    threads = threading.active_count()
    loop.one.run(shards(7, 5))
    expected = {(s, r): tuple(token_at(100 * s + r, i) for i in range(7)) for s in range(7) for r in range(5)}
    assert {(c.request.shard, c.request.row): c.token_ids for c in loop.ended} == expected
    assert len(loop.ended) == 35 and threading.active_count() == threads
    assert max(loop.waiting) < 20, "a worker holds some shards, not all"


def test_estimates_are_kept_from_one_run_to_the_next() -> None:
    loop = Loop()
    for runs in (1, 2):
        loop.one.run(shards(2, 4))
        assert len(loop.ended) == runs * 8
    inputs = loop.estimates.policy_inputs("worker-0", queue_depth=1.0)
    assert inputs.acceptance["draft"].weights[0] > MIN_WEIGHT and inputs.output_tokens == 7
    assert loop.estimates.hardware("worker-0") == "engine, "


def test_shard_that_has_not_arrived_waits() -> None:
    seen: list[int] = []
    loop = Loop(may_arrive=lambda: loop.engine.running == 0)
    loop.one.run(shards(3, SLOTS))
    seen = [completion.request.shard for completion in loop.ended]
    assert seen == sorted(seen) and len(seen) == 3 * SLOTS
    assert max(loop.waiting) <= SLOTS


def test_failure_of_the_engine_is_raised() -> None:
    loop = Loop()
    loop.engine._fail_at_step = 3
    with pytest.raises(RuntimeError, match="illegal memory access"):
        loop.one.run(shards(2, 4))
