"""Sampled output: every method draws from the target's distribution; `invariant` draws the same tokens always."""

from __future__ import annotations

import copy

import pytest
import torch
from support.chi_squared import p_value
from support.engines import make_engine, make_requests, perturbed, run, slow
from support.pairs_of_tokens import draw, joint

from specpipe_kernels import Bounds, SamplingTensors
from specpipe_kernels.reference.sampling.kept_logits import truncation_bounds

PROMPT = (3, 1, 4)


CASES = [("standard", "draft", 3), ("block", "draft", 3), ("invariant", "draft", 3), ("standard", "ngram", 2)]
ALL_CASES = [
    (method, proposer, k)
    for method in ("standard", "block", "invariant")
    for proposer, k in (("draft", 1), ("draft", 3), ("ngram", 2), ("none", 0))
]


@pytest.mark.parametrize(
    ("method", "proposer", "k"), [*CASES, *(slow(*case) for case in ALL_CASES if case not in CASES)]
)
def test_two_tokens_follow_the_targets_distribution(small_pair, method: str, proposer: str, k: int) -> None:
    pair = small_pair("llama", vocab_size=16)
    sampling = {"temperature": 0.7, "top_k": 11}
    engine = make_engine(
        pair.target,
        pair.draft,
        slots=500,
        max_k=k,
        proposer=proposer,
        method=method,
        max_model_len=16,
        prefill_budget=4096,
    )

    pairs, completions = draw(engine, PROMPT, 4000, k, **sampling)

    assert p_value(pairs, joint(pair.reference, PROMPT, **sampling)) > 1e-4
    if k:
        accepted, drafted = (sum(getattr(c, n) for c in completions) for n in ("accepted_tokens", "draft_tokens"))
        assert 0 < accepted < drafted


def test_invariant_tokens_depend_on_seed_and_prefix_alone(small_pair) -> None:
    pair = small_pair("llama")
    requests = make_requests(5, vocab_size=pair.vocab_size, max_new_tokens=9, temperature=0.9, top_p=0.95)
    useless = perturbed(copy.deepcopy(pair.draft), pair.target, noise=9.0)
    variants = [
        (None, {"proposer": "none", "max_k": 0}),
        (pair.draft, {}),
        (pair.draft, {"slots": 1, "rounds_behind": 1}),
        (useless, {"max_k": 7}),
        (None, {"proposer": "ngram", "slots": 2, "prefill_budget": 5}),
    ]

    outputs = []
    for draft, options in variants:  # one engine at a time: KV pages hang on the models
        engine = make_engine(pair.target, draft, method="invariant", **options)
        outputs.append([c.token_ids for c in run(engine, requests, engine.config.max_k)])

    assert all(output == outputs[0] for output in outputs)
    assert len(set(outputs[0])) == len(requests)


@pytest.mark.parametrize("method", ["standard", slow("block")])
def test_fixed_k_draws_the_same_tokens_in_any_batch(small_pair, method: str) -> None:
    pair = small_pair("llama")
    requests = make_requests(6, vocab_size=pair.vocab_size, max_new_tokens=10, temperature=0.9)

    together = run(make_engine(pair.target, pair.draft, slots=7, method=method), requests, 3)
    alone = run(make_engine(pair.target, pair.draft, slots=1, method=method), requests, 3)

    assert [c.token_ids for c in together] == [c.token_ids for c in alone]


def test_greedy_and_sampled_rows_share_a_batch(small_pair) -> None:
    pair = small_pair("llama")
    greedy = make_requests(6, vocab_size=pair.vocab_size, max_new_tokens=10)
    sampled = make_requests(6, vocab_size=pair.vocab_size, max_new_tokens=10, temperature=1.1)
    mixed = [pair_[row % 2] for row, pair_ in enumerate(zip(greedy, sampled, strict=True))]

    apart = [run(make_engine(pair.target, pair.draft), rows, 3) for rows in (greedy, sampled)]
    together = run(make_engine(pair.target, pair.draft), mixed, 3)

    assert [c.token_ids for c in together] == [apart[row % 2][row].token_ids for row in range(6)]


def test_synthetic_acceptance_equals_its_rates(small_pair) -> None:
    pair = small_pair("llama")
    rates = (0.9, 0.6, 0.3)
    engine = make_engine(pair.target, pair.draft, slots=50, method="synthetic", synthetic_rates=rates)
    requests = make_requests(100, vocab_size=pair.vocab_size, max_new_tokens=40)

    completions = run(engine, requests, 3)

    rounds = sum(c.draft_tokens for c in completions) / 3
    accepted = sum(c.accepted_tokens for c in completions)
    assert accepted / rounds == pytest.approx(sum(rates), rel=0.05)


def test_truncation_bounds_are_computed_once(small_pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification uses the bounds of drafting, and log-probabilities use those of verification."""
    pair = small_pair("llama")
    rows: list[int] = []

    def counting(logits: torch.Tensor, sampling: SamplingTensors) -> Bounds:
        rows.append(logits.shape[0])
        return truncation_bounds(logits, sampling)

    monkeypatch.setattr("specpipe_kernels.reference.sampling.kept_logits.truncation_bounds", counting)
    requests = make_requests(1, vocab_size=pair.vocab_size, temperature=0.9, top_p=0.95, max_new_tokens=20, logprobs=2)
    engine = make_engine(pair.target, pair.draft, slots=1, max_k=3)
    run(engine, requests, 3)
    assert rows.count(4) * 3 == rows.count(
        1
    )  # a round computes those of K drafts, one call each, and of K + 1 rows in one call
    assert len(rows) == rows.count(4) + rows.count(1)
