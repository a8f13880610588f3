"""Preemption: rows that lose their pages are computed again and produce the same tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.engines import (
    PlainDecoder,
    completions_of,
    generate,
    make_engine,
    make_requests,
    plan,
    run,
    slow,
    steps_of,
)

from specpipe.core import Completion, Request, StepReport
from specpipe.engine.engine import Engine
from specpipe.engine.state.scheduler import PageChanges

# A pool of 84 tokens, in pages so small that the one that is kept free for each row does not last; the longest row of
# the tests ends with 80.
TIGHT = {"slots": 6, "pages": 22, "page_size": 4, "max_model_len": 96}


def watched(engine: Engine, requests: Sequence[Request], *ks: int) -> tuple[list[Completion], list[StepReport]]:
    engine.submit(requests, plan(*ks, proposer=engine.config.proposer))
    steps = steps_of(engine)
    return completions_of(steps), steps


def preemptions(steps: Sequence[StepReport]) -> int:
    return sum(part.preemptions for step in steps for part in step.shards.values())


@pytest.mark.parametrize(
    ("k", "proposer", "rounds_behind"), [slow(0, "none", 1), slow(3, "draft", 0), (3, "draft", 2), slow(3, "ngram", 1)]
)
def test_greedy_tokens_equal_generate(small_pair, k: int, proposer: str, rounds_behind: int) -> None:
    pair = small_pair("llama")
    requests = make_requests(9, vocab_size=pair.vocab_size, max_new_tokens=40)
    engine = make_engine(pair.target, pair.draft, max_k=k, proposer=proposer, rounds_behind=rounds_behind, **TIGHT)

    completions, steps = watched(engine, requests, k)

    assert preemptions(steps) > 4
    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)


@pytest.mark.parametrize(
    ("method", "k", "proposer", "rounds_behind"),
    [
        slow("invariant", 0, "none", 0),
        slow("invariant", 3, "draft", 1),
        slow("standard", 0, "none", 1),
        slow("standard", 3, "draft", 0),
        slow("standard", 3, "draft", 1),
        ("standard", 3, "ngram", 1),
        slow("block", 3, "draft", 1),
    ],
)
def test_sampled_tokens_and_counts_do_not_change(
    small_pair, method: str, k: int, proposer: str, rounds_behind: int
) -> None:
    """A row continues at the end of a round, so that `standard` and `block` too draw the same tokens."""
    pair = small_pair("llama")
    requests = make_requests(9, vocab_size=pair.vocab_size, max_new_tokens=40, temperature=0.8, top_p=0.95)
    common = {"max_k": k, "proposer": proposer, "method": method, "rounds_behind": rounds_behind}
    roomy = run(make_engine(pair.target, pair.draft, **common), requests, k)

    completions, steps = watched(make_engine(pair.target, pair.draft, **common, **TIGHT), requests, k)

    assert preemptions(steps) > 4
    assert [c.token_ids for c in completions] == [c.token_ids for c in roomy]
    assert [(c.draft_tokens, c.accepted_tokens) for c in completions] == [
        (c.draft_tokens, c.accepted_tokens) for c in roomy
    ]
    assert sum(part.emitted_tokens for step in steps for part in step.shards.values()) == 9 * 40


@pytest.mark.parametrize(("method", "rounds_behind"), [slow("standard", 0), slow("standard", 1), ("invariant", 2)])
def test_rows_may_be_preempted_at_any_step(
    small_pair, monkeypatch: pytest.MonkeyPatch, method: str, rounds_behind: int
) -> None:
    """Every third step, while others are prefilled and with rounds in flight."""
    pair = small_pair("llama")
    requests = make_requests(9, vocab_size=pair.vocab_size, temperature=0.8)
    common = {"method": method, "rounds_behind": rounds_behind, "slots": 4, "prefill_budget": 11}
    roomy = run(make_engine(pair.target, pair.draft, **common), requests, 3)
    engine = make_engine(pair.target, pair.draft, **common)
    scheduler, turns = engine._scheduler, itertools.count()
    usual = scheduler.assign_pages

    def assign_pages() -> PageChanges:
        now = len(scheduler.rows) > 1 and next(turns) % 3 == 0
        forced = [scheduler._preempt_youngest()] if now else []
        changes = usual()
        return changes._replace(preempted=forced + changes.preempted)

    monkeypatch.setattr(scheduler, "assign_pages", assign_pages)
    completions, steps = watched(engine, requests, 3)

    assert preemptions(steps) > 5
    assert [c.token_ids for c in completions] == [c.token_ids for c in roomy]
    assert [c.draft_tokens for c in completions] == [c.draft_tokens for c in roomy]


@pytest.mark.slow
@pytest.mark.parametrize("rounds_behind", [0, 1])
def test_stop_strings_and_min_tokens_survive_preemption(small_pair, rounds_behind: int) -> None:
    pair = small_pair("llama")
    plain = make_requests(9, vocab_size=pair.vocab_size, max_new_tokens=40)
    free = run(make_engine(pair.target, pair.draft), plain, 3)
    stops = [f"{c.token_ids[30]} {c.token_ids[31]} " for c in free]
    requests = [
        replace(r, sampling=replace(r.sampling, stop=(stop,), min_tokens=20))
        for r, stop in zip(plain, stops, strict=True)
    ]
    roomy = run(make_engine(pair.target, pair.draft), requests, 3)

    tight = make_engine(pair.target, pair.draft, rounds_behind=rounds_behind, **TIGHT)
    completions, steps = watched(tight, requests, 3)

    assert preemptions(steps) > 4
    assert [(c.token_ids, c.text) for c in completions] == [(c.token_ids, c.text) for c in roomy]
    assert {c.finish_reason for c in completions} == {"stop"}


@pytest.mark.slow
def test_greedy_tokens_survive_a_changing_k(small_pair) -> None:
    pair = small_pair("llama")
    requests = make_requests(9, vocab_size=pair.vocab_size, max_new_tokens=40)
    engine = make_engine(pair.target, pair.draft, max_k=7, rounds_behind=1, **TIGHT)
    completions, steps = watched(engine, requests, 0, 7, 3, 0, 1)
    assert preemptions(steps) > 4
    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)


def test_older_rows_end_first(small_pair) -> None:
    """Rows of equal length end in the order of their submission: no row is overtaken for ever."""
    pair = small_pair("llama")
    first = make_requests(1, vocab_size=pair.vocab_size, max_new_tokens=30)[0]
    requests = [replace(first, row=row, request_id=str(row)) for row in range(12)]
    engine = make_engine(pair.target, **(TIGHT | {"pages": 12}), max_k=0, proposer="none")
    _, steps = watched(engine, requests, 0)
    assert preemptions(steps) > 4
    assert [c.request.row for step in steps for c in step.completions] == list(range(12))


class _EndsAfter(PlainDecoder):
    """Ends every row that has a stop string after a fixed number of tokens."""

    def __init__(self, tokens: int) -> None:
        self._left = tokens

    def stream(self, stop: tuple[str, ...]) -> _EndsAfter:
        return _EndsAfter(self._left)

    def push(self, token_id: int) -> str | None:
        self._left -= 1
        return None if self._left else "the end"


def test_a_high_token_limit_keeps_no_slot_empty(small_pair) -> None:
    """max_new_tokens 16,384, answers of 70 tokens, and KV memory for the answers, not for one row's limit."""
    pair = small_pair("llama")
    slots = 8
    engine = make_engine(
        pair.target,
        slots=slots,
        max_k=0,
        proposer="none",
        max_model_len=17_000,
        page_size=64,
        pages=16_500 // 64 + 2,
        decoder=_EndsAfter(70),
    )
    requests = make_requests(20, vocab_size=pair.vocab_size, max_new_tokens=16_384, stop=("the end",))

    completions, steps = watched(engine, requests, 0)

    assert {len(c.token_ids) for c in completions} == {70}
    assert preemptions(steps) == 0
    full = [step.running for step in steps if step.waiting and "prefill" not in step.phases]
    assert len(full) > 100 and set(full) == {slots}


@pytest.mark.parametrize("rounds_behind", [slow(0), 1])
@pytest.mark.slow
def test_penalties_and_logprobs_survive_preemption(small_pair, rounds_behind: int) -> None:
    pair = small_pair("llama")
    requests = make_requests(
        9, vocab_size=pair.vocab_size, max_new_tokens=40, repetition_penalty=1.2, frequency_penalty=0.3, logprobs=1
    )
    ample = run(make_engine(pair.target, pair.draft, slots=6), requests, 3)

    completions, steps = watched(
        make_engine(pair.target, pair.draft, rounds_behind=rounds_behind, **TIGHT), requests, 3
    )

    assert preemptions(steps) > 4
    assert [c.token_ids for c in completions] == [c.token_ids for c in ample]
    for completion, expected in zip(completions, ample, strict=True):
        assert completion.logprobs.own.tolist() == pytest.approx(expected.logprobs.own.tolist(), abs=1e-4)
