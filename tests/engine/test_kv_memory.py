"""Size of an engine's KV memory, and its measurement, which changes no row."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from support.engines import PlainDecoder, drain, make_engine, make_requests, plan, run, slow

from specpipe.core import EngineConfig
from specpipe.engine import kv_memory
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.kv_memory import sized_engine
from specpipe.errors import MachineError

CONFIG = EngineConfig(slots=5, max_model_len=90, max_k=3, proposer="draft", page_size=16, prefill_budget=200)


def runners(pair, device: str = "cpu") -> list[ModelRunner]:
    models = [copy.deepcopy(model).to(device) for model in (pair.target, pair.draft)]
    return [ModelRunner(model, vocab_size=pair.vocab_size, context_length=256, page_size=16) for model in models]


@pytest.mark.parametrize("proposer", ["draft", slow("ngram")])
def test_warm_up_changes_no_row(small_pair, proposer: str) -> None:
    pair = small_pair("llama")
    requests = make_requests(5, vocab_size=pair.vocab_size)
    plain = run(make_engine(pair.target, pair.draft, proposer=proposer), requests, 3)
    engine = make_engine(pair.target, pair.draft, proposer=proposer)
    engine.submit(requests, plan(3, proposer=proposer))
    for _ in range(4):
        engine.step()
        engine.warm_up.largest_round()
        engine.warm_up.largest_prefill()
        engine.check_integrity()
    assert [c.token_ids for c in drain(engine)] == [c.token_ids for c in plain]


def test_pages_are_bounded_by_slots_and_memory(small_pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = small_pair("llama")
    assert sized_engine(runners(pair), CONFIG, PlainDecoder(), ()).kv_pages == 5 * CONFIG.pages_per_row
    page_bytes = sum(runner.page_bytes for runner in runners(pair))
    monkeypatch.setattr(kv_memory, "cpu_kv_budget", lambda: 7 * page_bytes + 1)
    assert sized_engine(runners(pair), CONFIG, PlainDecoder(), ()).kv_pages == 7
    monkeypatch.setattr(kv_memory, "cpu_kv_budget", lambda: page_bytes - 1)
    with pytest.raises(MachineError, match=r"no memory is left for KV pages.*lower workers\.slots"):
        sized_engine(runners(pair), CONFIG, PlainDecoder(), ())


@pytest.mark.gpu
def test_gpu_budget_is_what_activations_leave(small_pair) -> None:
    pair = small_pair("llama")
    engine = sized_engine(runners(pair, "cuda"), CONFIG, PlainDecoder(), ())
    assert engine.kv_pages == 5 * CONFIG.pages_per_row
    requests = make_requests(9, vocab_size=pair.vocab_size)
    expected = run(make_engine(pair.target, pair.draft), requests, 3)
    assert [c.token_ids for c in run(engine, requests, 3)] == [c.token_ids for c in expected]

    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    budget = kv_memory._gpu_budget(engine)
    assert 0.8 * free < budget < kv_memory.GPU_MEMORY_SHARE * free
    wide = dataclasses.replace(CONFIG, slots=512, prefill_budget=60_000)
    assert kv_memory._gpu_budget(sized_engine(runners(pair, "cuda"), wide, PlainDecoder(), ())) < budget
