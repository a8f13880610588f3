"""Short prefills as graphs: padding changes neither keys and values nor tokens."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from support.engines import drain, generate, make_engine, make_requests, plan, run, slow, steps_of
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
    """Makes the engine prefill as it does on a GPU."""
    capture = FakeGraphCapture()
    runners = [runner for runner in (engine.target, engine.draft) if runner is not None]
    engine._launcher.prefills = GraphedPrefills(engine._state, runners, capture, budget=engine.config.prefill_budget)
    return capture


def kv_of(engine: Any) -> torch.Tensor:
    """Returns all pages of the target but the trash page, [layers and k or v, pages, Hkv, page_size, D]."""
    pages = [x for module in engine.target._attention for x in (module.k_pages, module.v_pages)]
    return torch.stack([x[TRASH_PAGE + 1 :] for x in pages])


def clear_kv(engine: Any) -> None:
    for layer in engine.target._attention:
        layer.k_pages.fill_(float("nan"))
        layer.v_pages.fill_(float("nan"))


@pytest.mark.parametrize("kind", ["llama", slow("gemma2"), slow("gpt2")])
def test_padding_changes_no_keys_and_values(small_pair, kind: str) -> None:
    pair = small_pair(kind)
    engine = make_engine(pair.target, max_k=0, proposer="none", slots=4)
    state = engine._state
    generator = torch.Generator().manual_seed(0)
    state.tokens.copy_(torch.randint(0, pair.vocab_size, state.tokens.shape, generator=generator))
    state.block_table[:4, :3] = torch.randperm(12, generator=generator).view(4, 3).to(torch.int32) + 1
    before, chunks = [Chunk(0, 0, 9), Chunk(3, 0, 20)], [Chunk(2, 0, 17), Chunk(0, 9, 10), Chunk(3, 20, 33)]
    clear_kv(engine)
    for some in (before, chunks):
        prefill(engine.target, state, some, page_size=16)
    expected = kv_of(engine)
    clear_kv(engine)
    prefill(engine.target, state, before, page_size=16)

    prefill_packed(engine.target, state, state.upload(pack_chunks(chunks, 64, dummy=state.dummy)), 64)

    torch.testing.assert_close(kv_of(engine), expected, equal_nan=True)
    assert expected.isnan().any()


@pytest.mark.parametrize("k", [slow(0), 3])
def test_replayed_prefills_keep_the_targets_tokens(small_pair, k: int) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, max_k=k, prefill_budget=100)
    capture = use_graphs(engine)
    requests = make_requests(10, vocab_size=pair.vocab_size)

    completions = run(engine, requests, k)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    assert capture.replays > capture.captures > 0


def test_catch_up_chunks_are_replayed(small_pair) -> None:
    """Chunks that begin behind the prompt, in tokens of plain rounds."""
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


def test_prepare_captures_every_size_once(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, prefill_budget=70)
    capture = use_graphs(engine)
    engine._launcher.prefills.prepare(within_s=60.0)
    assert capture.captures == 2 * len(graph_sizes(70))
    engine.submit(make_requests(5, vocab_size=pair.vocab_size), plan(3))
    assert steps_of(engine)
    assert capture.captures == 2 * len(graph_sizes(70))


def test_prepare_without_time_captures_nothing(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft)
    capture = use_graphs(engine)
    engine._launcher.prefills.prepare(within_s=-1.0)
    assert capture.captures == 0


def test_prefills_too_large_for_a_graph_run_eagerly(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, prefill_budget=5000, max_model_len=1100)
    capture = use_graphs(engine)
    dummy = engine._state.dummy
    engine._launcher.prefills.run(engine.target, [Chunk(dummy, 0, GRAPH_SIZES[-1] + 1)])
    engine._launcher.prefills.run(engine.target, [Chunk(dummy, i, i + 1) for i in range(MAX_CHUNKS + 1)])
    assert capture.replays == 0
    engine._launcher.prefills.run(engine.target, [Chunk(dummy, 0, GRAPH_SIZES[-1])])
    assert capture.replays == 1


def test_graph_sizes_cover_the_budget() -> None:
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
