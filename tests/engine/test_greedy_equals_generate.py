"""Greedy speculative output is the target's own, token for token, whatever proposes and however rows are batched."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from support.engines import generate, make_engine, make_requests, perturbed, run, run_in_turn

KINDS = ["llama", "qwen3", "gpt2", "mistral", "gemma2", "gpt_oss"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("k", "proposer"), [(0, "none"), (1, "draft"), (3, "draft"), (7, "draft"), (3, "ngram")])
def test_every_architecture(small_pair, kind: str, k: int, proposer: str) -> None:
    pair = small_pair(kind)
    requests = make_requests(7, vocab_size=pair.vocab_size)
    engine = make_engine(pair.target, pair.draft, max_k=k, proposer=proposer)

    completions = run(engine, requests, k)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    assert {c.finish_reason for c in completions} == {"length"}
    if k:
        drafted = sum(c.draft_tokens for c in completions)
        assert 0 < sum(c.accepted_tokens for c in completions) < drafted, "the draft must be right and wrong at times"


@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("rounds_behind", [0, 1, 2])
@pytest.mark.parametrize("prefill_budget", [7, 64])
def test_any_slots_lookahead_and_prefill_chunks(
    small_pair, slots: int, rounds_behind: int, prefill_budget: int
) -> None:
    pair = small_pair("llama")
    requests = make_requests(9, vocab_size=pair.vocab_size, max_new_tokens=13)
    engine = make_engine(
        pair.target, pair.draft, slots=slots, rounds_behind=rounds_behind, prefill_budget=prefill_budget
    )

    completions = run(engine, requests, 3)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)


@pytest.mark.parametrize("rounds_behind", [0, 1])
def test_k_that_changes_with_occupancy(small_pair, rounds_behind: int) -> None:
    """K=0 at full slots, then 3, 7 and 1 while they drain: the draft is caught up, nothing else changes."""
    pair = small_pair("llama")
    requests = [
        replace(request, sampling=replace(request.sampling, max_new_tokens=12 + 7 * request.row))
        for request in make_requests(8, vocab_size=pair.vocab_size)
    ]
    engine = make_engine(pair.target, pair.draft, slots=4, max_k=7, max_model_len=128, rounds_behind=rounds_behind)

    completions = run_in_turn(engine, requests, 0, 1, 7, 3, 0)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    assert sum(c.accepted_tokens for c in completions) > 0


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("rounds_behind", [0, 1])
def test_end_of_sequence_cuts_a_round(small_pair, k: int, rounds_behind: int) -> None:
    pair = small_pair("llama")
    requests = make_requests(6, vocab_size=pair.vocab_size, max_new_tokens=30)
    free = generate(pair.reference, requests)
    eos_ids = sorted({tokens[9] for tokens in free[:3]} | {tokens[4] for tokens in free[3:]})
    engine = make_engine(pair.target, pair.draft, eos_ids=eos_ids, max_k=max(k, 1), rounds_behind=rounds_behind)

    completions = run(engine, requests, k)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests, eos_ids)
    assert all(c.finish_reason == "stop" for c in completions)


def test_a_draft_equal_to_the_target_is_accepted_whole(small_pair) -> None:
    pair = small_pair("llama")
    draft = perturbed(copy.deepcopy(pair.draft), pair.target, noise=0.0)
    requests = make_requests(5, vocab_size=pair.vocab_size, max_new_tokens=21)

    completions = run(make_engine(pair.target, draft), requests, 3)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    assert all(c.accepted_tokens == c.draft_tokens > 0 for c in completions)
