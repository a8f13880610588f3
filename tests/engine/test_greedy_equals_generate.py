"""Greedy speculative output is the target's own, token for token, whatever proposes and however rows are batched."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace

import pytest
from support.engines import generate, make_engine, make_requests, perturbed, run, run_in_turn, slow

PROPOSALS = [(0, "none"), (1, "draft"), (3, "draft"), (7, "draft"), (3, "ngram")]
CASES = [
    *(("llama", *proposal) for proposal in PROPOSALS),
    *((kind, 3, "draft") for kind in ("qwen3", "gpt2", "mistral", "gemma2", "gpt_oss")),
]
SLOW_CASES = [
    (kind, *proposal)
    for kind in ("qwen3", "gpt2", "mistral", "gemma2", "gpt_oss")
    for proposal in PROPOSALS
    if proposal != (3, "draft")
]


@pytest.mark.parametrize(("kind", "k", "proposer"), [*CASES, *(slow(*case) for case in SLOW_CASES)])
def test_every_architecture_equals_generate(small_pair, kind: str, k: int, proposer: str) -> None:
    pair = small_pair(kind)
    requests = make_requests(7, vocab_size=pair.vocab_size)
    engine = make_engine(pair.target, pair.draft, max_k=k, proposer=proposer)

    completions = run(engine, requests, k)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    assert {c.finish_reason for c in completions} == {"length"}
    if k:
        drafted = sum(c.draft_tokens for c in completions)
        assert 0 < sum(c.accepted_tokens for c in completions) < drafted, "the draft must be right and wrong at times"


SIZES = [(1, 1, 7), (2, 2, 64), (5, 0, 7)]
ALL_SIZES = itertools.product((1, 2, 5), (0, 1, 2), (7, 64))


@pytest.mark.parametrize(
    ("slots", "rounds_behind", "prefill_budget"), [*SIZES, *(slow(*size) for size in ALL_SIZES if size not in SIZES)]
)
def test_any_slots_rounds_behind_and_prefill_budget(
    small_pair, slots: int, rounds_behind: int, prefill_budget: int
) -> None:
    pair = small_pair("llama")
    requests = make_requests(9, vocab_size=pair.vocab_size, max_new_tokens=13)
    engine = make_engine(
        pair.target, pair.draft, slots=slots, rounds_behind=rounds_behind, prefill_budget=prefill_budget
    )

    completions = run(engine, requests, 3)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)


@pytest.mark.parametrize("rounds_behind", [slow(0), 1])
def test_k_that_changes_with_occupancy(small_pair, rounds_behind: int) -> None:
    """K=0 at full slots, then 3, 7 and 1 while they drain: the draft is caught up, nothing else changes."""
    pair = small_pair("llama")
    requests = [
        replace(request, sampling=replace(request.sampling, max_new_tokens=12 + 7 * request.row))
        for request in make_requests(6, vocab_size=pair.vocab_size)
    ]
    engine = make_engine(pair.target, pair.draft, slots=4, max_k=7, max_model_len=128, rounds_behind=rounds_behind)

    completions = run_in_turn(engine, requests, 0, 1, 7, 3, 0)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    assert sum(c.accepted_tokens for c in completions) > 0


@pytest.mark.parametrize(("k", "rounds_behind"), [(3, 1), slow(0, 0), slow(0, 1), slow(3, 0)])
def test_end_of_sequence_cuts_a_round(small_pair, k: int, rounds_behind: int) -> None:
    pair = small_pair("llama")
    requests = make_requests(6, vocab_size=pair.vocab_size, max_new_tokens=30)
    free = generate(pair.reference, requests)
    eos_ids = sorted({tokens[9] for tokens in free[:3]} | {tokens[4] for tokens in free[3:]})
    engine = make_engine(pair.target, pair.draft, eos_ids=eos_ids, max_k=max(k, 1), rounds_behind=rounds_behind)

    completions = run(engine, requests, k)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests, eos_ids)
    assert all(c.finish_reason == "stop" for c in completions)


def test_every_draft_of_an_equal_model_is_accepted(small_pair) -> None:
    pair = small_pair("llama")
    draft = perturbed(copy.deepcopy(pair.draft), pair.target, noise=0.0)
    requests = make_requests(5, vocab_size=pair.vocab_size, max_new_tokens=21)

    completions = run(make_engine(pair.target, draft), requests, 3)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    assert all(c.accepted_tokens == c.draft_tokens > 0 for c in completions)
