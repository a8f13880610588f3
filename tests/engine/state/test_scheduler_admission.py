"""Number of rows admitted at once: several where there are many slots, so that they share a prefill."""

from __future__ import annotations

import pytest
from support.engines import PlainDecoder, make_requests, plan

from specpipe.core import EngineConfig
from specpipe.engine.state.page_allocator import PageAllocator
from specpipe.engine.state.scheduler import Scheduler


def full_scheduler(slots: int, waiting: int) -> Scheduler:
    """Returns a scheduler without a free slot and with so many rows waiting."""
    config = EngineConfig(slots=slots, max_model_len=96, page_size=16)
    scheduler = Scheduler(config, PageAllocator(8 * slots), PlainDecoder(), lookahead=8)
    scheduler.submit(make_requests(slots + waiting, vocab_size=320), plan(0))
    assert len(scheduler.admit()) == slots
    return scheduler


def end_row(scheduler: Scheduler) -> int:
    """Releases the oldest row and returns the number of rows admitted then."""
    scheduler.release(next(iter(scheduler.rows.values())))
    return len(scheduler.admit())


@pytest.mark.parametrize(("slots", "together"), [(3, 1), (16, 1), (31, 1), (33, 2), (48, 3)])
def test_rows_are_admitted_a_sixteenth_of_slots_at_once(slots: int, together: int) -> None:
    scheduler = full_scheduler(slots, waiting=12)
    assert [end_row(scheduler) for _ in range(2 * together)] == [*[0] * (together - 1), together] * 2


def test_the_last_rows_do_not_wait_for_more_slots() -> None:
    scheduler = full_scheduler(48, waiting=2)
    assert [end_row(scheduler) for _ in range(2)] == [0, 2]


def test_an_empty_engine_admits_any_number_of_rows() -> None:
    scheduler = full_scheduler(48, waiting=1)
    for row in list(scheduler.rows.values()):
        scheduler.release(row)
    assert len(scheduler.admit()) == 1
