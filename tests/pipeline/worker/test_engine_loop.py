import threading
import time
from typing import Any

import pytest
from support.fake_engine import FakeEngine, token_at
from support.fake_workers import wait_for

from specpipe.core import EngineConfig, Request, SamplingParams, SpeculationPlan, StepReport
from specpipe.pipeline.failures import EngineError
from specpipe.pipeline.worker.engine_loop import EngineLoop
from specpipe.pipeline.worker.engine_steps import WARM_UP_SHARD
from specpipe.speculation.policies.fixed import Fixed
from specpipe.speculation.tuner import Tuner
from specpipe.telemetry.timeline_sampler import TimelineSampler

CONFIG = EngineConfig(slots=3, max_model_len=100, max_k=4, proposer="draft")
PLAN = SpeculationPlan(ks=(2,), proposer="draft", queue_depth=3.0, reason="test")


def requests(shard: int, count: int, tokens: int = 7) -> list[Request]:
    return [
        Request(
            request_id=str(row), shard=shard, row=row, prompt="p", prompt_token_ids=(1, 2, 3),
            sampling=SamplingParams(max_new_tokens=tokens), seed=100 * shard + row,
        )
        for row in range(count)
    ]  # fmt: skip


def loop_of(engine: FakeEngine) -> EngineLoop:
    tuner = Tuner(Fixed(k=2, proposer="draft"), slots=3, proposers=("draft",))
    return EngineLoop(engine, TimelineSampler(worker="w", epoch=1), tuner)


def engine(**settings: Any) -> FakeEngine:
    return FakeEngine(CONFIG, **settings)


class RecordingEngine(FakeEngine):
    """Keeps the seconds of its reports."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.seconds: list[float] = []

    def step(self) -> StepReport | None:
        report = super().step()
        if report is not None:
            self.seconds.append(report.seconds)
        return report


class LosingEngine(FakeEngine):
    """Has nothing to do, whatever rows it was given."""

    def step(self) -> StepReport | None:
        return None


def test_concurrent_shards_get_their_own_rows() -> None:
    loop = loop_of(engine(step_s=0.001))
    results: dict[int, list[tuple[int, ...]]] = {}

    def run(shard: int) -> None:
        completions, _ = loop.run(shard, requests(shard, 5), PLAN, None)
        results[shard] = [completion.token_ids for completion in completions]

    threads = [threading.Thread(target=run, args=(shard,)) for shard in (4, 5, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    loop.close()
    for shard in (4, 5, 6):
        expected = [tuple(token_at(100 * shard + row, i) for i in range(7)) for row in range(5)]
        assert results[shard] == expected


def test_seconds_of_shards_sum_to_those_of_the_engine() -> None:
    fake = RecordingEngine(CONFIG)
    loop = loop_of(fake)
    meters = []
    threads = [
        threading.Thread(target=lambda shard=shard: meters.append(loop.run(shard, requests(shard, 6), PLAN, None)[1]))
        for shard in (1, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    loop.close()
    busy = [
        meter.record(
            run_id="r", shard=1, attempt=1, epoch=1, worker="w", plan=PLAN, synthetic=False, started_at=0,
            finished_at=1, load_s=0,
        ).busy_s
        for meter in meters
    ]  # fmt: skip
    assert sum(busy) == pytest.approx(sum(fake.seconds))


def test_engine_error_fails_waiting_and_later_shards() -> None:
    loop = loop_of(engine(fail_at_step=3))
    errors: list[BaseException] = []

    def run(shard: int) -> None:
        try:
            loop.run(shard, requests(shard, 4, tokens=50), PLAN, None)
        except EngineError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(shard,)) for shard in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(errors) == 2
    assert "illegal memory access" in str(errors[0])
    with pytest.raises(EngineError, match="illegal memory access"):
        loop.run(3, requests(3, 1), PLAN, None)


def test_engine_that_loses_rows_raises_instead_of_hanging() -> None:
    with pytest.raises(EngineError, match=r"owes rows of shards \[1\]"):
        loop_of(LosingEngine(CONFIG)).run(1, requests(1, 2), PLAN, None)


def test_shard_without_rows_returns_at_once() -> None:
    loop = loop_of(engine())
    completions, meter = loop.run(1, [], PLAN, None)
    assert completions == []
    loop.close()
    assert meter is not None


def test_close_fails_shards_in_flight() -> None:
    loop = loop_of(engine(step_s=0.01))
    threading.Timer(0.05, loop.close).start()
    with pytest.raises(EngineError, match="stopped"):
        loop.run(1, requests(1, 3, tokens=90), PLAN, None)


def test_status_counts_rows_and_shows_a_hanging_step() -> None:
    fake = engine(step_s=0.1)
    loop = loop_of(fake)
    thread = threading.Thread(target=loop.run, args=(1, requests(1, 2, tokens=3), PLAN, None))
    thread.start()
    wait_for(lambda: loop.status(after=0).in_step_s > 0.05)
    thread.join(20)
    status = loop.status(after=0, final=True)
    loop.close()
    assert (status.rows_done, status.output_tokens, status.running) == (2, 6, 0)
    assert sum(sample.output_tokens for sample in status.samples) == 6


def test_warm_up_is_not_counted() -> None:
    loop = loop_of(engine())
    loop.run(WARM_UP_SHARD, requests(WARM_UP_SHARD, 4), PLAN, None)
    status = loop.status(after=0, final=True)
    assert (status.rows_done, status.output_tokens, status.drafts, status.samples) == (0, 0, 0, ())
    began = time.monotonic()
    loop.close()
    assert time.monotonic() - began < 2
