"""The fused stack computes what the model's own forward computes; other families keep theirs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from support.engines import generate, make_engine, make_requests, run, slow

from specpipe.engine.forward import fused_stack as fused
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.rounds import round as round_module
from specpipe_kernels import RejectionOutput


def fused_runner(model: torch.nn.Module, vocab_size: int) -> ModelRunner:
    return ModelRunner(model, vocab_size=vocab_size, context_length=256, page_size=16, fused=True)


@pytest.mark.parametrize(
    ("kind", "k"), [("llama", 3), ("qwen3", 0), ("mistral", 3), slow("llama", 0), slow("qwen3", 3), slow("mistral", 0)]
)
def test_greedy_output_equals_generate(small_pair, monkeypatch: pytest.MonkeyPatch, kind: str, k: int) -> None:
    pair = small_pair(kind)
    target, draft = copy.deepcopy(pair.target), copy.deepcopy(pair.draft)
    requests = make_requests(7, vocab_size=pair.vocab_size)
    monkeypatch.setattr("support.engines.ModelRunner", lambda model, **_: fused_runner(model, pair.vocab_size))
    engine = make_engine(target, draft, max_k=k)
    assert engine.target.fused

    completions = run(engine, requests, k)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)


@pytest.mark.parametrize("fused_stack", [True, False])
def test_verification_reads_draft_logits_without_a_copy(
    small_pair, monkeypatch: pytest.MonkeyPatch, fused_stack: bool
) -> None:
    pair, written, read = small_pair("llama"), set(), set()
    target, draft = copy.deepcopy(pair.target), copy.deepcopy(pair.draft)
    requests = make_requests(5, vocab_size=pair.vocab_size, temperature=0.9, top_p=0.9)
    usual, verify = fused.linear, round_module.rejection_sample

    def product(*args: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        written.update([] if out is None else [out.untyped_storage().data_ptr()])
        return usual(*args, out=out)

    def verified(*args: Any, draft_logits: torch.Tensor, **kwargs: Any) -> RejectionOutput:
        read.add(draft_logits.untyped_storage().data_ptr())
        return verify(*args, draft_logits=draft_logits, **kwargs)

    expected = run(make_engine(pair.target, pair.draft, max_k=3), requests, 3)
    if fused_stack:
        monkeypatch.setattr("support.engines.ModelRunner", lambda model, **_: fused_runner(model, pair.vocab_size))
    monkeypatch.setattr(fused, "linear", product)
    monkeypatch.setattr(round_module, "rejection_sample", verified)
    completions = run(make_engine(target, draft, max_k=3), requests, 3)
    assert [c.token_ids for c in completions] == [c.token_ids for c in expected]
    assert read and (not fused_stack or read <= written)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_prefill_computes_keys_and_values_alone(small_pair, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The last layer stops after its keys and values; there are no logits."""
    pair, pages, products = small_pair(kind), [], []
    usual = fused.linear_residual
    monkeypatch.setattr(
        fused, "linear_residual", lambda *args, **options: products.append(args) or usual(*args, **options)
    )
    for keep in (0, None):
        runner = fused_runner(copy.deepcopy(pair.target), pair.vocab_size)
        runner.allocate_pages(4)
        products.clear()
        logits = runner.forward(
            torch.arange(7, 47),
            torch.arange(40),
            block_tables=torch.tensor([[2, 1, 3]], dtype=torch.int32),
            cu_queries=torch.tensor([0, 40], dtype=torch.int32),
            starts=torch.tensor([0]),
            max_queries=40,
            keep=keep,
        )
        pages.append(
            [p for layer in runner.model.model.layers for p in (layer.self_attn.k_pages, layer.self_attn.v_pages)]
        )
    assert logits.shape == (0, pair.vocab_size)
    assert len(products) == 2 * (len(runner.model.model.layers) - 1)
    for whole, part in zip(*pages, strict=True):
        assert whole.any() and torch.equal(whole, part)


def test_merged_weights_are_stored_once(small_pair) -> None:
    model = copy.deepcopy(small_pair("llama").target)
    fused_runner(model, 320)
    attention = model.model.layers[0].self_attn
    storages = {p.weight.untyped_storage().data_ptr() for p in (attention.q_proj, attention.k_proj, attention.v_proj)}
    assert len(storages) == 1


@pytest.mark.parametrize("kind", ["gpt2", "gemma2"])
def test_other_families_keep_their_own_stack(small_pair, kind: str) -> None:
    model = copy.deepcopy(small_pair(kind).target)
    assert not fused_runner(model, 320).fused
