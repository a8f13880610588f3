"""Random trees of prompts through the scheduler alone: no page is lost, and no token is computed twice without need.

The device is simulated: what was launched counts as computed, every round commits random numbers of tokens, and each
page records which tokens it holds, so that a read of a page with other tokens is found.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.engines import PlainDecoder, plan

from specpipe.core import EngineConfig, Request, SamplingParams
from specpipe.engine.state.chunks import Chunk
from specpipe.engine.state.page_allocator import PageAllocator
from specpipe.engine.state.row_state import RowState
from specpipe.engine.state.scheduler import Scheduler

PAGE = 3
MAX_LEN = 30


class SimulatedKV:
    """KV of one model by page and offset: the tokens up to and with the position that was written there."""

    def __init__(self) -> None:
        self._written: dict[tuple[int, int], tuple[int, ...]] = {}

    def write(self, table: Sequence[int], tokens: Sequence[int], start: int, stop: int) -> None:
        for position in range(start, stop):
            self._written[table[position // PAGE], position % PAGE] = tuple(tokens[: position + 1])

    def copy(self, source: int, target: int) -> None:
        for offset in range(PAGE):
            self._written[target, offset] = self._written.get((source, offset), ())

    def check(self, table: Sequence[int], tokens: Sequence[int], stop: int) -> None:
        """Raises AssertionError unless all positions below `stop` hold these tokens."""
        for position in range(stop):
            written = self._written.get((table[position // PAGE], position % PAGE))
            assert written == tuple(tokens[: position + 1]), "attention to KV that was not written"


class SimulatedEngine:
    """The scheduler with simulated KV of both models."""

    def __init__(self, *, slots: int, pages: int, budget: int, share: bool, seed: int) -> None:
        config = EngineConfig(
            slots=slots, max_model_len=MAX_LEN, max_k=2, page_size=PAGE, prefill_budget=budget, prefix_sharing=share
        )
        self.scheduler = Scheduler(config, PageAllocator(pages), PlainDecoder(), lookahead=3)
        self.target, self.draft = SimulatedKV(), SimulatedKV()
        self.target_tokens = self.draft_tokens = self.cached_tokens = 0
        self.preempted: list[RowState] = []
        self.ended: list[RowState] = []
        self._random = random.Random(seed)

    def step(self, *, drafting: bool) -> None:
        """Prefills, then runs a round that commits 1 to 3 tokens of each row."""
        scheduler = self.scheduler
        self.preempted += scheduler.assign_pages().preempted
        scheduler.admit()
        budget = scheduler.config.prefill_budget
        target = scheduler.prefills.target_chunks(budget)
        draft = scheduler.prefills.draft_chunks(budget, 0) if drafting else []
        self.target_tokens += self._prefill(self.target, target)
        self.draft_tokens += self._prefill(self.draft, draft)
        scheduler.prefills.target_prefilled(target)
        scheduler.prefills.draft_prefilled(draft)
        copies = scheduler.prefills.copy_tails()
        for source, page in copies.target:
            self.target.copy(source, page)
        for source, page in copies.draft:
            self.draft.copy(source, page)
        for row in copies.rows:
            self.draft.check(self._table(row), _tokens(row), row.draft_valid)
        scheduler.check_integrity()
        for row in list(scheduler.rows.values()):
            if row.prefilled:
                self._round(row, drafting)

    def _prefill(self, kv: SimulatedKV, chunks: list[Chunk]) -> int:
        rows = self.scheduler.rows
        for slot, start, stop in chunks:  # all keys and values of a layer are stored before a query reads them
            assert start < stop
            kv.write(self._table(rows[slot]), _tokens(rows[slot]), start, stop)
        for slot, _, stop in chunks:
            kv.check(self._table(rows[slot]), _tokens(rows[slot]), stop)
        fed = sum(stop - start for _, start, stop in chunks)
        assert fed <= self.scheduler.config.prefill_budget
        return fed

    def _round(self, row: RowState, drafting: bool) -> None:
        table, known, ready = self._table(row), _tokens(row), row.draft_ready(0)
        self.target.check(table, known, row.length - 1)
        count = min(self._random.randint(1, 3) if drafting and ready else 1, row.remaining)
        tokens = [self._random.randrange(3) for _ in range(count)]
        after = [*known, *tokens, 99]
        self.target.write(table, after, row.length - 1, row.length + count)
        if drafting:  # also where the draft is behind; what it writes then is of no use
            if ready:
                self.draft.check(table, known, row.length - 2)
            self.draft.write(table, after if ready else [77] * len(after), row.length - 2, row.length + count - 1)
            if ready:
                row.draft_valid = row.length + count - 1
        row.extend(tokens, 0.0)
        if not row.remaining:
            self.cached_tokens += row.cached_tokens
            self.ended.append(row)
            self.scheduler.release(row)

    def _table(self, row: RowState) -> list[int]:
        return [node.page for node in row.prefix] + [*self.scheduler.pages.held(row.slot)]


def _tokens(row: RowState) -> list[int]:
    return [*row.request.prompt_token_ids, *row.generated]


def run(engine: SimulatedEngine, submissions: Sequence[Sequence[Request]], drafting: Sequence[bool]) -> None:
    """Submits every fourth step, and drafts in the steps that `drafting` says, over and over."""
    for step in range(2000):
        if step % 4 == 0 and step // 4 < len(submissions):
            engine.scheduler.submit(submissions[step // 4], plan(0))
        engine.step(drafting=drafting[step % len(drafting)])
        if step // 4 >= len(submissions) and not engine.scheduler.rows and not engine.scheduler.waiting:
            break
    rows = [request.row for requests in submissions for request in requests]
    assert sorted(row.request.row for row in engine.ended) == sorted(rows)
    assert engine.scheduler.pages.free == engine.scheduler.pages.num_pages - 1


def distinct_tokens(requests: Sequence[Request], share: bool) -> int:
    """Returns the prompt tokens that have to be prefilled: full pages once, the rest once without the last token."""
    pages, tails = set(), {}
    for request in requests:
        prompt, row = request.prompt_token_ids, 0 if share else request.row
        ends = range(PAGE, len(prompt) - 1, PAGE)
        pages |= {(prompt[:end], row) for end in ends}
        tails[prompt[:-1], row] = len(prompt) - 1 - PAGE * len(ends)
    return sum(tails.values()) + PAGE * len(pages)


@st.composite
def prompt_trees(draw: st.DrawFn) -> list[list[Request]]:
    """Draws submissions of rows whose prompts continue earlier ones at any token."""
    prompts: list[tuple[int, ...]] = [()]
    ends = st.lists(st.integers(0, 1), min_size=1, max_size=9)
    submissions, row = [], 0
    for size in draw(st.lists(st.integers(2, 8), min_size=1, max_size=3)):
        submissions.append([])
        for _ in range(size):
            parent = prompts[draw(st.integers(0, len(prompts) - 1))]
            prompt = (*parent[: draw(st.integers(0, len(parent)))], *draw(ends))[:18]
            prompts.append(prompt)
            sampling = SamplingParams(max_new_tokens=draw(st.sampled_from([1, 4, 12])))
            submissions[-1].append(
                Request(
                    request_id="", shard=0, row=row, prompt="", prompt_token_ids=prompt, sampling=sampling, seed=row
                )
            )
            row += 1
    return submissions


def check_tree(
    submissions: list[list[Request]], slots: int, pages: int, budget: int, share: bool, drafting: list[bool], seed: int
) -> None:
    engine = SimulatedEngine(slots=slots, pages=pages, budget=budget, share=share, seed=seed)
    run(engine, submissions, drafting)
    requests = [request for submission in submissions for request in submission]
    if pages >= 200:  # nothing is evicted and no row preempted
        distinct = distinct_tokens(requests, share)
        repeated = sum(distinct_tokens(submission, share) for submission in submissions)
        assert distinct <= engine.target_tokens <= repeated  # no row waits that would need the tail of a later prompt
        assert engine.target_tokens == distinct or len(submissions) > 1
        prompts = sum(len(request.prompt_token_ids) - 1 for request in requests)
        assert engine.cached_tokens == prompts - engine.target_tokens
    if pages >= 200 and all(drafting):
        # A source without the draft model's KV of its last prompt token is ready, but cannot be copied.
        assert engine.draft_tokens <= engine.target_tokens + len(requests)


TREES = {
    "submissions": prompt_trees(),
    "slots": st.sampled_from([1, 2, 3, 5, 5]),
    "pages": st.sampled_from([11, 12, 14, 200]),
    "budget": st.sampled_from([1, 2, 5, 8, 40]),
    "share": st.sampled_from([True, True, True, False]),
    "drafting": st.lists(st.booleans(), min_size=1, max_size=5),
    "seed": st.integers(0, 100),
}


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(**TREES)
def test_random_prompt_trees_read_only_what_was_written(**drawn: object) -> None:
    check_tree(**drawn)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(**TREES)
def test_ten_thousand_prompt_trees_read_only_what_was_written(**drawn: object) -> None:
    check_tree(**drawn)
