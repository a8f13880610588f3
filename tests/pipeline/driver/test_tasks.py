"""Order of shards: groups of prompts that begin alike stay on one worker, and no worker stands idle for them."""

from specpipe.core import Shard
from specpipe.pipeline.driver.tasks import TaskQueue

WORKERS = {"a", "b", "c"}


def queue(continued: set[int], shards: int = 8, missing: int | None = None) -> TaskQueue:
    """Returns a queue of shards of ten rows each, of which the `continued` share prompts with the shard before."""
    return TaskQueue(
        Shard(index=i, file="f", start=10 * i, stop=10 * i + 10, first_row=10 * i, continues=i in continued)
        for i in range(shards)
        if i != missing
    )


def taken(tasks: TaskQueue, workers: str) -> list[int]:
    """Returns the shards that workers take one after the other."""
    found = [tasks.take(worker=worker, idle=False, workers=WORKERS) for worker in workers]
    return [-1 if task is None else task.shard.index for task in found]


def test_shards_without_common_prompts_are_taken_in_order() -> None:
    assert taken(queue(set()), "abcaabbcc") == [0, 1, 2, 3, 4, 5, 6, 7, -1]


def test_workers_go_on_with_their_group_before_they_begin_another() -> None:
    tasks = queue({1, 2, 4, 5, 7})  # groups 0-2, 3-5, 6-7
    assert taken(tasks, "abcabcab") == [0, 3, 6, 1, 4, 7, 2, 5]
    assert (len(tasks), tasks.rows, tasks.first) == (0, 0, None)


def test_idle_workers_take_from_the_longest_group() -> None:
    tasks = queue(set(range(1, 8)) - {6})  # groups 0-5 and 6-7
    assert taken(tasks, "abcc") == [0, 6, 1, 2]
    assert tasks.first is not None
    assert (tasks.first.index, len(tasks), tasks.rows) == (3, 4, 40)
    assert taken(tasks, "bbbbb") == [7, 3, 4, 5, -1]


def test_a_published_shard_in_the_middle_begins_a_new_group() -> None:
    assert taken(queue(set(range(1, 8)), missing=4), "abab") == [0, 5, 1, 6]


def test_retries_come_before_groups() -> None:
    tasks = queue({1, 2})
    failed = tasks.take(worker="a", idle=False, workers=WORKERS)
    assert failed is not None
    tasks.retry(failed, worker="a", suspect=False)
    assert (tasks.rows, len(tasks)) == (80, 8)
    assert taken(tasks, "aba") == [1, 0, 2]
