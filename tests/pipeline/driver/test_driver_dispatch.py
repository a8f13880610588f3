"""Tests of the driver without faults: dispatch, plans, progress, and its cost per shard."""

import dataclasses
import threading
import time
from collections import Counter

import pytest
from support.fake_pool import IDLE, FakePool, FakeWorker, RecordingDriver, driver_config, report, shards

from specpipe.core import ShardReport, SpeculationPlan
from specpipe.pipeline.driver.config import Observers
from specpipe.pipeline.driver.driver import Driver
from specpipe.pipeline.driver.progress import Progress, Speed
from specpipe.pipeline.driver.progress_tracker import EarlierProgress
from specpipe.pipeline.messages import ShardOrder, WorkerInfo
from specpipe.speculation.estimates.acceptance import MIN_WEIGHT
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.estimates.run_estimates import RunEstimates


class Recording:
    """A policy that stores its inputs."""

    max_k = 2

    def __init__(self) -> None:
        self.situations: list[PolicyInputs] = []

    def plan(self, situation: PolicyInputs) -> SpeculationPlan:
        self.situations.append(situation)
        return SpeculationPlan(ks=(2,), proposer="draft", queue_depth=situation.queue_depth, reason="recorded")


def test_queue_depth_counts_own_rows_and_a_share_of_queued_rows() -> None:
    pool, policy = FakePool(), Recording()

    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        pool.gate.wait(0.05)
        return report(order, worker.name)

    pool.behave = behave
    estimates = RunEstimates(slots=4, proposers=("draft",))
    config = driver_config(workers=1, slots=4, poll_s=0.01)
    Driver(shards(4, rows=10), pool, policy, config, estimates=estimates).run()
    assert policy.situations[-1].acceptance["draft"].weights[0] == pytest.approx(MIN_WEIGHT + 2, rel=0.01)
    assert pool.orders[-1][1].priors.acceptance["draft"].weights[0] == pytest.approx(MIN_WEIGHT + 2, rel=0.01)
    # One worker, 40 rows: nothing is done when the first two go out, 10 rows are when the third does.
    assert [round(seen.queue_depth) for seen in policy.situations] == [40, 40, 30, 20]
    assert [order.plan.queue_depth for _, order, _ in pool.orders] == [40, 40, 30, 20]


def test_finished_rows_of_running_shards_lower_the_queue_depth() -> None:
    pool, policy = FakePool(threads=2), Recording()

    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        time.sleep(0.05 if order.shard.index else 0.1)
        return report(order, worker.name)

    pool.behave = behave
    pool.on_status = lambda worker: dataclasses.replace(IDLE, rows_done=17)
    Driver(shards(3, rows=10), pool, policy, driver_config(workers=1, slots=4, poll_s=0.01)).run()
    assert policy.situations[-1].queue_depth == 30 - 17


def test_worker_holds_two_shards() -> None:
    pool = FakePool(lambda worker, order: (time.sleep(0.002), report(order, worker.name))[1])
    Driver(shards(40), pool, Recording(), driver_config(workers=3, slots=4)).run()
    assert max(len(held) for _, _, held in pool.orders) == 2
    assert sorted(order.shard.index for _, order, _ in pool.orders) == list(range(40))


def held_at_most(slots: int, count: int) -> int:
    """Returns how many of `count` shards of ten rows one worker holds; they end after the driver sends no more."""
    pool = FakePool(threads=20)
    pool.behave = lambda worker, order: (pool.gate.wait(0.1), report(order, worker.name))[1]
    Driver(shards(count), pool, Recording(), driver_config(workers=1, slots=slots, poll_s=0.01)).run()
    return max(len(held) for _, _, held in pool.orders)


@pytest.mark.parametrize(("slots", "held"), [(8, 2), (32, 5), (1000, 16)])
def test_worker_holds_enough_small_shards_to_fill_its_slots(slots: int, held: int) -> None:
    assert held_at_most(slots, held + 2) == held


def test_starting_worker_gets_its_share_of_small_shards() -> None:
    pool = FakePool(threads=20)
    all_out = threading.Barrier(12, timeout=20)

    def on_start(worker: FakeWorker) -> WorkerInfo:
        if worker.name == "worker-1":
            pool.gate.wait(0.1)
        return WorkerInfo(facts={})

    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        all_out.wait()
        return report(order, worker.name)

    pool.on_start, pool.behave = on_start, behave
    Driver(shards(12), pool, Recording(), driver_config(workers=2, slots=64, poll_s=0.01)).run()
    assert Counter(name for name, _, _ in pool.orders) == {"worker-0": 6, "worker-1": 6}


def test_no_more_workers_than_shards_are_spawned() -> None:
    pool = FakePool()
    Driver(shards(2), pool, Recording(), driver_config(workers=9, slots=4)).run()
    assert len(pool.workers) == 2


def test_warm_up_uses_the_next_shard() -> None:
    pool = FakePool()
    Driver(shards(5)[2:], pool, Recording(), driver_config(workers=1, slots=4, warm_up=True)).run()
    (warm_up,) = pool.warm_ups
    assert warm_up is not None
    assert warm_up.shard.index == 2


def test_progress_includes_earlier_starts() -> None:
    seen: list[Progress] = []
    earlier = EarlierProgress(shards=3, rows=30, failed_rows=2, input_tokens=60, output_tokens=90)
    config = driver_config(workers=2, slots=4)
    Driver(
        shards(5)[3:], FakePool(), Recording(), config, earlier=earlier, observers=Observers(progress=seen.append)
    ).run()
    assert (seen[0].done_rows, seen[0].total_rows) == (30, 50)
    assert (seen[-1].done_rows, seen[-1].published_shards, seen[-1].failed_rows) == (50, 5, 2)
    assert (seen[-1].input_tokens, seen[-1].output_tokens) == (60, 90)


def test_no_shards_spawn_no_worker() -> None:
    pool = FakePool()
    Driver([], pool, Recording(), driver_config(workers=2, slots=4)).run()
    assert pool.workers == []


def test_speed_covers_only_its_window() -> None:
    speed = Speed(window_s=10)
    assert speed.per_second == 0.0
    for second in range(100):
        speed.add(second, 5 * min(second, 50))
    assert speed.per_second == 0.0
    speed.add(100, 250 + 110)
    assert speed.per_second == pytest.approx(110 / 10, rel=0.2)


def cost_per_shard(workers: int, count: int) -> float:
    pool, work = FakePool(), shards(count)
    driver = RecordingDriver(work, pool, Recording(), driver_config(workers=workers, slots=64))
    began = time.process_time()
    driver.run()
    assert len(driver.published) == count
    return (time.process_time() - began) / count


def test_shard_costs_under_a_millisecond_with_a_thousand_workers() -> None:
    assert cost_per_shard(1000, 2000) < 1e-3


@pytest.mark.slow
def test_cost_per_shard_does_not_grow_with_workers() -> None:
    few, many = cost_per_shard(100, 40_000), cost_per_shard(10_000, 40_000)
    assert many < 5e-4
    assert many < 4 * few
