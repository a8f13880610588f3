"""The fused decoder stack is the model's own, token for token; other families keep transformers' stack."""

from __future__ import annotations

import copy

import pytest
import torch
from support.engines import generate, make_engine, make_requests, run

from specpipe.engine.runner import ModelRunner


def fused_runner(model: torch.nn.Module, vocab_size: int) -> ModelRunner:
    return ModelRunner(model, vocab_size=vocab_size, context_length=256, page_size=16, fused=True)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral"])
@pytest.mark.parametrize("k", [0, 3])
def test_greedy_output_stays_the_targets(small_pair, monkeypatch: pytest.MonkeyPatch, kind: str, k: int) -> None:
    pair = small_pair(kind)
    target, draft = copy.deepcopy(pair.target), copy.deepcopy(pair.draft)
    requests = make_requests(7, vocab_size=pair.vocab_size)
    monkeypatch.setattr("support.engines.ModelRunner", lambda model, **_: fused_runner(model, pair.vocab_size))
    engine = make_engine(target, draft, max_k=k)
    assert engine.target.fused

    completions = run(engine, requests, k)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)


def test_weights_are_not_doubled(small_pair) -> None:
    model = copy.deepcopy(small_pair("llama").target)
    fused_runner(model, 320)
    attention = model.model.layers[0].self_attn
    storages = {p.weight.untyped_storage().data_ptr() for p in (attention.q_proj, attention.k_proj, attention.v_proj)}
    assert len(storages) == 1


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "gpt_oss"])
def test_other_families_keep_their_own_stack(small_pair, kind: str) -> None:
    model = copy.deepcopy(small_pair(kind).target)
    assert not fused_runner(model, 320).fused
