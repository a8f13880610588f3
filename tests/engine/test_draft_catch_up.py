"""A draft that was off while K was 0 is caught up before its rows speculate, and then accepts as if never off."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.engines import drain, make_engine, make_requests, plan, run

from specpipe.engine.engine import Engine
from specpipe.engine.rows import Row


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
    take = collector._take

    def noted(row: Row, values: list[int], *rest: Any) -> Any:
        if values[-2]:
            found[row.request.row, row.length] = values[-3] == 1
        return take(row, values, *rest)

    collector._take = noted
    drain(engine)
    return found


@pytest.mark.parametrize("rounds_behind", [0, 1])
@pytest.mark.parametrize("pause", [1, 2, 20])
def test_acceptance_after_a_pause_equals_acceptance_without_one(small_pair, pause: int, rounds_behind: int) -> None:
    """K=1 and greedy: whether a draft is accepted depends on its prefix alone, if its KV is what it should be."""
    pair = small_pair("llama")
    requests = make_requests(3, vocab_size=pair.vocab_size, max_new_tokens=75)
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


@pytest.mark.parametrize("rounds_behind", [0, 1])
def test_a_draft_that_equals_the_target_is_always_right_however_k_changes(small_pair, rounds_behind: int) -> None:
    """Any KV of the draft that is stale or missing would show as a rejection."""
    pair = small_pair("llama")
    engine = make_engine(
        pair.target, pair.reference_draft, slots=4, max_k=5, rounds_behind=rounds_behind, prefill_budget=16
    )
    engine.submit(make_requests(9, vocab_size=pair.vocab_size, max_new_tokens=50), plan(0))
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


def test_catching_up_obeys_the_prefill_budget(small_pair) -> None:
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
    """Long prompts beside short ones, and a small budget: nobody's first round waits for a draft's turn."""
    pair = small_pair("llama")
    requests = make_requests(9, vocab_size=pair.vocab_size, temperature=0.8)
    alone = [run(make_engine(pair.target, pair.draft), [request], 3)[0] for request in requests]
    together = run(make_engine(pair.target, pair.draft, slots=6, prefill_budget=11), requests, 3)
    assert [(c.token_ids, c.draft_tokens) for c in together] == [(c.token_ids, c.draft_tokens) for c in alone]
