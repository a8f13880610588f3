"""Ends of rows: stop strings, stop ids, limits, refusals and broken logits, and their counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.engines import drain, make_engine, make_requests, plan, run, slow, steps_of


@pytest.mark.parametrize(("k", "rounds_behind"), [slow(0, 0), (0, 1), slow(3, 0), (3, 1)])
def test_a_stop_string_cuts_ids_and_text(small_pair, k: int, rounds_behind: int) -> None:
    pair = small_pair("llama")
    plain = make_requests(5, vocab_size=pair.vocab_size)
    free = run(make_engine(pair.target, pair.draft), plain, 3)
    stops = [f"{c.token_ids[6]} {c.token_ids[7]} " for c in free]
    requests = [replace(r, sampling=replace(r.sampling, stop=(s,))) for r, s in zip(plain, stops, strict=True)]
    engine = make_engine(pair.target, pair.draft, max_k=3, rounds_behind=rounds_behind)

    completions = run(engine, requests, k)

    for stopped, whole, stop in zip(completions, free, stops, strict=True):
        assert stopped.finish_reason == "stop"
        assert stop not in stopped.text
        text = "".join(f"{t} " for t in stopped.token_ids)
        assert text.startswith(stopped.text + stop), "the ids end with the token that completes the stop string"
        assert whole.token_ids[: len(stopped.token_ids)] == stopped.token_ids
        assert len(stopped.token_ids) <= 8


def test_stop_ids_end_rows_that_ignore_eos(small_pair) -> None:
    pair = small_pair("llama")
    plain = make_requests(4, vocab_size=pair.vocab_size)
    free = run(make_engine(pair.target, pair.draft), plain, 3)
    eos, stop = free[0].token_ids[3], free[0].token_ids[11]
    first = replace(plain[0].sampling, ignore_eos=True, stop_token_ids=(stop,))
    engine = make_engine(pair.target, pair.draft, eos_ids=[eos])

    completion = run(engine, [replace(plain[0], sampling=first)], 3)[0]

    expected = free[0].token_ids[: free[0].token_ids.index(stop) + 1]
    assert completion.token_ids == expected
    assert completion.finish_reason == "stop"


def test_accepted_counts_cover_only_what_was_emitted(small_pair) -> None:
    pair = small_pair("llama")
    requests = make_requests(6, vocab_size=pair.vocab_size)

    for completion in run(make_engine(pair.target, pair.draft), requests, 3):
        assert completion.accepted_tokens < len(completion.token_ids) == 20
        assert completion.accepted_tokens <= completion.draft_tokens
        rounds = completion.accepted_per_round
        assert rounds is not None and sum(rounds) == completion.accepted_tokens
        assert sum(rounds) + len(rounds) - 20 in (0, 1)  # the last round may end before its own token


def test_accepted_drafts_behind_a_stop_string_are_no_output(small_pair) -> None:
    pair = small_pair("llama")
    plain = make_requests(5, vocab_size=pair.vocab_size)
    stops = [c.token_ids[5] for c in run(make_engine(pair.target, pair.draft), plain, 0)]
    requests = [replace(r, sampling=replace(r.sampling, stop=(f" {s} ",))) for r, s in zip(plain, stops, strict=True)]
    engine = make_engine(pair.target, pair.draft, max_k=4)
    engine.submit(requests, plan(4))
    steps = steps_of(engine)
    parts = [part for step in steps for part in step.shards.values()]
    rows = [completion for step in steps for completion in step.completions]
    counted = sum(part.emitted_accepted_tokens for part in parts)
    assert all(sum(row.accepted_per_round or ()) == row.accepted_tokens for row in rows)
    assert counted == sum(row.accepted_tokens for row in rows) < sum(part.verified.accepted_tokens for part in parts)


@pytest.mark.parametrize("rounds_behind", [0, 1])
def test_step_counts_add_up_to_those_of_rows(small_pair, rounds_behind: int) -> None:
    pair = small_pair("llama")
    requests = make_requests(9, vocab_size=pair.vocab_size)
    engine = make_engine(pair.target, pair.draft, rounds_behind=rounds_behind)
    engine.submit(requests, plan(3))
    emitted = prefilled = 0
    verified = accepted_by_rows = 0
    while (report := engine.step()) is not None:
        if rounds_behind == 0:  # otherwise the round that a step reads ran before the step began
            assert sum(report.phases.values()) == pytest.approx(report.seconds, rel=1e-6)
        for part in report.shards.values():
            counts = part.verified
            assert counts.accepted_tokens == sum(counts.accepted_per_position)
            assert counts.drafts == counts.recovered_tokens + counts.bonus_tokens
            emitted += part.emitted_tokens
            prefilled += part.prefill_tokens
            verified += counts.accepted_tokens
        accepted_by_rows += sum(c.accepted_tokens for c in report.completions)
    assert emitted == 9 * 20
    assert prefilled == sum(len(r.prompt_token_ids) - 1 for r in requests)
    assert verified == accepted_by_rows


def test_a_row_that_cannot_fit_is_refused_alone(small_pair) -> None:
    pair = small_pair("llama")
    good = make_requests(3, vocab_size=pair.vocab_size)
    long = replace(good[1], sampling=replace(good[1].sampling, max_new_tokens=500))
    empty = replace(good[2], prompt_token_ids=())
    many = replace(good[2], row=3, sampling=replace(good[2].sampling, stop_token_ids=tuple(range(40))))

    completions = run(make_engine(pair.target, pair.draft), [good[0], long, empty, many], 3)

    assert [c.finish_reason for c in completions] == ["length", "error", "error", "error"]
    assert "max_new_tokens 500 is over the limit of 96" in completions[1].error
    assert "expected at least one" in completions[2].error
    assert "at most 16" in completions[3].error
    assert completions[0].token_ids == run(make_engine(pair.target, pair.draft), good[:1], 3)[0].token_ids


def test_a_pool_too_small_for_a_row_says_so(small_pair) -> None:
    pair = small_pair("llama")
    request = make_requests(7, vocab_size=pair.vocab_size)[6]  # 40 + 20 tokens: 4 pages of 16
    completion = run(make_engine(pair.target, pair.draft, pages=4), [request], 3)[0]
    assert "needs 4 KV pages of 16 tokens; this worker has memory for 3: lower max_new_tokens to 8" in completion.error
    fits = replace(request, sampling=replace(request.sampling, max_new_tokens=8))
    assert len(run(make_engine(pair.target, pair.draft, pages=4), [fits], 3)[0].token_ids) == 8
    completion = run(make_engine(pair.target, pair.draft, pages=3), [request], 3)[0]
    assert "memory for 2: the prompt alone is too long" in completion.error


def test_a_small_pool_makes_rows_wait_and_loses_none(small_pair) -> None:
    pair = small_pair("llama")
    requests = make_requests(9, vocab_size=pair.vocab_size)
    roomy = run(make_engine(pair.target, pair.draft, slots=6), requests, 3)
    tight = make_engine(pair.target, pair.draft, slots=6, pages=6)
    assert [c.token_ids for c in run(tight, requests, 3)] == [c.token_ids for c in roomy]


def test_nan_logits_fail_their_row_alone(small_pair) -> None:
    """A poisoned embedding reaches one row only; its neighbours' tokens do not move."""
    pair = small_pair("llama")
    requests = make_requests(4, vocab_size=pair.vocab_size)
    clean = run(make_engine(pair.target, pair.draft), requests, 3)
    unused = next(t for t in range(pair.vocab_size) if all(t not in c.token_ids for c in clean))
    others = [r for r in requests if unused not in r.prompt_token_ids]
    victim = replace(requests[0], row=99, prompt_token_ids=(unused,))
    embedding = pair.target.get_input_embeddings().weight
    with torch.no_grad():
        kept = embedding[unused].clone()
        embedding[unused] = torch.nan
    try:
        completions = run(make_engine(pair.target, pair.draft), [victim, *others], 3)
    finally:
        with torch.no_grad():
            embedding[unused] = kept
    assert completions[-1].finish_reason == "error"
    assert "NaN" in completions[-1].error
    assert [c.token_ids for c in completions[:-1]] == [clean[r.row].token_ids for r in others]


def test_rows_may_be_submitted_while_others_run(small_pair) -> None:
    pair = small_pair("llama")
    requests = make_requests(8, vocab_size=pair.vocab_size)
    at_once = run(make_engine(pair.target, pair.draft), requests, 3)
    engine = make_engine(pair.target, pair.draft)
    engine.submit(requests[:3], plan(3))
    early = [c for _ in range(4) if (report := engine.step()) for c in report.completions]
    engine.submit(requests[3:], plan(1))
    completions = sorted(early + drain(engine), key=lambda c: c.request.row)
    assert [c.token_ids for c in completions] == [c.token_ids for c in at_once]
