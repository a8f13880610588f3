"""Tests of workers that join and leave during a run, and of backup copies of slow shards."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from support.fake_pool import IDLE, FakePool, FakeWorker, RecordingDriver, at_once, driver_config, report, shards

from specpipe.core import ShardReport
from specpipe.pipeline.driver.config import Observers
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.failures import EngineError, ShardError
from specpipe.pipeline.messages import ShardOrder, WorkerInfo
from specpipe.speculation.policies.fixed import Fixed


def drive(pool: FakePool, count: int, *, observers: Observers | None = None, **config: object) -> RecordingDriver:
    settings = driver_config(**{"workers": 2, "poll_s": 0.01, **config})
    return RecordingDriver(shards(count), pool, Fixed(), settings, observers=observers)


# workers that the cluster has no room for


def test_unplaced_worker_is_reported_and_joins_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specpipe.pipeline.driver.driver._UNPLACED_WARNING_S", 0.05)
    pool, room, seen = FakePool(threads=3), Future[None](), []

    def on_start(worker: FakeWorker) -> WorkerInfo:
        room.result(20)  # Ray starts nothing before it has a place for it
        return WorkerInfo(facts={})

    def watch(progress: Progress) -> None:
        seen.append((progress.workers, progress.starting, progress.unplaced))
        if len(seen) == 20:
            room.set_result(None)

    pool.on_start, pool.on_place = on_start, lambda worker: room
    with caplog.at_level(logging.WARNING):
        driver = drive(pool, 6, observers=Observers(progress=watch))
        driver.run()
    assert seen[0] == (0, 0, 2)
    assert seen[-1][2] == 0
    assert driver.published == list(range(6))
    assert "no worker has found room in the cluster" in caplog.text


def test_worker_that_joins_late_takes_its_share() -> None:
    pool, room = FakePool(threads=3), Future[None]()

    def on_start(worker: FakeWorker) -> WorkerInfo:
        if worker.name == "worker-1":
            room.result(20)
        return WorkerInfo(facts={})

    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        time.sleep(0.005)
        if order.shard.index == 20:
            room.set_result(None)
        return report(order, worker.name)

    pool.behave, pool.on_start = behave, on_start
    pool.on_place = lambda worker: room if worker.name == "worker-1" else at_once()
    driver = drive(pool, 60)
    driver.run()
    assert driver.published == list(range(60))
    assert 5 < sum(name == "worker-1" for name, _, _ in pool.orders) < 40


def test_workers_that_leave_repeatedly_lose_no_shard() -> None:
    """A spot cluster: every tenth shard takes its worker with it."""
    gone: set[int] = set()

    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        if order.shard.index % 10 == 3 and order.shard.index not in gone:
            gone.add(order.shard.index)
            raise EngineError("the node was taken away")
        return report(order, worker.name)

    pool = FakePool(behave, threads=2)
    driver = drive(pool, 200, workers=3)
    assert not driver.run().failed
    assert driver.published == list(range(200))
    assert len(pool.workers) > 15


# the last shards


def slow_first_attempt(pool: FakePool, shard: int) -> Callable[[FakeWorker, ShardOrder], ShardReport]:
    """The first attempt at one shard takes until the others are long done."""

    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        if order.shard.index == shard and order.attempt == 1:
            pool.gate.wait(0.4)
        return report(order, worker.name)

    return behave


def test_slow_last_shard_gets_a_backup_and_first_report_counts() -> None:
    pool = FakePool(threads=4)
    pool.behave = slow_first_attempt(pool, 3)
    driver = drive(pool, 4, backup_s=0.05)
    began = time.monotonic()
    result = driver.run()
    assert time.monotonic() - began < 0.35
    pool.gate.set()
    assert driver.published == [0, 1, 2, 3]
    assert result.maybe_published == {3}
    (slow, copy) = [(name, order.attempt) for name, order, _ in pool.orders if order.shard.index == 3]
    assert slow[0] != copy[0]
    assert (slow[1], copy[1]) == (1, 2)


@pytest.mark.parametrize("error", [ShardError("disk full"), EngineError("killed")])
def test_running_backup_replaces_a_failed_attempt(error: Exception) -> None:
    pool = FakePool(threads=4)

    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        if order.shard.index == 1:
            pool.gate.wait(0.15 if order.attempt == 1 else 0.3)
            if order.attempt == 1:
                raise error
        return report(order, worker.name)

    pool.behave = behave
    driver = drive(pool, 2, backup_s=0.02, max_attempts=2)
    assert not driver.run().failed
    assert driver.published == [0, 1]
    assert [order.attempt for _, order, _ in pool.orders if order.shard.index == 1] == [1, 2]


def test_shard_gets_one_backup_after_the_queue_is_empty() -> None:
    pool = FakePool(threads=6)
    pool.behave = slow_first_attempt(pool, 0)
    driver = drive(pool, 30, workers=4, backup_s=0.05)
    driver.run()
    pool.gate.set()
    tried = [order.shard.index for _, order, _ in pool.orders]
    assert tried.count(0) == 2
    assert tried.index(0) == 0 and tried[-1] == 0


def test_notes_of_a_hung_worker_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    import dataclasses

    pool = FakePool(threads=4)

    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        if worker.name == "worker-0":
            pool.gate.wait(20)
        return report(order, worker.name)

    hung = dataclasses.replace(IDLE, in_step_s=9.0, notes=("one engine step takes 9 s:\nthread engine: round.py",))
    pool.behave, pool.on_status = behave, lambda worker: hung if worker.name == "worker-0" else IDLE
    with caplog.at_level(logging.WARNING):
        driver = drive(pool, 4, stall_seconds=5.0)
        driver.run()
    pool.gate.set()
    assert driver.published == [0, 1, 2, 3]
    assert "worker-0: one engine step takes 9 s:\nthread engine: round.py" in caplog.text
    assert "worker-0 is lost: one engine step has taken 9 s" in caplog.text
