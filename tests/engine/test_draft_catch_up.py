"""A draft that was off while K was 0 is caught up before its rows speculate, and then accepts as if never off."""

from __future__ import annotations

import torch
from support.engines import drain, make_engine, make_requests, plan


def test_plain_decoding_never_touches_the_draft(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft)
    calls: list[int] = []
    hook = pair.draft.register_forward_hook(lambda *_: calls.append(1))
    engine.submit(make_requests(4, vocab_size=pair.vocab_size), plan(0))
    drain(engine)
    hook.remove()
    assert not calls


def test_acceptance_after_a_pause_equals_acceptance_without_one(small_pair) -> None:
    """From the same prefix on, every round proposes and accepts what it would have without the pause."""
    pair = small_pair("llama")
    requests = make_requests(3, vocab_size=pair.vocab_size, max_new_tokens=40)

    def accepted_after(pause: int, rounds_behind: int) -> list[int]:
        engine = make_engine(pair.target, pair.draft, rounds_behind=rounds_behind)
        engine.submit(requests, plan(0))
        while engine.running == 0 or min(len(r.generated) for r in engine._scheduler.rows.values()) < pause:
            engine.step()
        committed = [len(r.generated) for r in engine._scheduler.rows.values()]
        engine.submit([], plan(1))
        completions = drain(engine)
        # K=1 and greedy: whether a position is accepted depends on its prefix alone.
        assert all(c.draft_tokens > 0 for c in completions)
        assert all(c.accepted_tokens <= 40 - n for c, n in zip(completions, committed, strict=True))
        return [c.accepted_tokens for c in completions]

    never_off = make_engine(pair.target, pair.draft)
    never_off.submit(requests, plan(1))
    whole = [c.accepted_tokens for c in drain(never_off)]
    for rounds_behind in (0, 1):
        late = accepted_after(20, rounds_behind)
        # Half of the row was decoded plainly; what is left must accept at about the whole row's rate.
        assert sum(late) >= 0.3 * sum(whole)


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
