"""Tests of dispatch with a simulated clock."""

from __future__ import annotations

from support.fake_pool import FakePool, driver_config, shards

from specpipe.core import SpeculationPlan
from specpipe.pipeline.driver.dispatcher import Dispatched, Dispatcher
from specpipe.pipeline.driver.fleet import Fleet, Member
from specpipe.pipeline.driver.tasks import TaskQueue
from specpipe.pipeline.messages import WorkerInfo
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.estimates.run_estimates import RunEstimates


class Counting:
    max_k = 2

    def __init__(self) -> None:
        self.plans = 0

    def plan(self, situation: PolicyInputs) -> SpeculationPlan:
        self.plans += 1
        return SpeculationPlan(ks=(2,), proposer="draft", queue_depth=situation.queue_depth, reason="counted")


class Hall:
    """Ready workers whose shards never end by themselves."""

    def __init__(self, workers: int, tasks: TaskQueue) -> None:
        self.now = 1000.0
        pool = FakePool(lambda worker, order: None)
        self.tasks, self.policy, self.fleet = tasks, Counting(), Fleet(pool, lambda: self.now)
        estimates = RunEstimates(slots=4, proposers=())
        config = driver_config(workers=workers, backup_s=10.0)
        self.dispatcher = Dispatcher(tasks, self.fleet, self.policy, estimates, config, lambda: self.now)
        self.members = [self.fleet.spawn(index) for index in range(workers)]
        for member in self.members:
            self.fleet.add_ready(member, WorkerInfo(facts={}))
            self.dispatcher.mark_available(member)

    def dispatch(self) -> list[tuple[str, int]]:
        return [(sent.member.name, sent.task.shard.index) for sent in self.dispatcher.dispatch()]

    def finish(self, member: Member) -> None:
        """All that it holds."""
        for task in list(member.tasks.values()):
            self.fleet.release(member, task, finished=True)
            self.dispatcher.finished(member, task)
        self.dispatcher.mark_available(member)


def test_plans_within_a_window_are_shared() -> None:
    hall = Hall(1, TaskQueue(shards(3)))
    for _ in range(100):
        hall.dispatcher.plan(hall.members[0])
    assert hall.policy.plans == 20
    hall.now += 0.2
    hall.dispatcher.plan(hall.members[0])
    assert hall.policy.plans == 21, "a moment later it looks again"


def test_suspect_waits_for_one_worker_while_others_continue() -> None:
    hall = Hall(3, TaskQueue(shards(20)))
    hall.dispatch()
    first, second, third = hall.members
    (suspect, *_) = second.tasks.values()
    hall.fleet.release(second, suspect, finished=False)
    hall.tasks.retry(suspect, worker=second.name, suspect=True)
    for member in hall.members:
        for task in list(member.tasks.values())[1:]:
            hall.fleet.release(member, task, finished=True)
        hall.dispatcher.mark_available(member)

    sent = hall.dispatch()

    assert [name for name, _ in sent] == [second.name, third.name], "the first waits for the suspect"
    hall.finish(first)
    assert hall.dispatch() == [(first.name, suspect.shard.index)] and first.runs_suspect


def test_backup_waits_for_the_mean_shard_duration() -> None:
    hall = Hall(2, TaskQueue(shards(3)))
    slow, quick = hall.members
    assert hall.dispatch() == [(slow.name, 0), (slow.name, 1), (quick.name, 2)]
    hall.now += 100
    hall.finish(quick)  # the mean is 100 s now

    def copies() -> list[Dispatched]:
        return list(hall.dispatcher.dispatch_backups())

    assert not copies(), "both have been running for no longer than that"
    hall.now += 1
    (copy,) = copies()
    assert (copy.member, copy.task.shard.index, copy.task.attempt) == (quick, 0, 2)
    assert hall.dispatcher.maybe_published == {0}
