"""Engines with KV pages in 8 bits: tokens do not depend on what runs beside a row; scales and their sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.engines import make_engine, make_requests, requests_of, run, slow

from specpipe.core import EngineConfig, LayerScales, Request
from specpipe.engine.build import EngineSpec
from specpipe.engine.engine import Engine
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.kv_scales import fix_kv_scales, kv_scale_table
from specpipe.errors import ModelError
from specpipe.models.source import ModelSource

TARGET, DRAFT = "target big 1", "draft small 2"


def runner_of(pair: Any, *, kv_dtype: str = "fp8", compiler: str | None = None) -> ModelRunner:
    return ModelRunner(
        pair.target, vocab_size=pair.vocab_size, context_length=256, page_size=16, kv_dtype=kv_dtype, compiler=compiler
    )


def run_in_8_bits(pair: Any, requests: Sequence[Request], k: int, **options: Any) -> list[tuple[int, ...]]:
    engine: Engine = make_engine(pair.target, pair.draft, max_k=max(k, 1), kv_dtype="fp8", **options)
    runners = [engine.target, *([engine.draft] if engine.draft else [])]
    fix_kv_scales(runners, [TARGET, DRAFT][: len(runners)], {}, [r.prompt_token_ids for r in requests])
    for runner in runners:  # measuring took their pages
        runner.allocate_pages(engine.kv_pages + 1)
    return [tuple(c.token_ids) for c in run(engine, requests, k)]


@pytest.mark.parametrize(
    "kind", ["llama", slow("qwen3"), slow("gpt2"), slow("mistral"), slow("gemma2"), slow("gpt_oss")]
)
def test_greedy_tokens_are_the_same_with_any_drafts_and_memory(small_pair, kind: str) -> None:
    pair = small_pair(kind)
    begin = make_requests(7, vocab_size=pair.vocab_size)[6].prompt_token_ids[:35]
    prompts = [[*begin, *r.prompt_token_ids] for r in make_requests(5, vocab_size=pair.vocab_size, seed=3)]
    requests = requests_of(prompts, max_new_tokens=14)
    plain = run_in_8_bits(pair, requests, 0, proposer="none", prefix_sharing=False)
    in_16_bits = [tuple(c.token_ids) for c in run(make_engine(pair.target, pair.draft), requests, 0)]
    assert plain != in_16_bits, "rounding to 8 bits must be visible"
    assert run_in_8_bits(pair, requests, 0, proposer="none") == plain, "with shared prefixes"
    assert run_in_8_bits(pair, requests, 1) == plain
    assert run_in_8_bits(pair, requests, 3, slots=5, prefill_budget=7) == plain
    assert run_in_8_bits(pair, requests, 3, proposer="ngram") == plain
    assert run_in_8_bits(pair, requests, 3, slots=5, pages=12, prefix_sharing=False) == plain, "with preemption"


def test_measured_scales_are_powers_of_two_with_headroom(small_pair) -> None:
    runner = runner_of(small_pair("llama"))
    prompts = [(1, 2, 3), tuple(range(5, 120)), (10**6,), ()]
    fix_kv_scales([runner], [TARGET], {}, prompts)
    first = runner.kv_scales
    largest = runner.largest_kv(prompts[:2])
    for scales, entries in zip(first, largest, strict=True):
        for scale, entry in zip((*scales.k, *scales.v), (*entries.k, *entries.v), strict=True):
            assert torch.frexp(torch.tensor(scale)).mantissa == 0.5
            assert 448 / 4 < entry / scale <= 448 / 2
    fix_kv_scales([runner], [TARGET], {}, prompts)
    assert runner.kv_scales == first
    fix_kv_scales([runner], [TARGET], {}, [])
    assert {x for layer in runner.kv_scales for side in layer for x in side} == {1.0}


def test_scales_of_earlier_starts_come_before_those_of_the_checkpoint(small_pair) -> None:
    runner = runner_of(small_pair("llama"))
    heads = len(runner.kv_scales[0].k)
    modules = [module for module, _ in runner.attention_heads()]
    for module in modules:
        module.register_buffer("k_scale", torch.tensor([0.3]))
        module.register_buffer("v_scale", torch.arange(1.0, heads + 1))
    try:
        fix_kv_scales([runner], [TARGET], {}, [(1, 2)])
        for layer in runner.kv_scales:
            assert layer.k == (pytest.approx(0.3),) * heads and layer.v == tuple(range(1, heads + 1))
        table = {
            key: tuple(LayerScales((2.0,) * heads, (4.0,) * heads) for _ in modules)
            for key in kv_scale_table([runner], [TARGET])
        }
        assert list(table) == [TARGET]
        fix_kv_scales([runner], [TARGET], table, [(1, 2)])
        assert kv_scale_table([runner], [TARGET]) == table
        modules[0].v_scale = torch.ones(heads + 1)
        with pytest.raises(ModelError, match=rf"v_scale of attention layer 0 has {heads + 1} entries; expected 1, or "):
            fix_kv_scales([runner], [TARGET], {}, [(1, 2)])
        modules[0].v_scale = torch.ones(1)
        fix_kv_scales([runner], [DRAFT], table, [(1, 2)])
        assert kv_scale_table([runner], [TARGET]) != table, "those of another model"
    finally:
        for module in modules:
            del module.k_scale, module.v_scale


def test_pages_in_8_bits_take_a_quarter_of_fp32_and_hold_rounded_keys(small_pair) -> None:
    pair = small_pair("llama")
    runner, full = runner_of(pair), runner_of(pair, kv_dtype="auto")
    assert 4 * runner.page_bytes == full.page_bytes and runner.kv_dtype == torch.float8_e4m3fn
    assert kv_scale_table([full], [TARGET]) == {}


@pytest.mark.slow
def test_compiled_layers_store_8_bits_too(small_pair) -> None:
    pair = small_pair("gpt2")
    tokens = torch.arange(20)
    logits = []
    for compiler in ("", "aot_eager"):
        runner = runner_of(pair, compiler=compiler)
        assert runner.compiled == bool(compiler)
        fix_kv_scales([runner], [TARGET], {}, [tuple(range(20))])
        runner.allocate_pages(3)
        logits.append(runner._feed_alone(tokens, 0, 20, keep=0))
    torch.testing.assert_close(*logits, rtol=1e-3, atol=1e-3)


def test_models_that_are_rounded_at_load_have_scales_of_their_own() -> None:
    big, small = (ModelSource(path="", name=name, revision=name[0] * 4) for name in ("big", "small"))
    spec = EngineSpec(target=big, draft=small, device="cpu", dtype="float32", config=EngineConfig())
    assert spec.kv_keys == ("target big bbbb", "draft small ssss")
    assert replace(spec, quantize_draft="fp8").kv_keys == ("target big bbbb", "draft small ssss fp8")
    assert replace(spec, quantize="fp8", draft=None).kv_keys == ("target big bbbb fp8",)
