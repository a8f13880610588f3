"""The engine on a CUDA device, with the Triton kernels."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from support.engines import drain, generate, make_engine, make_requests, plan, run, run_in_turn, steps_of
from support.small_models import ON_GPU

pytestmark = pytest.mark.gpu


TIGHT = {"slots": 6, "pages": 12, "page_size": 16, "max_model_len": 160}
"""Too few pages for rows of 90 new tokens in all slots."""


def on_cuda(pair, dtype: torch.dtype = torch.float32):
    """Copies, so that the pair that other tests share stays where it is."""
    moved = [copy.deepcopy(model).to("cuda", dtype) for model in (pair.target, pair.draft, pair.reference)]
    return pair._replace(target=moved[0], draft=moved[1], reference=moved[2])


@pytest.mark.parametrize("kind", [*ON_GPU["own layers"], "gpt2", "gemma2"])
@pytest.mark.parametrize(("k", "proposer"), [(0, "none"), (1, "draft"), (3, "draft"), (7, "draft"), (3, "ngram")])
def test_greedy_equals_generate_in_fp32(small_pair, kind: str, k: int, proposer: str) -> None:
    pair = on_cuda(small_pair(kind))
    requests = make_requests(7, vocab_size=pair.vocab_size)

    completions = run(make_engine(pair.target, pair.draft, max_k=k, proposer=proposer), requests, k)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)


@pytest.mark.parametrize("rounds_behind", [0, 1, 2])
def test_k_that_changes_with_occupancy(small_pair, rounds_behind: int) -> None:
    pair = on_cuda(small_pair("llama"))
    requests = [
        replace(request, sampling=replace(request.sampling, max_new_tokens=12 + 7 * request.row))
        for request in make_requests(8, vocab_size=pair.vocab_size)
    ]
    engine = make_engine(pair.target, pair.draft, slots=4, max_k=7, max_model_len=128, rounds_behind=rounds_behind)

    completions = run_in_turn(engine, requests, 0, 1, 7, 3, 0)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)


@pytest.mark.parametrize("proposer", ["draft", "ngram"])
def test_rows_that_start_above_the_limit_have_no_drafts(small_pair, proposer: str) -> None:
    pair = on_cuda(small_pair("llama"))
    requests = make_requests(7, vocab_size=pair.vocab_size, max_new_tokens=40)
    engine = make_engine(pair.target, pair.draft, slots=8, proposer=proposer)

    engine.submit(requests, replace(plan(3, proposer=proposer), new_rows_limit=2))
    completions = drain(engine)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    assert not any(c.draft_tokens for c in completions[2:])
    assert proposer == "ngram" or all(c.draft_tokens for c in completions[:2]), "n-grams need a match"


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_step_waits_for_the_previous_round_alone(small_pair) -> None:
    """A host that waits launches nothing meanwhile. The first pass captures graphs and may wait."""
    pair = on_cuda(small_pair("llama"))
    requests = make_requests(9, vocab_size=pair.vocab_size, max_new_tokens=90)
    engine = make_engine(pair.target, pair.draft, **TIGHT)
    once = run(engine, requests, 3)

    engine.submit(requests, plan(3))
    completions, preempted = [], 0
    torch.cuda.set_sync_debug_mode("error")
    try:
        while (step := engine.step()) is not None:
            completions += step.completions
            preempted += sum(part.preemptions for part in step.shards.values())
    finally:
        torch.cuda.set_sync_debug_mode("default")

    completions.sort(key=lambda completion: completion.request.row)
    assert [c.token_ids for c in completions] == [c.token_ids for c in once]
    assert preempted


def test_invariant_tokens_do_not_depend_on_k(small_pair) -> None:
    pair = on_cuda(small_pair("llama"))
    requests = make_requests(7, vocab_size=pair.vocab_size, temperature=0.9, top_p=0.95)

    outputs = []
    for k, proposer in ((0, "none"), (3, "draft"), (7, "draft"), (3, "ngram")):
        engine = make_engine(pair.target, pair.draft, max_k=k, proposer=proposer, method="invariant")
        outputs.append([c.token_ids for c in run(engine, requests, k)])

    assert all(output == outputs[0] for output in outputs)


@pytest.mark.parametrize("method", ["standard", "block", "invariant", "synthetic"])
def test_every_method_in_bf16(small_pair, method: str) -> None:
    pair = on_cuda(small_pair("llama"), torch.bfloat16)
    rates = (0.9, 0.6, 0.3) if method == "synthetic" else ()
    requests = make_requests(40, vocab_size=pair.vocab_size, temperature=0.8, top_k=50)
    engine = make_engine(pair.target, pair.draft, slots=16, method=method, synthetic_rates=rates)

    completions = run(engine, requests, 3)

    assert {len(c.token_ids) for c in completions} == {20}
    assert 0 < sum(c.accepted_tokens for c in completions) < sum(c.draft_tokens for c in completions)


@pytest.mark.parametrize(("k", "proposer"), [(0, "none"), (3, "draft"), (3, "ngram")])
def test_penalties_and_logprobs_equal_transformers(small_pair, k: int, proposer: str) -> None:
    pair = on_cuda(small_pair("llama"))
    requests = make_requests(7, vocab_size=pair.vocab_size, repetition_penalty=1.3, logprobs=3)

    completions = run(make_engine(pair.target, pair.draft, max_k=k, proposer=proposer), requests, k)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests, repetition_penalty=1.3)
    for completion in completions:
        logprobs = completion.logprobs
        assert logprobs.own.tolist() == pytest.approx(logprobs.top[:: logprobs.n].tolist(), abs=1e-5)
    plain = make_requests(7, vocab_size=pair.vocab_size, temperature=0.8, logprobs=3)
    for completion in run(make_engine(pair.target, pair.draft, max_k=k, proposer=proposer), plain, k):
        start = len(completion.request.prompt_token_ids)
        ids = torch.tensor([[*completion.request.prompt_token_ids, *completion.token_ids]], device="cuda")
        with torch.no_grad():
            expected = (pair.reference(ids).logits[0, start - 1 : -1].double() / 0.8).log_softmax(-1)
        own = expected.gather(1, ids[0, start:, None])[:, 0]
        assert completion.logprobs.own.tolist() == pytest.approx(own.tolist(), abs=1e-3)


def test_steps_report_seconds_of_every_phase(small_pair) -> None:
    pair = on_cuda(small_pair("llama"))
    engine = make_engine(pair.target, pair.draft)
    assert run(engine, make_requests(5, vocab_size=pair.vocab_size), 3)
    engine.submit(make_requests(5, vocab_size=pair.vocab_size), engine._scheduler.plan)
    measured = 0.0
    while (report := engine.step()) is not None:
        measured += report.phases.get("verify", 0.0)
        assert all(seconds >= 0 for seconds in report.phases.values())
    assert measured > 0


@pytest.mark.parametrize(("k", "proposer"), [(0, "none"), (3, "draft"), (3, "ngram")])
def test_preempted_rows_keep_the_targets_tokens(small_pair, k: int, proposer: str) -> None:
    pair = on_cuda(small_pair("llama"))
    requests = make_requests(9, vocab_size=pair.vocab_size, max_new_tokens=90)
    engine = make_engine(pair.target, pair.draft, max_k=k, proposer=proposer, **TIGHT)
    engine.submit(requests, plan(k, proposer=proposer))
    completions, preemptions = [], 0
    while (report := engine.step()) is not None:
        completions += report.completions
        preemptions += sum(part.preemptions for part in report.shards.values())
    engine.check_integrity()

    assert preemptions > 2
    tokens = {c.request.row: list(c.token_ids) for c in completions}
    assert [tokens[row] for row in range(9)] == generate(pair.reference, requests)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
@pytest.mark.parametrize(("k", "proposer"), [(0, "none"), (3, "draft"), (3, "ngram")])
def test_rows_that_read_shared_pages_together_keep_their_tokens(small_pair, kind: str, k: int, proposer: str) -> None:
    """Enough rows and pages for groups on a GPU (GPU_LIMITS), beside rows that share nothing."""
    pair = on_cuda(small_pair(kind))
    shared = make_requests(1, vocab_size=pair.vocab_size, seed=5)[0].prompt_token_ids * 192
    requests = [
        replace(request, prompt_token_ids=(*(shared if request.row % 8 else ()), *request.prompt_token_ids))
        for request in make_requests(24, vocab_size=pair.vocab_size, max_new_tokens=12)
    ]
    tokens, contexts = [], []
    for sharing in (True, False):
        pair = on_cuda(small_pair(kind))  # a model is compiled once
        engine = make_engine(
            pair.target, pair.draft, slots=24, proposer=proposer, max_model_len=256, prefill_budget=8192,
            prefix_sharing=sharing,
        )  # fmt: skip
        engine.submit(requests, plan(k, proposer=proposer))
        steps = steps_of(engine)
        done = sorted((c for step in steps for c in step.completions), key=lambda c: c.request.row)
        tokens.append([c.token_ids for c in done])
        contexts.append(min(step.context for step in steps if step.running == 24))
    assert tokens[0] == tokens[1]
    assert [list(ids) for ids in tokens[0]] == generate(pair.reference, requests)
    assert contexts[0] < 60 and contexts[1] > 170, "pages read once count once"


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("proposer", ["replay", "joined"])
def test_rows_that_follow_earlier_answers_keep_the_targets_tokens(small_pair, proposer: str) -> None:
    """Right answers, answers that depart, and none, in captured rounds; the second pass may not wait."""
    pair = on_cuda(small_pair("llama"))
    requests = make_requests(9, vocab_size=pair.vocab_size, max_new_tokens=90)
    answers = generate(pair.reference, requests)
    texts = [(*a[:11], 9, *a[12:]) if row % 3 == 1 else tuple(a) for row, a in enumerate(answers)]
    rows = [replace(r, reference=texts[r.row] if r.row % 3 else ()) for r in requests]
    choice = "auto" if proposer == "joined" else proposer
    engine = make_engine(pair.target, pair.draft, proposer=choice, max_k=3, replay_k=15, **TIGHT)
    for mode in ("default", "error"):
        engine.submit(rows, plan(15, proposer=proposer))
        torch.cuda.set_sync_debug_mode(mode)
        try:
            completions = []
            while (step := engine.step()) is not None:
                completions += step.completions
        finally:
            torch.cuda.set_sync_debug_mode("default")
        completions.sort(key=lambda completion: completion.request.row)
        assert [list(c.token_ids) for c in completions] == answers
        assert sum(c.followed_tokens for c in completions) > 300
    engine.check_integrity()
