"""A draft that was off while K was 0 is caught up before its rows speculate, and then accepts as if never off."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.engines import drain, make_engine, make_requests, plan, run, slow, steps_of

from specpipe.core import Exploration, SpeculationPlan
from specpipe.engine.engine import Engine
from specpipe.engine.state.row_state import RowState


def test_plain_decoding_never_touches_the_draft(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft)
    calls: list[int] = []
    hook = pair.draft.register_forward_hook(lambda *_: calls.append(1))
    engine.submit(make_requests(4, vocab_size=pair.vocab_size), plan(0))
    drain(engine)
    hook.remove()
    assert not calls


def accepted_drafts(engine: Engine) -> dict[tuple[int, int], bool]:
    """Drains an engine that drafts one token a round. (row, position of a draft) -> whether it was accepted."""
    found: dict[tuple[int, int], bool] = {}
    collector = engine._collector
    take = collector._extend_row

    def noted(row: RowState, values: list[int], *rest: Any) -> Any:
        accepted, proposed = values[-5:-3]
        if proposed:
            found[row.request.row, row.length] = accepted == 1
        return take(row, values, *rest)

    collector._extend_row = noted
    drain(engine)
    return found


@pytest.mark.parametrize(("pause", "rounds_behind"), [slow(1, 0), (1, 1), slow(2, 0), slow(2, 1), (20, 0), slow(20, 1)])
def test_a_pause_of_speculation_changes_no_acceptance(small_pair, pause: int, rounds_behind: int) -> None:
    """K=1 and greedy: acceptance of a draft depends on its prefix alone, if the draft model's KV is valid."""
    pair = small_pair("llama")
    requests = make_requests(3, vocab_size=pair.vocab_size, max_new_tokens=60)
    never_off = make_engine(pair.target, pair.draft, rounds_behind=rounds_behind)
    never_off.submit(requests, plan(1))
    whole = accepted_drafts(never_off)

    engine = make_engine(pair.target, pair.draft, rounds_behind=rounds_behind)
    engine.submit(requests, plan(1))
    for k, steps in ((1, 5), (0, pause), (1, 0)):
        engine.submit([], plan(k))
        for _ in range(steps):
            engine.step()
    late = accepted_drafts(engine)

    both = late.keys() & whole.keys()
    assert len(both) > 25, "too little to compare"
    assert {place: late[place] for place in both} == {place: whole[place] for place in both}
    assert {late[place] for place in both} == {True, False}


@pytest.mark.parametrize("rounds_behind", [slow(0), 1])
def test_an_equal_draft_is_never_rejected_while_k_changes(small_pair, rounds_behind: int) -> None:
    """Stale or missing KV of the draft model would cause a rejection."""
    pair = small_pair("llama")
    engine = make_engine(
        pair.target, pair.reference_draft, slots=4, max_k=5, rounds_behind=rounds_behind, prefill_budget=16
    )
    engine.submit(make_requests(9, vocab_size=pair.vocab_size, max_new_tokens=40), plan(0))
    rejected = drafted = 0
    for step in range(2000):
        if step % 3 == 0:
            engine.submit([], plan((2, 0, 5, 1, 0, 0, 3)[step // 3 % 7]))
        report = engine.step()
        if report is None:
            break
        engine.check_integrity()
        for part in report.shards.values():
            rejected += part.verified.recovered_tokens
            drafted += part.verified.draft_tokens
    assert drafted > 100
    assert rejected == 0


def test_catch_up_stays_within_the_prefill_budget(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, prefill_budget=8)
    fed: list[int] = []

    def note(_module: object, _args: object, kwargs: dict[str, torch.Tensor]) -> None:
        fed.append(kwargs["input_ids"].shape[1])

    hook = pair.draft.register_forward_pre_hook(note, with_kwargs=True)
    engine.submit(make_requests(3, vocab_size=pair.vocab_size, max_new_tokens=30), plan(0))
    for _ in range(25):
        engine.step()
    assert not fed
    engine.submit([], plan(1))
    drain(engine)
    hook.remove()
    assert max(fed) <= 8


def test_under_a_fixed_k_rows_draft_from_their_first_round(small_pair) -> None:
    """Long prompts beside short ones and a small budget: no first round waits for the draft model's prefill."""
    pair = small_pair("llama")
    requests = make_requests(7, vocab_size=pair.vocab_size, max_new_tokens=9, temperature=0.8)
    alone = [run(make_engine(pair.target, pair.draft), [request], 3)[0] for request in requests]
    together = run(make_engine(pair.target, pair.draft, slots=6, prefill_budget=11), requests, 3)
    assert [(c.token_ids, c.draft_tokens) for c in together] == [(c.token_ids, c.draft_tokens) for c in alone]


def behind_by_20_rounds(small_pair, *, prefill_budget: int, rounds_behind: int = 0) -> Engine:
    """Returns an engine after 20 rounds without drafts; six rows are running."""
    pair = small_pair("llama")
    engine = make_engine(
        pair.target, pair.reference_draft, slots=6, rounds_behind=rounds_behind, prefill_budget=prefill_budget
    )
    engine.submit(make_requests(6, vocab_size=pair.vocab_size, max_new_tokens=55), plan(0))
    for _ in range(20):
        engine.step()
    return engine


def test_an_exploring_round_catches_up_a_few_rows(small_pair) -> None:
    engine = behind_by_20_rounds(small_pair, prefill_budget=500)
    tries = Exploration(k=3, proposer="draft", every=8, catch_up=40)
    off = SpeculationPlan(ks=(0,), proposer="none", queue_depth=0.0, reason="test", explore=(tries,))
    engine.submit([], off)

    tried = [step for step in steps_of(engine) if step.k]

    assert len(tried) >= 4 and all(step.draft_prefill_tokens <= 40 for step in tried)
    drafts = [sum(part.verified.drafts for part in step.shards.values()) for step in tried]
    assert 1 <= drafts[0] < 6 and max(drafts) > drafts[0]


@pytest.mark.parametrize("rounds_behind", [slow(0), 1])
def test_a_step_reports_how_far_the_draft_is_behind(small_pair, rounds_behind: int) -> None:
    pair = small_pair("llama")
    requests = make_requests(3, vocab_size=pair.vocab_size, max_new_tokens=40)
    prompts = sum(len(request.prompt_token_ids) for request in requests) / 3
    engine = make_engine(pair.target, pair.draft, rounds_behind=rounds_behind, prefill_budget=200)
    engine.submit(requests, plan(0))
    steps = [step for step in (engine.step() for _ in range(15)) if step.running == 3]
    plain = [step.draft_behind for step in steps]
    assert plain[1] == pytest.approx(prompts, abs=1)
    assert plain[-1] - plain[1] == len(plain) - 2
    engine.submit([], plan(2))
    caught_up = [step.draft_behind for step in steps_of(engine) if step.k]
    assert max(caught_up[2:]) <= 1
