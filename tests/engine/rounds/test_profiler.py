"""Measurement of rounds before the first row; it leaves the engine's state as it was."""

from __future__ import annotations

import pytest
import torch
from support.engines import drain, make_engine, make_requests, plan, run

from specpipe.core import Profile, SamplingParams
from specpipe.engine.rounds.profiled_rounds import rounds_to_profile
from specpipe.engine.rounds.profiler import CPU_TURNS


def test_rounds_of_every_shape_are_timed(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, slots=5, proposer="auto")
    shapes = rounds_to_profile(5, 3, engine.proposers)
    assert shapes[:6] == [
        (1, "none", 0),
        (5, "none", 0),
        (1, "draft", 2),
        (5, "draft", 2),
        (1, "ngram", 2),
        (5, "ngram", 2),
    ]
    assert shapes[6:] == [(2, "none", 0), (2, "draft", 2), (2, "ngram", 2)]
    found = engine.profile(SamplingParams(), shapes, context=40, within_s=60)
    assert [(point.running, point.proposer, point.k) for point in found.rounds] == shapes
    assert all(point.seconds > 0 and point.rounds > 0 and point.context == 40 for point in found.rounds)


def test_profiling_leaves_the_state_unchanged(small_pair) -> None:
    pair = small_pair("llama")
    requests = make_requests(4, vocab_size=pair.vocab_size, temperature=0.8)
    expected = [c.token_ids for c in run(make_engine(pair.target, pair.draft), requests, 2)]
    engine = make_engine(pair.target, pair.draft)
    live = {name: value.clone() for name, value in vars(engine._state).items() if isinstance(value, torch.Tensor)}

    engine.profile(SamplingParams(), rounds_to_profile(3, 2, engine.proposers), context=40, within_s=60)

    engine.check_integrity()
    slots = engine.config.slots
    for name, before in live.items():
        assert torch.equal(getattr(engine._state, name)[:slots], before[:slots]), name
    assert engine.step() is None
    assert [c.token_ids for c in run(engine, requests, 2)] == expected


def test_without_time_the_profile_is_empty(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft)
    assert (
        engine.profile(SamplingParams(), rounds_to_profile(3, 2, engine.proposers), context=40, within_s=0.0)
        == Profile()
    )
    engine.submit(make_requests(2, vocab_size=pair.vocab_size), plan(2))
    drain(engine)


def test_rounds_on_a_cpu_are_timed_in_turns(small_pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst of load slows all points down, not those that it meets."""
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, slots=3)
    ran: list[tuple[int, int]] = []
    rounds = engine._launcher.rounds
    monkeypatch.setattr(
        rounds, "run", lambda rows, key, run=rounds.run: ran.append((len(rows), key.k)) or run(rows, key)
    )
    shapes = rounds_to_profile(3, 2, engine.proposers)
    found = engine.profile(SamplingParams(), shapes, context=40, within_s=60)
    assert ran == [(rows, k) for rows, _, k in shapes] * (CPU_TURNS + 1)
    assert {point.rounds for point in found.rounds} == {CPU_TURNS}


def test_profiled_rows_have_tokens_of_their_own(small_pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal ones would hit the same experts, so that rounds of a mixture seemed several times as fast."""
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, slots=8)
    texts: set[tuple[int, ...]] = set()
    rounds, state = engine._launcher.rounds, engine._state
    monkeypatch.setattr(
        rounds,
        "run",
        lambda rows, key, run=rounds.run: texts.update(map(tuple, state.tokens[:8, :40].tolist())) or run(rows, key),
    )
    engine.profile(SamplingParams(), [(8, "none", 0)], context=40, within_s=60)
    assert len(texts) == 8 == len({text[-1] for text in texts})
