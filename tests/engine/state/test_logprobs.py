"""Log-probabilities equal those of transformers for every proposer and K, and end where the tokens end."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.engines import make_engine, make_requests, run, slow

from specpipe.core import Completion


def tops(completion: Completion) -> list[list[tuple[int, float]]]:
    """Returns for each token its alternatives, id and log-probability."""
    logprobs = completion.logprobs
    assert logprobs is not None
    pairs = list(zip(logprobs.top_ids, logprobs.top, strict=True))
    rows = [pairs[i * logprobs.n : (i + 1) * logprobs.n] for i in range(len(completion.token_ids))]
    return [[pair for pair in row if pair[0] >= 0] for row in rows]


def check(model: torch.nn.Module, completion: Completion) -> None:
    """Compares with the log-softmax of one forward over prompt and output."""
    request = completion.request
    s, start = request.sampling, len(request.prompt_token_ids)
    ids = torch.tensor([[*request.prompt_token_ids, *completion.token_ids]], device=model.device)
    with torch.no_grad():
        logits = model(ids).logits[0, start - 1 : -1].double().cpu()
    if s.temperature:
        logits /= s.temperature
        if s.top_k:
            logits = logits.masked_fill(logits < logits.topk(s.top_k).values[:, -1:], -torch.inf)
    expected = logits.log_softmax(-1)
    own = expected.gather(1, ids[0, start:, None].cpu())[:, 0]
    assert completion.logprobs is not None
    assert completion.logprobs.own.tolist() == pytest.approx(own.tolist(), abs=1e-4)
    wanted = min(s.logprobs, s.top_k) if s.temperature and s.top_k else s.logprobs
    for top, row in zip(tops(completion), expected, strict=True):
        assert len(top) == wanted
        assert [p for _, p in top] == pytest.approx(row.topk(wanted).values.tolist(), abs=1e-4)
        assert [p for _, p in top] == pytest.approx(row[[i for i, _ in top]].tolist(), abs=1e-4)


@pytest.mark.parametrize("rounds_behind", [1, slow(0)])
@pytest.mark.parametrize(("k", "proposer"), [slow(0, "none"), (3, "draft"), slow(3, "ngram")])
@pytest.mark.parametrize("method", ["standard", slow("block"), slow("invariant")])
def test_logprobs_equal_transformers(small_pair, k: int, proposer: str, method: str, rounds_behind: int) -> None:
    """Greedy and sampled rows that request different numbers of alternatives, or none, in one batch."""
    pair = small_pair("llama")
    requests = make_requests(9, vocab_size=pair.vocab_size, temperature=0.8, top_k=9)
    requested = (0, 3, 20, None, 5)
    requests = [
        replace(r, sampling=replace(r.sampling, logprobs=requested[r.row % 5], temperature=0.8 * (r.row % 2)))
        for r in requests
    ]
    engine = make_engine(
        pair.target, pair.draft, max_k=k, proposer=proposer, method=method, rounds_behind=rounds_behind
    )

    completions = run(engine, requests, k)

    for completion in completions:
        if completion.request.sampling.logprobs is None:
            assert completion.logprobs is None
        else:
            check(pair.reference, completion)
    silent = [replace(r, sampling=replace(r.sampling, logprobs=None)) for r in requests]
    again = make_engine(pair.target, pair.draft, max_k=k, proposer=proposer, method=method)
    assert [c.token_ids for c in run(again, silent, k)] == [c.token_ids for c in completions]


@pytest.mark.parametrize(("k", "rounds_behind"), [slow(0, 0), slow(0, 1), slow(3, 0), (3, 1)])
def test_logprobs_end_where_the_row_ends(small_pair, k: int, rounds_behind: int) -> None:
    pair = small_pair("llama")
    requests = make_requests(6, vocab_size=pair.vocab_size, max_new_tokens=17, logprobs=2)
    free = run(make_engine(pair.target, pair.draft), requests, 3)
    eos = free[0].token_ids[5]
    requests[1] = replace(requests[1], sampling=replace(requests[1].sampling, stop=(f"{free[1].token_ids[6]} ",)))
    engine = make_engine(pair.target, pair.draft, eos_ids=[eos], rounds_behind=rounds_behind)

    completions = run(engine, requests, k)

    assert {c.finish_reason for c in completions} == {"stop", "length"}
    for completion in completions:
        check(pair.reference, completion)


def test_penalised_rows_report_the_penalised_distribution(small_pair) -> None:
    pair = small_pair("llama")
    requests = make_requests(5, vocab_size=pair.vocab_size, logprobs=1, repetition_penalty=1.5, frequency_penalty=1.0)

    completions = run(make_engine(pair.target, pair.draft), requests, 3)

    for completion in completions:
        assert completion.logprobs is not None
        own = zip(completion.token_ids, completion.logprobs.own, strict=True)
        assert [top for (top,) in tops(completion)] == list(own), "a greedy token is the most likely one"
