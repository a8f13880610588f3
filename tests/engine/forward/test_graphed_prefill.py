"""Short prefills are padded and replayed: the same keys and values, the same tokens, nothing beyond."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.engines import drain, generate, make_engine, make_requests, plan, run, steps_of

from specpipe.engine.device.graph_capture import GraphCapture
from specpipe.engine.forward.graphed_prefill import MOST_CHUNKS, SIZES, GraphedPrefills, feed_padded, padded, sizes_for
from specpipe.engine.forward.prefill import prefill
from specpipe.engine.state.chunks import Chunk
from specpipe.engine.state.page_allocator import TRASH_PAGE


class Rerun:
    """A graph_capture without a device: what it recorded runs again."""

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def capture(self, rehearse: Callable[[], Any], work: Callable[[Any], object]) -> tuple[Any, Any]:
        made, graph_capture = rehearse(), self
        self.captures += 1

        class Graph:
            def replay(self) -> None:
                graph_capture.replays += 1
                work(made)

        return Graph(), made


def replaying(engine: Any) -> Rerun:
    """The engine prefills as it would on a GPU."""
    graph_capture = Rerun()
    runners = [runner for runner in (engine.target, engine.draft) if runner is not None]
    engine._prefills = GraphedPrefills(engine._state, runners, graph_capture, budget=engine.config.prefill_budget)
    return graph_capture


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

    feed_padded(engine.target, state, state.upload(padded(chunks, 64, dummy=state.dummy)), 64)

    torch.testing.assert_close(kv_of(engine), expected, equal_nan=True)
    assert expected.isnan().any()


@pytest.mark.parametrize("k", [0, 3])
def test_tokens_are_the_targets_own(small_pair, k: int) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, max_k=k, prefill_budget=100)
    graph_capture = replaying(engine)
    requests = make_requests(10, vocab_size=pair.vocab_size)

    completions = run(engine, requests, k)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    assert graph_capture.replays > graph_capture.captures > 0


def test_rows_that_the_draft_catches_up_with(small_pair) -> None:
    """Chunks that begin within a row, which plain rounds made."""
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, prefill_budget=40)
    graph_capture = replaying(engine)
    requests = make_requests(3, vocab_size=pair.vocab_size)
    engine.submit(requests, plan(0))
    completions = [c for _ in range(6) for c in engine.step().completions]
    before = graph_capture.replays
    engine.submit([], plan(3))

    completions += drain(engine)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    assert graph_capture.replays > before


def test_preparing_captures_all_and_nothing_later(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, prefill_budget=70)
    graph_capture = replaying(engine)
    engine._prefills.prepare(within_s=60.0)
    assert graph_capture.captures == 2 * len(sizes_for(70))
    engine.submit(make_requests(5, vocab_size=pair.vocab_size), plan(3))
    assert steps_of(engine)
    assert graph_capture.captures == 2 * len(sizes_for(70))


def test_no_time_captures_nothing(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft)
    graph_capture = replaying(engine)
    engine._prefills.prepare(within_s=-1.0)
    assert graph_capture.captures == 0


def test_what_does_not_fit_is_launched_as_it_is(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, pair.draft, prefill_budget=5000, max_model_len=1100)
    graph_capture = replaying(engine)
    dummy = engine._state.dummy
    engine._prefills.run(engine.target, [Chunk(dummy, 0, SIZES[-1] + 1)])
    engine._prefills.run(engine.target, [Chunk(dummy, i, i + 1) for i in range(MOST_CHUNKS + 1)])
    assert graph_capture.replays == 0
    engine._prefills.run(engine.target, [Chunk(dummy, 0, SIZES[-1])])
    assert graph_capture.replays == 1


def test_sizes_reach_as_far_as_a_budget() -> None:
    assert sizes_for(1) == SIZES[:1]
    assert sizes_for(64) == SIZES[:1]
    assert sizes_for(65) == SIZES[:2]
    assert sizes_for(8192) == SIZES


@pytest.mark.gpu
def test_graphs_of_short_prefills_are_replayed(small_pair) -> None:
    pair = small_pair("llama")
    target = copy.deepcopy(pair.target).to("cuda")
    engine = make_engine(target, max_k=0, proposer="none", prefill_budget=100)
    assert isinstance(engine._capture_graph, GraphCapture)
    engine._prefills.prepare(within_s=60.0)
    captured = engine.graphs_captured
    assert captured == len(sizes_for(100))
    requests = make_requests(10, vocab_size=pair.vocab_size)

    completions = run(engine, requests, 0)

    assert [list(c.token_ids) for c in completions] == generate(copy.deepcopy(pair.reference).to("cuda"), requests)
