"""Captured graphs own every tensor that they read: replays stay right when caches are emptied."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from support.engines import drain, generate, make_engine, make_requests, plan, slow
from support.fake_graph_capture import FakeGraphCapture

from specpipe.engine.forward.graphed_prefill import GraphedPrefills
from specpipe.engine.rounds.graphed_rounds import GraphedRounds
from specpipe_kernels.runtime import arrival_counters


def use_graphs(engine: Any) -> FakeGraphCapture:
    """Makes an engine on a CPU launch what a GPU's would."""
    capture, launcher = FakeGraphCapture(), engine._launcher
    runners = [runner for runner in (engine.target, engine.draft) if runner is not None]
    launcher.rounds = GraphedRounds(launcher.rounds._round, capture, slots=engine.config.slots)
    launcher.prefills = GraphedPrefills(engine._state, runners, capture, budget=engine.config.prefill_budget)
    return capture


@functools.lru_cache(maxsize=1)
def cached_tensor(size: int) -> torch.Tensor:
    return torch.arange(size)


def test_a_tensor_that_only_a_cache_keeps_counts_as_freed() -> None:
    capture, out = FakeGraphCapture(), cached_tensor(3).clone()
    capture.capture(lambda: out, lambda buffer: buffer.copy_(cached_tensor(3)))
    assert (capture.reads, capture.freed()) == (2, 0)
    cached_tensor(4)  # evicts the one that was captured
    assert capture.freed() == 1


@pytest.mark.parametrize("proposer", ["draft", slow("ngram")])
def test_rounds_and_prefills_own_what_they_read(small_pair, proposer: str) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, proposer=proposer)
    capture = use_graphs(engine)
    requests = make_requests(5, vocab_size=pair.vocab_size, repetition_penalty=1.1, min_tokens=3, logprobs=2)
    engine.submit(requests, plan(3, 3, 0, proposer=proposer))

    assert len(drain(engine)) == 5

    assert capture.replays > capture.captures > 3
    assert capture.reads > 30 and capture.freed() == 0


@pytest.mark.gpu
def test_replays_stay_right_when_caches_are_emptied(small_pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = small_pair("llama")
    target, draft = (copy.deepcopy(model).to("cuda") for model in (pair.target, pair.draft))
    engine = make_engine(target, draft)
    requests = make_requests(5, vocab_size=pair.vocab_size)
    expected = generate(pair.reference, requests)
    for _ in range(2):
        engine.submit(requests, plan(3))
        assert [list(c.token_ids) for c in drain(engine)] == expected
        captured = engine.graphs_captured
        FakeGraphCapture().freed()
        monkeypatch.setattr(arrival_counters, "_COUNTERS", {})
        garbage = [torch.full((size,), -1, device="cuda") for size in range(1, 500)]  # takes the place of what is freed
        del garbage
    assert engine.graphs_captured == captured
