"""Compiled layers compute what uncompiled ones compute, compile once, and fall back to uncompiled ones."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engines import generate, make_engine, make_requests, run
from support.small_models import ON_GPU, make_small_model

from specpipe.core import EngineConfig
from specpipe.engine.build import EngineSpec, build_engine
from specpipe.engine.engine import Engine
from specpipe.engine.forward import model_runner
from specpipe.engine.forward.compiled_layers import set_inductor_cache
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.models.loader import load_model
from specpipe.models.source import resolve

GRAPHS: list[torch.fx.GraphModule] = []
"""Compiled graphs, in order."""


def _recorded(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    from torch._inductor import config

    assert not config.shape_padding  # it would specialise code to numbers of tokens
    GRAPHS.append(graph)
    return graph.forward


def _broken(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    raise RuntimeError("no code for this machine\nand a long story")


def _slightly_off(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    return lambda *args: tuple(out * 1.01 for out in graph.forward(*args))


@pytest.fixture(scope="session", autouse=True)  # once a process, however tests are spread
def registered_backends() -> None:
    from torch._dynamo import register_backend  # takes seconds, so not at collection

    for name, backend in (("recorded", _recorded), ("broken", _broken), ("slightly_off", _slightly_off)):
        register_backend(backend, name=name)


@pytest.fixture(autouse=True)
def no_compilation_while_rows_run(monkeypatch: pytest.MonkeyPatch) -> None:
    GRAPHS.clear()
    monkeypatch.setattr(model_runner, "STANCE", "fail_on_recompile")


def runner(model: torch.nn.Module, backend: str | None) -> ModelRunner:
    return ModelRunner(model, vocab_size=320, context_length=256, page_size=16, compiler=backend)


def check_output(pair: Any, backend: str | None, k: int, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr("support.engines.ModelRunner", lambda model, **_: runner(model, backend))
    requests = make_requests(7, vocab_size=pair.vocab_size)
    engine = make_engine(copy.deepcopy(pair.target), copy.deepcopy(pair.draft), max_k=k)
    assert engine.target.compiled and engine.draft.compiled

    completions = run(engine, requests, k)

    assert [list(c.token_ids) for c in completions] == generate(pair.reference, requests)
    return engine


@pytest.mark.slow
def test_all_layers_share_code_and_merge_projections(small_pair, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = check_output(small_pair("gemma2"), "recorded", 3, monkeypatch)  # layers with and without a window
    assert len(GRAPHS) == 4  # target and draft, each for one token and for any other number
    products = [node for node in GRAPHS[0].graph.nodes if node.target is torch.nn.functional.linear]
    assert len(products) == 4  # q/k/v, out, gate/up, down
    attention = engine.target.model.model.layers[0].self_attn
    assert attention.q_proj.weight is attention.k_proj.weight is attention.v_proj.weight


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gemma2", "phi3", "gpt2", "gpt_oss", "llama"])
@pytest.mark.parametrize("k", [0, 3])
def test_greedy_output_equals_generate(small_pair, monkeypatch: pytest.MonkeyPatch, kind: str, k: int) -> None:
    check_output(small_pair(kind), "aot_eager", k, monkeypatch)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ON_GPU["compiled layers"])
@pytest.mark.parametrize("k", [0, 3])
def test_greedy_output_equals_generate_on_a_gpu(small_pair, monkeypatch: pytest.MonkeyPatch, kind: str, k: int) -> None:
    pair = small_pair(kind)
    moved = {name: copy.deepcopy(getattr(pair, name)).to("cuda") for name in ("target", "draft", "reference")}
    check_output(pair._replace(**moved), None, k, monkeypatch)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ON_GPU["mixtures"])  # the last one compiled
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_mixture_of_experts_runs_on_a_gpu(
    small_pair, monkeypatch: pytest.MonkeyPatch, kind: str, dtype: torch.dtype
) -> None:
    monkeypatch.setattr("support.engines.ModelRunner", lambda model, **_: runner(model, None))
    pair = small_pair(kind)
    models = [copy.deepcopy(model).to("cuda", dtype) for model in (pair.target, pair.draft)]
    engine = make_engine(*models)
    assert engine.target.fused == (kind != "qwen2_moe") and engine.target.compiled == (kind == "qwen2_moe")
    completions = run(engine, make_requests(7, vocab_size=pair.vocab_size), 3)
    assert [len(c.token_ids) for c in completions] == [20] * 7
    assert engine.target.uncompiled_forwards == 0


def mixture_runner(small_pair: Any, backend: str) -> ModelRunner:
    """Returns a mixture without own layers, compiled, with its experts through `mix_experts`."""
    model = copy.deepcopy(small_pair("qwen2_moe").target)
    made = ModelRunner(model, vocab_size=320, context_length=640, page_size=16, compiler=backend, fused=True)
    assert made.compiled and not made.fused
    made.allocate_pages(41)
    return made


@pytest.mark.parametrize("sizes", [[1, 2, 63, 64, 65, 600], pytest.param(range(1, 601), marks=pytest.mark.slow)])
def test_a_mixture_of_experts_runs_compiled_at_every_size(small_pair, sizes: list[int]) -> None:
    mixture = mixture_runner(small_pair, "recorded")
    graphs = len(GRAPHS)
    for n in sizes:  # a forward that no compiled code fits would raise
        mixture._feed_alone(torch.arange(n) % 320, 0, n, keep=1)
    assert mixture.uncompiled_forwards == 0 and len(GRAPHS) == graphs <= 4


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["gpt_oss", "qwen2_moe"])  # own layers, compiled ones
def test_a_mixture_of_experts_serves_every_size_on_a_gpu(small_pair, kind: str) -> None:
    model = copy.deepcopy(small_pair(kind).target).to("cuda", torch.bfloat16)
    mixture = ModelRunner(model, vocab_size=320, context_length=640, page_size=16)
    assert mixture.fused == (kind == "gpt_oss") and mixture.compiled == (kind == "qwen2_moe")
    mixture.allocate_pages(41)
    tokens = torch.arange(600, device="cuda") % 320
    logits = [mixture._feed_alone(tokens[:n], 0, n, keep=1) for n in range(1, 601)]
    assert mixture.uncompiled_forwards == 0 and torch.stack(logits).isfinite().all()


def test_uncompiled_forwards_are_counted_and_logged_once(
    small_pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(model_runner, "STANCE", "eager_on_recompile")
    mixture, tokens = mixture_runner(small_pair, "recorded"), torch.arange(30)
    expected = mixture._feed_alone(tokens, 0, 30, keep=1)
    torch.use_deterministic_algorithms(True)  # compiled code is for the other state
    try:
        for _ in range(2):
            torch.testing.assert_close(mixture._feed_alone(tokens, 0, 30, keep=1), expected)
    finally:
        torch.use_deterministic_algorithms(False)
    assert mixture.uncompiled_forwards == 2
    assert [r.getMessage()[:64] for r in caplog.records if "uncompiled" in r.getMessage()] == [
        "a forward of Qwen2MoeForCausalLM over 30 tokens ran uncompiled, "
    ]


@pytest.mark.gpu
def test_layers_compile_while_a_start_compiles_kernels(tmp_path: Path) -> None:
    source = resolve(str(make_small_model("gemma2", tmp_path, seed=0)), "target")
    config = EngineConfig(slots=3, max_model_len=96, proposer="none", max_k=0)
    spec = EngineSpec(target=source, draft=None, device="cuda", dtype="float32", config=config, choices=(("none", 0),))
    engine = build_engine(spec)
    assert engine.target.compiled
    requests = make_requests(7, vocab_size=320, ignore_eos=True)
    completions = run(engine, requests, 0)
    reference = load_model(source, "cuda", torch.float32, "eager")
    reference.generation_config.eos_token_id = None
    assert [list(c.token_ids) for c in completions] == generate(reference, requests)


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ("broken", "BackendCompilerFailed: backend='broken' raised: RuntimeError: no code for this machine"),
        ("slightly_off", "ArithmeticError: logits differ by 0."),
    ],
)
def test_layers_that_fail_to_compile_run_uncompiled(
    small_pair, caplog: pytest.LogCaptureFixture, backend: str, reason: str
) -> None:
    model = copy.deepcopy(small_pair("gemma2").target)
    uncompiled = runner(copy.deepcopy(model), "")
    modules = dict(model.named_modules())

    with caplog.at_level(logging.WARNING, "specpipe"):
        fallen_back = runner(model, backend)

    assert not fallen_back.compiled and dict(model.named_modules()) == modules
    assert [record.getMessage().count("\n") for record in caplog.records] == [0]
    assert f"layers of Gemma2ForCausalLM run uncompiled: {reason}" in caplog.text
    assert torch.equal(fallen_back._probe_logits(), uncompiled._probe_logits())


def test_layers_run_uncompiled_without_torch_compile(
    small_pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    model = copy.deepcopy(small_pair("gemma2").target)
    assert not runner(model, "recorded").compiled
    assert "torch.compile is switched off" in caplog.text
    assert type(model.model.layers[0].self_attn.q_proj) is torch.nn.Linear


@pytest.mark.parametrize(("given", "kept"), [("torch's", "ours"), ("own", "own"), ("unwritable", "torch's")])
def test_inductor_caches_in_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, kept: str
) -> None:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECPIPE_CACHE", str(tmp_path / ("file" if given == "unwritable" else "cache")))
    folders = {"ours": str(tmp_path / "cache/inductor"), "own": str(tmp_path), "torch's": default_cache_dir()}
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", folders.get(given, folders["torch's"]))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    set_inductor_cache()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == folders[kept]
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
