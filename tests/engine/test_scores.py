"""Score rows: log-probabilities of given continuations equal the model's own, however rows share and split prefills."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from support.engines import completions_of, drain, generate, make_engine, make_requests, plan, slow, steps_of

from specpipe.core import Completion, Request, SamplingParams
from specpipe.engine.state.scored_rows import score_windows

PAGE = 4
VOCAB = 320


def score_request(
    row: int, prompt: Sequence[int], continuations: Sequence[Sequence[int]], *, logprobs: int | None = 0
) -> Request:
    return Request(
        request_id=str(row),
        shard=row % 2,
        row=row,
        prompt="",
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(logprobs=logprobs),
        seed=row,
        continuations=tuple(tuple(continuation) for continuation in continuations),
    )


def questions(count: int = 6) -> list[Request]:
    """Returns questions behind common shots, with choices of 1 to 6 tokens; some have a beginning in common."""
    tokens = random.Random(5)

    def some(n: int) -> list[int]:
        return [tokens.randrange(VOCAB) for _ in range(n)]

    shots = some(10)
    rows = []
    for row in range(count):
        prompt = shots[: 10 - row % 2] + some(row)
        first = some(5)
        choices = [first, first[:3] + some(2), some(1), some(6)]
        rows.append(score_request(row, prompt, choices[: 1 + row % 4]))
    return [*rows, score_request(count, [3], [some(1), some(9)])]


def expected_logprobs(model: torch.nn.Module, context: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    """Returns log p [len(tokens), V] in fp64 of the positions that predict `tokens`."""
    ids = torch.tensor([[*context, *tokens][:-1]])
    with torch.inference_mode():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(context) - 1 :]
    return logits.double().log_softmax(-1)


def check(completions: Sequence[Completion], model: torch.nn.Module, max_model_len: int) -> None:
    for completion in completions:
        request = completion.request
        assert completion.finish_reason == "scored" and not completion.token_ids and not completion.error
        assert len(completion.scores) == len(request.continuations)
        for score, continuation in zip(completion.scores, request.continuations, strict=True):
            own, greedy = [], True
            for context, tokens in score_windows(request.prompt_token_ids, continuation, max_model_len):
                log_p = expected_logprobs(model, context, tokens)
                own += log_p.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
                greedy = greedy and log_p.argmax(1).tolist() == list(tokens)
            assert score.token_logprobs is not None and list(score.token_logprobs) == pytest.approx(own, abs=1e-4)
            assert score.logprob == pytest.approx(sum(own), abs=1e-4)
            assert (score.num_tokens, score.is_greedy) == (len(continuation), greedy)


def distinct_tokens(requests: Sequence[Request]) -> int:
    """Returns the tokens that one submission computes: pages and rests of prompts once, and all scored tokens."""
    pages, rests = set(), {}
    for request in requests:
        prompt = request.prompt_token_ids
        ends = range(PAGE, len(prompt) - 1, PAGE)
        pages |= {prompt[:end] for end in ends}
        rests[prompt[:-1]] = len(prompt) - 1 - PAGE * len(ends)
    return PAGE * len(pages) + sum(rests.values()) + sum(request.scored_tokens for request in requests)


@pytest.mark.parametrize(
    ("kind", "slots", "rounds_behind", "budget"),
    [
        ("llama", 5, 1, 32),
        ("llama", 1, 0, 3),
        ("gpt2", 3, 0, 7),
        *(slow(kind, 4, 1, 9) for kind in ("qwen3", "mistral", "gemma2", "gpt_oss")),
        *(slow("llama", slots, behind, budget) for slots in (2, 16) for behind in (0, 2) for budget in (1, 5, 300)),
    ],
)
def test_scores_equal_the_models_and_prompts_are_computed_once(
    small_pair, kind: str, slots: int, rounds_behind: int, budget: int
) -> None:
    pair = small_pair(kind)
    requests = questions()
    engine = make_engine(
        pair.target, slots=slots, max_k=0, proposer="none", rounds_behind=rounds_behind, prefill_budget=budget,
        page_size=PAGE, pages=200,
    )  # fmt: skip
    engine.submit(requests, plan(0, proposer="none"))

    steps = steps_of(engine)
    completions = completions_of(steps)

    check(completions, pair.reference, 96)
    parts = [part for step in steps for part in step.shards.values()]
    prefilled = sum(part.prefill_tokens for part in parts)
    assert prefilled <= distinct_tokens(requests)
    assert sum(part.scored_tokens for part in parts) == sum(request.scored_tokens for request in requests)
    assert not any(step.running for step in steps), "score rows take part in no round"
    computed = sum(len(c.request.prompt_token_ids) - 1 - c.cached_tokens for c in completions)
    assert computed == prefilled - sum(request.scored_tokens for request in requests)
    assert engine.kv_pages_used == 0


@pytest.mark.parametrize("budget", [64, slow(3), slow(5)])
@pytest.mark.parametrize("own", [2, 3, 6])
def test_questions_that_depart_within_a_page_compute_each_token_once(small_pair, budget: int, own: int) -> None:
    pair = small_pair("llama")
    tokens = random.Random(own)
    shots = [tokens.randrange(VOCAB) for _ in range(11)]  # two pages and three tokens
    rows = [
        score_request(row, [*shots, row, *(tokens.randrange(VOCAB) for _ in range(own))], [[7, 8], [9]])
        for row in range(5)
    ]
    engine = make_engine(
        pair.target, slots=1, max_k=0, proposer="none", page_size=PAGE, prefill_budget=budget, pages=200
    )
    engine.submit(rows, plan(0, proposer="none"))

    steps = steps_of(engine)
    completions = completions_of(steps)

    check(completions, pair.reference, 96)
    prompts = {request.prompt_token_ids[:end] for request in rows for end in range(1, len(request.prompt_token_ids))}
    scored = sum(request.scored_tokens for request in rows)
    assert sum(part.prefill_tokens for step in steps for part in step.shards.values()) == len(prompts) + scored


@pytest.mark.parametrize(("k", "proposer"), [(3, "draft"), slow(0, "none"), slow(3, "ngram")])
def test_score_rows_beside_rows_that_generate(small_pair, k: int, proposer: str) -> None:
    pair = small_pair("llama")
    scored = questions(4)
    ask = scored[3].prompt_token_ids  # the prompt of a question, generated from too
    texts = [replace(request, row=10 + request.row) for request in make_requests(5, vocab_size=VOCAB, max_new_tokens=9)]
    texts.append(replace(texts[0], row=15, prompt_token_ids=ask))
    engine = make_engine(
        pair.target, pair.draft, slots=4, max_k=k, proposer=proposer, prefill_budget=11, page_size=PAGE
    )
    engine.submit([*texts, *scored], plan(k, proposer=proposer))

    completions = drain(engine)

    check(completions[: len(scored)], pair.reference, 96)
    assert [list(c.token_ids) for c in completions[len(scored) :]] == generate(pair.reference, texts)


def test_preempted_score_rows_are_computed_again(small_pair) -> None:
    pair = small_pair("llama")
    texts = make_requests(2, vocab_size=VOCAB, max_new_tokens=30)
    scored = [replace(request, row=10 + request.row) for request in questions(6)]
    engine = make_engine(
        pair.target, slots=6, max_k=0, proposer="none", rounds_behind=1, prefill_budget=2, page_size=PAGE, pages=13,
        max_model_len=48,
    )  # fmt: skip
    engine.submit(texts, plan(0, proposer="none"))
    engine.submit(scored, plan(0, proposer="none"))

    steps = steps_of(engine)
    completions = completions_of(steps)

    assert sum(part.preemptions for step in steps for part in step.shards.values()) > 0
    assert [list(c.token_ids) for c in completions[:2]] == generate(pair.reference, texts)
    check(completions[2:], pair.reference, 48)


@pytest.mark.parametrize("length", [20, 21, 40, 41, 47, slow(60), slow(79)])
def test_texts_longer_than_the_model_have_rolling_windows(small_pair, length: int) -> None:
    pair = small_pair("llama")
    tokens = random.Random(length)
    text = [tokens.randrange(VOCAB) for _ in range(length)]
    requests = [score_request(0, [1], [text]), score_request(1, text[: length - 4], [text[-4:], text[:2]])]
    engine = make_engine(
        pair.target, slots=2, max_k=0, proposer="none", max_model_len=20, page_size=PAGE, prefill_budget=13
    )
    engine.submit(requests, plan(0, proposer="none"))
    check(drain(engine), pair.reference, 20)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 17, 30])
@pytest.mark.parametrize("limit", [1, 2, 8])
def test_windows_are_those_of_lm_eval(length: int, limit: int) -> None:
    """The definition of lm_eval.utils.get_rolling_token_windows (context_len 1) and make_disjoint_window."""
    text = list(range(10, 10 + length))
    expected, done = [], min(limit, length)
    expected.append(([5, *text[: done - 1]], text[:done]))
    while done < length:
        count = min(length - done, limit)
        end = done + count
        expected.append((([5, *text])[end - limit : end], text[end - count : end]))
        done = end
    expected = [(a[: len(a) - (len(b) - 1)], b) for a, b in expected]
    found = [(list(w.context), list(w.tokens)) for w in score_windows([5], text, limit)]
    assert found == expected


def test_an_invalid_model_is_an_error_of_the_row(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, slots=2, max_k=0, proposer="none")
    norm = pair.target.model.norm.weight
    before = norm.detach().clone()
    try:
        with torch.no_grad():
            norm[0] = torch.nan
        engine.submit(questions(2), plan(0, proposer="none"))
        assert {c.error for c in drain(engine)} == {"the model's logits hold NaN or infinity for this row"}
    finally:
        with torch.no_grad():
            norm.copy_(before)


def test_rows_that_can_never_run_name_the_reason(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, slots=2, max_k=0, proposer="none", page_size=PAGE, pages=5)
    rows = [score_request(0, [1] * 14, [[2], [3] * 4]), score_request(1, [1], [[2], []]), score_request(2, [1], [[2]])]
    engine.submit(rows, plan(0, proposer="none"))
    errors = [completion.error for completion in drain(engine)]
    assert "18 tokens need 5 KV pages of 4 tokens; this worker has memory for 4" in errors[0]
    assert errors[1:] == ["a continuation has no tokens; expected at least one", ""]
