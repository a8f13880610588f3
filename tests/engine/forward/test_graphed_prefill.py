"""Short prefills are padded and replayed: the same keys and values, the same tokens, nothing beyond."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from support.engines import drain, generate, make_engine, make_requests, plan, run, steps_of
from support.fake_graph_capture import FakeGraphCapture

from specpipe.engine.device.graph_capture import GraphCapture
from specpipe.engine.forward.graphed_prefill import (
    GRAPH_SIZES,
    MAX_CHUNKS,
    GraphedPrefills,
    graph_sizes,
    pack_chunks,
    prefill_packed,
)
from specpipe.engine.forward.prefill import prefill
from specpipe.engine.state.chunks import Chunk
from specpipe.engine.state.page_allocator import TRASH_PAGE


def use_graphs(engine: Any) -> FakeGraphCapture:
    """The engine prefills as it would on a GPU."""
    capture = FakeGraphCapture()
    runners = [runner for runner in (engine.target, engine.draft) if runner is not None]
    engine._launcher.prefills = GraphedPrefills(engine._state, runners, capture, budget=engine.config.prefill_budget)
    return capture


def kv_of(engine: Any) -> torch.Tensor:
    """All pages of the target but the trash page."""
    pages = [x for module in engine.target._attention for x in (module.k_pages, module.v_pages)]
    return torch.stack([x[TRASH_PAGE + 1 :] for x in pages])


def forget_kv(engine: Any) -> None:
    for layer in engine.target._attention:
        layer.k_pages.fill_(float("nan"))
        layer.v_pages.fill_(float("nan"))


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt2"])
def test_keys_and_values_are_those_of_a_prefill_without_padding(small_pair, kind: str) -> None:
    pair = small_pair(kind)
    engine = make_engine(pair.target, max_k=0, proposer="none", slots=4)
    state = engine._state
    generator = torch.Generator().manual_seed(0)
    state.tokens.copy_(torch.randint(0, pair.vocab_size, state.tokens.shape, generator=generator))
    state.block_table[:4, :3] = torch.randperm(12, generator=generator).view(4, 3).to(torch.int32) + 1
    before, chunks = [Chunk(0, 0, 9), Chunk(3, 0, 20)], [Chunk(2, 0, 17), Chunk(0, 9, 10), Chunk(3, 20, 33)]
    forget_kv(engine)
    for some in (before, chunks):
        prefill(engine.target, state, some, page_size=16)
    expected = kv_of(engine)
    forget_kv(engine)
    prefill(engine.target, state, before, page_size=16)

    prefill_packed(engine.target, state, state.upload(pack_chunks(chunks, 64, dummy=state.dummy)), 64)

    torch.testing.assert_close(kv_of(engine), expected, equal_nan=True)
    assert expected.isnan().any()


@pytest.mark.parametrize("k", [0, 3])
def test_tokens_are_the_targets_own(small_pair, k: int) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, max_k=k, prefill_budget=100)
    capture = use_graphs(engine)
    requests = make_requests(10, vocab_size=pair.vocab_size)

    completions = run(engine, requests, k)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    assert capture.replays > capture.captures > 0


def test_rows_that_the_draft_catches_up_with(small_pair) -> None:
    """Chunks that begin within a row, which plain rounds made."""
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, prefill_budget=40)
    capture = use_graphs(engine)
    requests = make_requests(3, vocab_size=pair.vocab_size)
    engine.submit(requests, plan(0))
    completions = [c for _ in range(6) for c in engine.step().completions]
    before = capture.replays
    engine.submit([], plan(3))

    completions += drain(engine)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    assert capture.replays > before


def test_preparing_captures_all_and_nothing_later(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, prefill_budget=70)
    capture = use_graphs(engine)
    engine._launcher.prefills.prepare(within_s=60.0)
    assert capture.captures == 2 * len(graph_sizes(70))
    engine.submit(make_requests(5, vocab_size=pair.vocab_size), plan(3))
    assert steps_of(engine)
    assert capture.captures == 2 * len(graph_sizes(70))


def test_no_time_captures_nothing(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft)
    capture = use_graphs(engine)
    engine._launcher.prefills.prepare(within_s=-1.0)
    assert capture.captures == 0


def test_what_does_not_fit_is_launched_as_it_is(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, prefill_budget=5000, max_model_len=1100)
    capture = use_graphs(engine)
    dummy = engine._state.dummy
    engine._launcher.prefills.run(engine.target, [Chunk(dummy, 0, GRAPH_SIZES[-1] + 1)])
    engine._launcher.prefills.run(engine.target, [Chunk(dummy, i, i + 1) for i in range(MAX_CHUNKS + 1)])
    assert capture.replays == 0
    engine._launcher.prefills.run(engine.target, [Chunk(dummy, 0, GRAPH_SIZES[-1])])
    assert capture.replays == 1


def test_sizes_reach_as_far_as_a_budget() -> None:
    assert graph_sizes(1) == GRAPH_SIZES[:1]
    assert graph_sizes(64) == GRAPH_SIZES[:1]
    assert graph_sizes(65) == GRAPH_SIZES[:2]
    assert graph_sizes(8192) == GRAPH_SIZES


@pytest.mark.gpu
def test_graphs_of_short_prefills_are_replayed(small_pair) -> None:
    pair = small_pair("llama")
    target = copy.deepcopy(pair.target).to("cuda")
    engine = make_engine(target, max_k=0, proposer="none", prefill_budget=100)
    assert isinstance(engine._launcher._graph_capture, GraphCapture)
    engine._launcher.prefills.prepare(within_s=60.0)
    captured = engine.graphs_captured
    assert captured == len(graph_sizes(100))
    requests = make_requests(10, vocab_size=pair.vocab_size)

    completions = run(engine, requests, 0)

    assert [list(c.token_ids) for c in completions] == generate(copy.deepcopy(pair.reference).to("cuda"), requests)
