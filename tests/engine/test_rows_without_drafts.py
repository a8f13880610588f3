"""A plan's `new_rows_limit`: rows that get a slot beside more rows have no drafts, the others go on with theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.engines import drain, generate, make_engine, make_requests, plan, run, slow

from specpipe.core import Completion, ProposerName, Request, SpeculationPlan, StepReport
from specpipe.engine.engine import Engine


def limited(k: int, limit: int, proposer: ProposerName = "draft") -> SpeculationPlan:
    return replace(plan(k, proposer=proposer), new_rows_limit=limit)


def run_limited(engine: Engine, requests: Sequence[Request], k: int, limit: int) -> list[Completion]:
    engine.submit(requests, limited(k, limit))
    return drain(engine)


def completions_of(steps: Sequence[StepReport]) -> list[Completion]:
    return sorted((c for step in steps for c in step.completions), key=lambda c: c.request.row)


@pytest.mark.parametrize("rounds_behind", [slow(0), 1])
def test_first_rows_keep_drafts_and_later_rows_have_none(small_pair, rounds_behind: int) -> None:
    """An equal draft: each round of a row with drafts adds 4 tokens, so all counts are exact."""
    pair = small_pair("llama")
    lengths = (60, 60, 32, 6, 20)
    requests = [
        replace(request, sampling=replace(request.sampling, max_new_tokens=length))
        for request, length in zip(make_requests(7, vocab_size=pair.vocab_size)[2:], lengths, strict=True)
    ]
    engine = make_engine(pair.target, pair.reference_draft, slots=4, rounds_behind=rounds_behind)
    engine.submit(requests[:4], limited(3, limit=2))
    steps: list[StepReport] = []
    alone = 0
    while (step := engine.step()) is not None:
        engine.check_integrity()
        steps.append(step)
        if engine.running == 1:  # at first row 2
            alone += 1
            if alone == 6:
                assert [s.k for s in steps[-4:]] == [0] * 4, "a row without drafts alone decodes plainly"
                engine.submit(requests[4:], limited(3, limit=2))

    completions = completions_of(steps)
    assert [c.draft_tokens for c in completions] == [45, 45, 0, 0, 15]
    assert [c.accepted_tokens for c in completions] == [45, 45, 0, 0, 15]
    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    rounds = [step for step in steps if step.running]
    assert {step.k for step in rounds if step.speculating} == {3}
    prompts = [len(requests[row].prompt_token_ids) - 1 for row in (0, 1, 4)]
    assert sum(step.draft_prefill_tokens for step in steps) == sum(prompts), "the draft prefills its own rows alone"
    assert max(step.draft_behind for step in rounds) <= 3, "rows without drafts are not behind"


@pytest.mark.parametrize(
    ("k", "proposer", "limit"), [slow(0, "draft", 1), slow(1, "draft", 1), (3, "draft", 0), slow(3, "ngram", 2)]
)
def test_greedy_tokens_equal_those_without_a_limit(small_pair, k: int, proposer: ProposerName, limit: int) -> None:
    """Prompts of one and two tokens among them, which the draft model would not have to prefill."""
    pair = small_pair("llama")
    requests = make_requests(7, vocab_size=pair.vocab_size)
    engine = make_engine(pair.target, pair.draft, max_k=k, proposer=proposer)
    engine.submit(requests, limited(k, limit, proposer))

    completions = drain(engine)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    assert any(c.draft_tokens for c in completions) == bool(k and limit)
    assert sum(not c.draft_tokens for c in completions) >= 4 if limit else 7


def test_invariant_tokens_equal_those_of_other_rules(small_pair) -> None:
    pair = small_pair("llama")
    requests = make_requests(5, vocab_size=pair.vocab_size, max_new_tokens=12, temperature=0.8)

    def engine() -> Engine:
        return make_engine(pair.target, pair.draft, method="invariant")

    tokens = [c.token_ids for c in run_limited(engine(), requests, 3, 1)]

    assert tokens == [c.token_ids for c in run(engine(), requests, 3, 3, 0)]
    assert tokens == [c.token_ids for c in run(engine(), requests, 0)]


def test_draft_kv_of_shared_pages_stays_valid(small_pair) -> None:
    """Rows of one prompt, 32 of whose 40 tokens fill shared pages: an equal draft would be rejected on stale KV."""
    pair = small_pair("llama")
    longest = make_requests(7, vocab_size=pair.vocab_size)[6]
    requests = [replace(longest, row=row, request_id=str(row)) for row in range(4)]
    engine = make_engine(pair.target, pair.reference_draft, slots=4)

    together = run_limited(engine, requests, 3, 1)
    alone = run_limited(engine, requests[:1], 3, 1)

    assert [(c.draft_tokens, c.accepted_tokens) for c in together + alone] == [
        (15, 15),
        (0, 0),
        (0, 0),
        (0, 0),
        (15, 15),
    ]
    assert {c.token_ids for c in together + alone} == {tuple(generate(pair.reference, [longest])[0])}


def test_a_preempted_row_starts_by_the_rule_again(small_pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = small_pair("llama")
    requests = make_requests(6, vocab_size=pair.vocab_size, max_new_tokens=40)
    engine = make_engine(pair.target, pair.draft, slots=6, pages=22, page_size=4)
    starts: dict[int, list[bool]] = {}
    admit = engine._scheduler.admit

    def noted() -> object:
        admitted = admit()
        running = len(engine._scheduler.rows) - len(admitted)
        for i, admission in enumerate(admitted, 1):
            starts.setdefault(admission.request.row, []).append(running + i <= 2)
        return admitted

    monkeypatch.setattr(engine._scheduler, "admit", noted)

    completions = run_limited(engine, requests, 3, 2)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    assert [c.draft_tokens > 0 for c in completions] == [any(starts[row]) for row in range(6)]
    assert any(len(set(rule)) == 2 for rule in starts.values()), "a row has drafts in one slot and none in another"
