"""A round is capturable: nothing in it reads a device value back or makes a shape depend on one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.engines import make_engine, make_requests, plan, slow
from support.no_sync import NoSync


def test_the_guard_sees_a_sync() -> None:
    values = torch.arange(3)
    for syncing in (lambda: values[values > 1], lambda: values.sum().item(), lambda: torch.nonzero(values)):
        with pytest.raises(AssertionError, match="wait for the device"), NoSync():
            syncing()


CASES = [
    (0.8, "standard", "draft", 3),
    (0.8, "block", "joined", 3),
    (0.8, "invariant", "draft", 3),
    (0.8, "synthetic", "draft", 3),
    (0.0, "standard", "replay", 3),
    (0.8, "standard", "none", 0),
]
ALL_CASES = [
    (temperature, method, proposer, k)
    for temperature in (0.0, 0.8)
    for method in ("standard", "block", "invariant", "synthetic")
    for proposer, k in (("draft", 3), ("ngram", 3), ("replay", 3), ("joined", 3), ("none", 0))
]


@pytest.mark.parametrize(
    ("temperature", "method", "proposer", "k"), [*CASES, *(slow(*case) for case in ALL_CASES if case not in CASES)]
)
def test_a_round_never_waits(small_pair, temperature: float, method: str, proposer: str, k: int) -> None:
    pair = small_pair("llama")
    rates = (0.9, 0.6, 0.3) if method == "synthetic" else ()
    engine = make_engine(
        pair.target, pair.draft, max_k=min(k, 2) if proposer == "joined" else k, replay_k=k, method=method,
        proposer="auto" if proposer == "joined" else proposer, synthetic_rates=rates, eos_ids=[7],
    )  # fmt: skip
    truncation = {"top_k": 20, "top_p": 0.9, "min_p": 0.01} if temperature else {}
    requests = make_requests(
        3, vocab_size=pair.vocab_size, temperature=temperature, min_tokens=9, logprobs=2, frequency_penalty=0.5,
        **truncation,
    )  # fmt: skip
    requests = [replace(r, reference=tuple(range(r.row * 9))) for r in requests]  # the first row has none
    engine.submit(requests, plan(k, proposer=proposer))
    while engine.step().running == 0:
        pass
    round_ = engine._launcher.rounds._round

    def guarded(*args: Any) -> Any:
        with NoSync():
            return round_(*args)

    guarded.state = round_.state
    engine._launcher.rounds._round = guarded
    for _ in range(3):
        assert engine.step().running == 3


def test_the_rest_of_a_step_never_waits(small_pair) -> None:
    """Admission, prefill, page changes, preemption and ends of rows, while the next round is queued."""
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, slots=6, pages=18, page_size=4, rounds_behind=1)
    engine.submit(make_requests(8, vocab_size=pair.vocab_size, max_new_tokens=16), plan(3))
    guard, state = NoSync(), engine._state
    state.upload = guard.trust(state.upload)  # pinned memory: test_engine_gpu.py holds it to that
    tokens = preempted = 0
    with guard:
        while (step := engine.step()) is not None:
            tokens += sum(len(completion.token_ids) for completion in step.completions)
            preempted += sum(part.preemptions for part in step.shards.values())
    assert tokens == 8 * 16 and preempted
