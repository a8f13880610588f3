"""Compilation of an engine's kernels while its weights are loaded."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from support.small_models import small_config

from specpipe.benchmark.bench_config import EngineBench
from specpipe.benchmark.synthetic_engine import build_synthetic_engine, random_requests, run_requests
from specpipe.core import EngineConfig, SamplingParams
from specpipe.engine.compile_ahead import EngineCompileAhead
from specpipe.engine.forward.attention_interface import register
from specpipe.engine.state.text_decoder import TokenizerDecoder
from specpipe.models.loader import outline_of


@pytest.mark.parametrize(("kind", "layers"), [("llama", 2), ("gemma2", 2), ("gpt2", 2), ("gpt_oss", 2)])
def test_an_outline_has_a_layer_of_every_kind_and_no_weights(kind: str, layers: int) -> None:
    register()
    config = small_config(kind, num_hidden_layers=5)
    kinds = set(getattr(config, "layer_types", None) or ())
    model = outline_of(config, torch.bfloat16)
    assert model.config.num_hidden_layers == layers
    assert set(getattr(model.config, "layer_types", None) or ()) == kinds
    assert all(parameter.is_meta for parameter in model.parameters())


def test_a_model_without_an_outline_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    def outlines() -> list[Any]:
        raise RuntimeError("no outline of this one")

    caplog.set_level(logging.INFO, "specpipe")
    config = EngineConfig(slots=1, max_model_len=64)
    with EngineCompileAhead(outlines, config, TokenizerDecoder(None), (), sampling=SamplingParams(), choices=[]):
        pass
    assert "compiled when they are needed: RuntimeError: no outline of this one" in caplog.text


@pytest.mark.gpu
def test_no_row_waits_for_the_compiler() -> None:
    from triton import knobs

    bench = EngineBench(target="small", draft="small", batches=(1, 5), ks=(0, 2), max_model_len=128, prefill_budget=100)
    engine = build_synthetic_engine(bench)
    compiled: list[str] = []
    knobs.runtime.jit_post_compile_hook = lambda *, fn, **_: compiled.append(fn.name)
    try:
        for k in bench.ks:
            run_requests(engine, random_requests([(prompt, 9) for prompt in (1, 2, 9, 30, 65, 80)], 512), k)
    finally:
        knobs.runtime.jit_post_compile_hook = None
    assert compiled == []
