"""Penalties in rounds: the target's own output under the same penalties, for every proposer and K."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.stats import chisquare
from support.engines import generate, make_engine, make_requests, run, run_in_turn, slow

from specpipe.core import Request, SamplingParams

PROPOSALS = [slow(0, "none"), slow(1, "draft"), (3, "draft"), slow(3, "ngram")]
MIXED = (
    {},
    {"repetition_penalty": 1.4},
    {"presence_penalty": 0.9},
    {"frequency_penalty": 0.7},
    {"repetition_penalty": 0.8, "presence_penalty": -0.5, "frequency_penalty": 0.3},
)


def with_penalties(requests: list[Request], *choices: dict[str, float]) -> list[Request]:
    return [
        replace(r, sampling=replace(r.sampling, **choice))
        for r, choice in zip(requests, choices * len(requests), strict=False)
    ]


def plain_loop(model: torch.nn.Module, request: Request) -> list[int]:
    """Greedy decoding as the definitions of the penalties say, token by token."""
    prompt, output, s = list(request.prompt_token_ids), [], request.sampling
    for _ in range(s.max_new_tokens):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + output], device=model.device)).logits[0, -1].double().cpu()
        for token in set(prompt + output):
            x = logits[token]
            logits[token] = x / s.repetition_penalty if x > 0 else x * s.repetition_penalty
        for token in set(output):
            logits[token] -= s.presence_penalty + s.frequency_penalty * output.count(token)
        output.append(int(logits.argmax()))
    return output


@pytest.mark.parametrize("rounds_behind", [0, slow(1)])
@pytest.mark.parametrize(("k", "proposer"), PROPOSALS)
def test_repetition_equals_generate(small_pair, k: int, proposer: str, rounds_behind: int) -> None:
    pair = small_pair("llama")
    requests = with_penalties(make_requests(7, vocab_size=pair.vocab_size, max_new_tokens=24), {}, MIXED[1])
    engine = make_engine(pair.target, pair.draft, max_k=k, proposer=proposer, rounds_behind=rounds_behind)

    completions = run(engine, requests, k)

    expected = [generate(pair.reference, [r], repetition_penalty=r.sampling.repetition_penalty)[0] for r in requests]
    assert [list(c.token_ids) for c in completions] == expected
    assert expected[1::2] != generate(pair.reference, requests)[1::2], "the penalty must matter"
    if k:
        assert 0 < sum(c.accepted_tokens for c in completions) < sum(c.draft_tokens for c in completions)


@pytest.mark.parametrize(("k", "proposer"), [*PROPOSALS[:2], slow(3, "draft"), (3, "ngram")])
def test_mixed_rows_equal_a_plain_loop(small_pair, k: int, proposer: str) -> None:
    """Slots are reused by rows with other penalties."""
    pair = small_pair("llama")
    requests = with_penalties(make_requests(8, vocab_size=pair.vocab_size, max_new_tokens=24), *MIXED)
    engine = make_engine(pair.target, pair.draft, max_k=k, proposer=proposer, slots=3, page_size=8)

    completions = run(engine, requests, k)

    assert [list(c.token_ids) for c in completions] == [plain_loop(pair.reference, r) for r in requests]


@pytest.mark.slow
def test_k_that_changes_with_occupancy(small_pair) -> None:
    pair = small_pair("llama")
    requests = with_penalties(make_requests(8, vocab_size=pair.vocab_size), *MIXED)
    requests = [replace(r, sampling=replace(r.sampling, max_new_tokens=12 + 5 * r.row)) for r in requests]
    engine = make_engine(pair.target, pair.draft, slots=4, max_k=7, max_model_len=128, rounds_behind=1)

    completions = run_in_turn(engine, requests, 0, 1, 7, 3, 0)

    assert [list(c.token_ids) for c in completions] == [plain_loop(pair.reference, r) for r in requests]


@pytest.mark.slow
def test_invariant_tokens_depend_on_neither_k_nor_draft(small_pair) -> None:
    pair = small_pair("llama")
    requests = with_penalties(make_requests(7, vocab_size=pair.vocab_size, temperature=0.9, top_p=0.9), *MIXED)
    outputs = []
    for proposer, k, slots in (("none", 0, 3), ("draft", 7, 2), ("ngram", 3, 5)):
        engine = make_engine(pair.target, pair.draft, method="invariant", proposer=proposer, max_k=k, slots=slots)
        outputs.append([c.token_ids for c in run(engine, requests, k)])

    assert all(output == outputs[0] for output in outputs)


@pytest.mark.parametrize("method", ["standard", slow("block"), slow("invariant")])
@pytest.mark.parametrize(("proposer", "k"), [("draft", 3), slow("ngram", 2)])
def test_two_tokens_follow_the_penalised_distribution(small_pair, method: str, proposer: str, k: int) -> None:
    pair = small_pair("llama", vocab_size=16)
    rows, prompt, temperature = 4000, (3, 1, 4, 3), 0.9
    sampling = SamplingParams(
        temperature=temperature,
        max_new_tokens=4,
        repetition_penalty=1.5,
        presence_penalty=0.6,
        frequency_penalty=0.8,
    )
    requests = [
        Request(request_id=str(i), shard=0, row=i, prompt="", prompt_token_ids=prompt, sampling=sampling, seed=i)
        for i in range(rows)
    ]
    engine = make_engine(
        pair.target, pair.draft, slots=500, max_k=k, proposer=proposer, method=method, max_model_len=16,
        prefill_budget=4096,
    )  # fmt: skip

    pairs = torch.tensor([c.token_ids[:2] for c in run(engine, requests, k)])

    def distribution(output: list[int]) -> torch.Tensor:
        with torch.no_grad():
            logits = pair.reference(torch.tensor([[*prompt, *output]])).logits[0, -1].double()
        for token in {*prompt, *output}:
            logits[token] = logits[token] / 1.5 if logits[token] > 0 else logits[token] * 1.5
        for token in output:
            logits[token] -= 1.4
        return (logits / temperature).softmax(-1)

    first = distribution([])
    expected = torch.cat([first[x] * distribution([x]) for x in range(16)]) * rows
    counts = torch.bincount(pairs[:, 0] * 16 + pairs[:, 1], minlength=256)
    rare = expected < 5
    observed = torch.cat([counts[~rare], counts[rare].sum()[None]])
    wanted = torch.cat([expected[~rare], expected[rare].sum()[None]])
    assert chisquare(observed.numpy(), wanted.numpy()).pvalue > 1e-4
