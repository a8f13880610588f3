"""The plan selects proposer and K of every round; greedy tokens do not depend on it."""

from __future__ import annotations

import time

import pytest
from support.engines import drain, generate, make_engine, make_requests, plan, slow, steps_of

from specpipe.core import Exploration, SpeculationPlan


@pytest.mark.parametrize("rounds_behind", [slow(0), 1])
def test_proposer_and_k_may_change_every_round(small_pair, rounds_behind: int) -> None:
    pair = small_pair("llama")
    requests = make_requests(7, vocab_size=pair.vocab_size, max_new_tokens=45)
    engine = make_engine(pair.target, pair.draft, proposer="auto", max_k=4, rounds_behind=rounds_behind)
    engine.submit(requests, plan(2))
    choices = [("draft", 3), ("ngram", 4), ("draft", 1), ("none", 0), ("ngram", 1), ("draft", 4)]
    completions, used = [], set()
    for step in range(2000):
        proposer, k = choices[step // 2 % len(choices)]
        engine.submit([], plan(k, proposer=proposer))
        report = engine.step()
        if report is None:
            break
        engine.check_integrity()
        used.add((report.proposer, report.k))
        completions += report.completions
    tokens = [list(c.token_ids) for c in sorted(completions, key=lambda c: c.request.row)]
    assert tokens == generate(pair.reference, requests)
    assert used >= set(choices)


def test_exploring_rounds_follow_the_round_count(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, proposer="auto", max_k=3)
    explore = Exploration(k=3, proposer="ngram", every=7)
    exploring_plan = SpeculationPlan(ks=(1,), proposer="draft", queue_depth=0.0, reason="test", explore=(explore,))
    engine.submit(make_requests(3, vocab_size=pair.vocab_size, max_new_tokens=50), exploring_plan)

    rounds = [(step.proposer, step.k) for step in steps_of(engine) if step.running]

    full = len(rounds) - 3  # rows that have one token to go draft nothing
    expected = [("ngram", 3) if i % 7 == 6 else ("draft", 1) for i in range(full)]
    assert rounds[:full] == expected


def test_a_plan_with_an_absent_proposer_decodes_plainly(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, proposer="draft")
    engine.submit(make_requests(2, vocab_size=pair.vocab_size), plan(2, proposer="ngram"))
    assert {(step.proposer, step.k) for step in steps_of(engine)} == {("none", 0)}


@pytest.mark.parametrize("rounds_behind", [0, 1])
def test_steps_report_round_seconds_and_row_lengths(small_pair, rounds_behind: int) -> None:
    pair = small_pair("llama")
    requests = make_requests(3, vocab_size=pair.vocab_size, max_new_tokens=30)
    engine = make_engine(pair.target, pair.draft, rounds_behind=rounds_behind)
    engine.submit(requests, plan(2))

    began = time.perf_counter()
    steps = steps_of(engine)
    took = time.perf_counter() - began  # a round's seconds have those between two steps in them

    rounds = [step for step in steps if step.running]
    assert all(step.round_s >= step.phases["verify"] > 0 for step in rounds)
    assert sum(step.round_s for step in rounds) <= took
    shortest = sum(len(r.prompt_token_ids) for r in requests) / 3
    contexts = [step.context for step in rounds if step.running == 3]
    assert contexts[0] >= shortest
    assert contexts == sorted(contexts)


def test_steps_report_draft_prefill_tokens_and_seconds(small_pair) -> None:
    pair = small_pair("llama")
    requests = make_requests(3, vocab_size=pair.vocab_size, max_new_tokens=30)
    engine = make_engine(pair.target, pair.draft, prefill_budget=16)
    engine.submit(requests, plan(0))
    plain = [engine.step() for _ in range(12)]
    assert all(step.draft_prefill_tokens == 0 for step in plain)
    engine.submit([], plan(1))

    steps = steps_of(engine)

    assert sum(step.draft_prefill_tokens for step in steps) >= sum(len(r.prompt_token_ids) for r in requests)
    for step in steps:
        assert (step.draft_prefill_s > 0) == (step.draft_prefill_tokens > 0)
        assert step.draft_prefill_s <= step.phases.get("prefill", 0.0)
    drain(engine)


def test_rounds_in_flight_that_end_a_row_are_the_last(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, rounds_behind=1)
    engine.submit(make_requests(2, vocab_size=pair.vocab_size, max_new_tokens=5), plan(0))
    assert sum(bool(step.running) for step in steps_of(engine)) == 5
