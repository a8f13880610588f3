"""Order in which rows get slots: by submission, and within one the longest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.engines import PlainDecoder, generate, make_engine, make_requests, plan, run, slow

from specpipe.core import EngineConfig, Request
from specpipe.engine.state.page_allocator import PageAllocator
from specpipe.engine.state.scheduler import Scheduler

LIMITS = (2, 20, 5, 20, 3, 11, 2, 17, 4)


def with_limits(requests: Sequence[Request], limits: Sequence[int]) -> list[Request]:
    return [replace(r, sampling=replace(r.sampling, max_new_tokens=n)) for r, n in zip(requests, limits, strict=True)]


def admitted(scheduler: Scheduler) -> list[int]:
    """Returns rows in the order in which they get the only slot."""
    order = []
    while admissions := scheduler.admit():
        order += [a.request.row for a in admissions]
        scheduler.check_integrity()
        for row in list(scheduler.rows.values()):
            scheduler.release(row)
    return order


def test_longest_rows_of_a_submission_start_first() -> None:
    config = EngineConfig(slots=1, max_model_len=96, page_size=16)
    scheduler = Scheduler(config, PageAllocator(20), PlainDecoder(), lookahead=8)
    requests = with_limits(make_requests(9, vocab_size=320), LIMITS)
    scheduler.submit(requests[:5], plan(0))
    scheduler.submit(requests[5:], plan(0))
    assert admitted(scheduler) == [1, 3, 2, 4, 0, 7, 5, 8, 6]


def test_rows_of_equal_limit_keep_their_order() -> None:
    config = EngineConfig(slots=1, max_model_len=96, page_size=16)
    scheduler = Scheduler(config, PageAllocator(20), PlainDecoder(), lookahead=8)
    scheduler.submit(make_requests(9, vocab_size=320), plan(0))
    assert admitted(scheduler) == list(range(9))


@pytest.mark.parametrize("k", [slow(0), 3])
def test_the_order_of_rows_changes_no_token(small_pair, k: int) -> None:
    pair = small_pair("llama")
    requests = with_limits(make_requests(9, vocab_size=pair.vocab_size), LIMITS)
    completions = run(make_engine(pair.target, pair.draft, max_k=k), requests, k)
    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)


def test_a_long_row_submitted_last_starts_early(small_pair) -> None:
    """84 tokens over 3 slots need 28 rounds; in the given order the last row would begin when the others end."""
    pair = small_pair("llama")
    limits = (*[6] * 10, 24)
    requests = with_limits(make_requests(11, vocab_size=pair.vocab_size), limits)
    engine = make_engine(pair.target, max_k=0, proposer="none", prefill_budget=512)
    engine.submit(requests, plan(0))
    running = []
    while (step := engine.step()) is not None:
        running.append(step.running)
    assert sum(running) == sum(limits)
    assert len(running) <= 30
