"""The engine of `specpipe bench engine`: random weights, random prompts, synthetic acceptance."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from specpipe.benchmark.model_shapes import config_of, random_model
from specpipe.core import EngineConfig, ProposerName, Request, SamplingParams, SpeculationPlan, StepReport
from specpipe.engine.build import sized_engine
from specpipe.engine.compile_ahead import EngineCompileAhead
from specpipe.engine.engine import Engine
from specpipe.engine.forward.attention_interface import register
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.models.loader import outline_of


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineBench:
    """What is measured. Lengths are in tokens."""

    target: str = "llama-3.1-8b"
    draft: str = "llama-3.2-1b"
    device: str = "cuda"
    dtype: str = "bfloat16"
    draft_fp8: bool = False
    batches: tuple[int, ...] = (1, 16, 64, 256)
    ks: tuple[int, ...] = (0, 1, 2, 3)
    rates: tuple[float, ...] = (0.8718, 0.5663, 0.3188)
    prompt_tokens: int = 230
    new_tokens: int = 300
    max_model_len: int = 1024
    prefill_budget: int = 8192
    tuned: bool = False
    """Whether a policy takes any K up to the largest."""
    profiled_rounds: int = 0
    """Rounds of each batch size and K that are run once more, under the profiler."""

    @property
    def pair(self) -> tuple[tuple[str, bool], tuple[str, bool]]:
        """Target and draft: shape, and whether in 8 bits."""
        return (self.target, False), (self.draft, self.draft_fp8)

    @property
    def choices(self) -> list[tuple[ProposerName, int]]:
        return [("draft", k) for k in (range(max(self.ks) + 1) if self.tuned else self.ks)]


class _NoText:
    """Rows of random tokens have no text."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return ""

    def stream(self, stop: tuple[str, ...]) -> Any:
        raise AssertionError("no row of a benchmark has stop strings")


def build_synthetic_engine(bench: EngineBench) -> Engine:
    """An engine with random weights, slots for the largest batch."""
    register()
    device, dtype = torch.device(bench.device), getattr(torch, bench.dtype)
    config = EngineConfig(
        slots=max(bench.batches),
        max_model_len=bench.max_model_len,
        max_k=max(bench.ks),
        proposer="draft",
        method="synthetic",
        synthetic_rates=bench.rates[: max(bench.ks)] if max(bench.ks) else (1.0,),
        prefill_budget=bench.prefill_budget,
    )
    with _kernels_ahead(bench, config, dtype) if device.type == "cuda" else nullcontext():
        models = [random_model(shape, device, dtype, seed=seed) for seed, (shape, _) in enumerate(bench.pair)]
        runners = [_runner(model, config, fp8=fp8) for model, (_, fp8) in zip(models, bench.pair, strict=True)]
    return sized_engine(runners, config, _NoText(), ())


def _kernels_ahead(bench: EngineBench, config: EngineConfig, dtype: torch.dtype) -> EngineCompileAhead:
    def outlines() -> list[ModelRunner]:
        return [_runner(outline_of(config_of(shape), dtype), config, fp8=fp8) for shape, fp8 in bench.pair]

    return EngineCompileAhead(outlines, config, _NoText(), (), sampling=SamplingParams(), choices=bench.choices)


def _runner(model: Any, config: EngineConfig, *, fp8: bool) -> ModelRunner:
    length = config.pages_per_row * config.page_size
    return ModelRunner(
        model, vocab_size=model.config.vocab_size, context_length=length, page_size=config.page_size, fp8=fp8
    )


def random_requests(lengths: Sequence[tuple[int, int]], vocab_size: int) -> list[Request]:
    """Rows of random tokens: (prompt tokens, new tokens) each."""
    random = np.random.default_rng(0)
    return [
        Request(
            request_id=str(row),
            shard=0,
            row=row,
            prompt="",
            prompt_token_ids=tuple(random.integers(0, vocab_size, prompt).tolist()),
            sampling=SamplingParams(max_new_tokens=new, ignore_eos=True),
            seed=row,
        )
        for row, (prompt, new) in enumerate(lengths)
    ]


def fixed_plan(k: int) -> SpeculationPlan:
    return SpeculationPlan(ks=(k,), proposer="draft", queue_depth=0.0, reason="benchmark")


def run_requests(engine: Engine, rows: Sequence[Request], k: int) -> tuple[float, list[StepReport]]:
    """→ wall seconds from submission to the last completion, and every step."""
    began = ended = time.perf_counter()
    engine.submit(rows, fixed_plan(k))
    steps = []
    while (step := engine.step()) is not None:
        steps.append(step)
        if step.completions:  # a late round may follow, for nobody
            ended = time.perf_counter()
    return ended - began, steps
