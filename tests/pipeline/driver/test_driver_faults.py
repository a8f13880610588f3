"""Tests of the driver when shards fail and workers die."""

import os
import signal
import threading

import pytest
from support.fake_pool import IDLE, FakePool, FakeWorker, RecordingDriver, driver_config, report, shards

from specpipe.core import ShardReport
from specpipe.errors import MachineError, ModelError, OutputError, SpecpipeError
from specpipe.pipeline.failures import EngineError, ShardError, StaleRunError
from specpipe.pipeline.interrupts import drain_on_interrupt
from specpipe.pipeline.messages import ShardOrder, WorkerInfo
from specpipe.speculation.policies.fixed import Fixed


def drive(pool: FakePool, count: int = 6, workers: int = 2, **config: object) -> RecordingDriver:
    return RecordingDriver(shards(count), pool, Fixed(), driver_config(workers=workers, **{"poll_s": 0.01, **config}))


def test_failed_shard_is_retried_on_another_worker() -> None:
    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        if order.shard.index == 2 and order.attempt == 1:
            raise ShardError("disk full")
        return report(order, worker.name)

    pool = FakePool(behave)
    driver = drive(pool)
    assert not driver.run().failed
    assert driver.published == list(range(6))
    tried = [(name, order.attempt) for name, order, _ in pool.orders if order.shard.index == 2]
    assert [attempt for _, attempt in tried] == [1, 2]
    assert tried[0][0] != tried[1][0]


def test_single_worker_retries_its_own_failed_shard() -> None:
    failures = iter([ShardError("a"), ShardError("b")])

    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        if order.shard.index == 0 and (error := next(failures, None)):
            raise error
        return report(order, worker.name)

    driver = drive(FakePool(behave), workers=1)
    driver.run()
    assert driver.published == list(range(6))


def test_shard_that_always_fails_does_not_end_the_run() -> None:
    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        if order.shard.index == 1:
            raise ShardError(f"attempt {order.attempt} failed")
        return report(order, worker.name)

    driver = drive(FakePool(behave), max_attempts=3)
    result = driver.run()
    assert result.failed == {1: "attempt 3 failed"}
    assert driver.published == [0, 2, 3, 4, 5]


def test_dead_worker_is_replaced_and_its_shards_rerun() -> None:
    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        if worker.name == "worker-0":
            raise EngineError("CUDA error")
        return report(order, worker.name)

    pool = FakePool(behave)
    driver = drive(pool)
    driver.run()
    assert driver.published == list(range(6))
    assert {worker.name for worker in pool.workers} == {"worker-0", "worker-1", "worker-0.2"}
    assert all(worker.stopped for worker in pool.workers)


def test_crashing_shard_is_retried_alone_on_a_worker() -> None:
    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        if order.shard.index == 3:
            raise EngineError("illegal memory access")
        return report(order, worker.name)

    pool = FakePool(behave)
    driver = drive(pool, count=9, workers=1, in_flight=3)
    result = driver.run()
    assert set(result.failed) == {3}
    assert driver.published == [0, 1, 2, 4, 5, 6, 7, 8]
    company = [held for _, order, held in pool.orders if order.shard.index == 3 and order.attempt > 1]
    assert company == [(3,), (3,)]


def test_too_many_dead_workers_end_the_run() -> None:
    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        raise EngineError("CUDA out of memory")

    pool = FakePool(behave)
    with pytest.raises(EngineError, match=r"6 workers died in a row.*CUDA out of memory"):
        drive(pool, count=100, workers=2, max_attempts=99).run()
    assert all(worker.stopped for worker in pool.workers)


def test_too_many_failed_attempts_end_the_run() -> None:
    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        raise ShardError("no space left on device")

    with pytest.raises(SpecpipeError, match="24 attempts at shards failed in a row"):
        drive(FakePool(behave), count=1000).run()


@pytest.mark.parametrize("error", [ModelError("no such model"), MachineError("no GPU"), OutputError("no probe file")])
def test_error_of_the_only_workers_ends_the_run(error: SpecpipeError) -> None:
    def on_start(worker: FakeWorker) -> WorkerInfo:
        raise error

    with pytest.raises(type(error), match=str(error)):
        drive(FakePool(on_start=on_start)).run()


def test_worker_that_cannot_start_is_dropped() -> None:
    pool = FakePool(threads=2)

    def on_start(worker: FakeWorker) -> WorkerInfo:
        if worker.name == "worker-0":
            raise OutputError("does not see the output folder")
        return WorkerInfo(facts={})

    pool.on_start = on_start
    driver = drive(pool)
    driver.run()
    assert driver.published == list(range(6))
    assert {worker.name for worker in pool.workers} == {"worker-0", "worker-1"}


def test_index_whose_workers_only_die_is_given_up() -> None:
    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        if worker.name.startswith("worker-0"):
            raise EngineError("CUDA error: uncorrectable ECC error")
        return report(order, worker.name)

    pool = FakePool(behave)
    driver = drive(pool, count=200, max_attempts=9)
    driver.run()
    assert driver.published == list(range(200))
    assert [worker.name for worker in pool.workers if worker.name.startswith("worker-0")] == [
        "worker-0", "worker-0.2", "worker-0.3",
    ]  # fmt: skip


def test_newer_start_ends_the_older_run() -> None:
    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        raise StaleRunError("a newer start owns the folder")

    with pytest.raises(StaleRunError):
        drive(FakePool(behave)).run()


def test_hung_worker_is_replaced() -> None:
    pool = FakePool(threads=4)

    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        if worker.name == "worker-0":
            pool.gate.wait(20)
        return report(order, worker.name)

    pool.behave = behave
    pool.on_status = lambda worker: None if worker.name == "worker-0" else IDLE
    driver = drive(pool, stall_seconds=0.1)
    driver.run()
    pool.gate.set()
    assert driver.published == list(range(6))
    assert pool.workers[0].stopped
    held = {order.shard.index for worker, order, _ in pool.orders if worker == "worker-0"}
    assert held and driver.result.maybe_published == held  # it may have published what it held, after all


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_interrupt_lets_running_shards_publish(number: signal.Signals) -> None:
    pool = FakePool()

    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        if order.shard.index == 1:
            os.kill(os.getpid(), number)
            pool.gate.wait(0.2)
        return report(order, worker.name)

    pool.behave = behave
    driver = drive(pool, count=50, workers=1)
    with drain_on_interrupt(driver.drain):
        result = driver.run()
    assert result.interrupted
    assert driver.published == sorted(order.shard.index for _, order, _ in pool.orders)
    assert len(pool.orders) < 5


def test_second_interrupt_aborts() -> None:
    pool = FakePool()

    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        os.kill(os.getpid(), signal.SIGINT)
        pool.gate.wait(0.2)
        os.kill(os.getpid(), signal.SIGINT)
        pool.gate.wait(0.2)
        return report(order, worker.name)

    pool.behave = behave
    driver = drive(pool, count=50, workers=1)
    with pytest.raises(KeyboardInterrupt), drain_on_interrupt(driver.drain):
        driver.run()
    assert pool.workers[0].stopped
    pool.behave = lambda worker, order: report(order, worker.name)


def test_signal_handlers_are_restored_and_unset_in_threads() -> None:
    before = signal.getsignal(signal.SIGINT)
    with drain_on_interrupt(lambda: None):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
    seen = []

    def in_thread() -> None:
        with drain_on_interrupt(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert seen == [before]
