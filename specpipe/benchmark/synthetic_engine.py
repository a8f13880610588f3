"""An engine for measurements: random weights, random prompts, synthetic acceptance."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from specpipe.benchmark.bench_config import BenchQuantize, EngineBench
from specpipe.benchmark.model_shapes import config_of, draw_quantized, random_model
from specpipe.benchmark.tuned_job import loop_over
from specpipe.core import EngineConfig, Profile, Request, SamplingParams, SpeculationPlan, StepReport
from specpipe.engine.compile_ahead import EngineCompileAhead
from specpipe.engine.engine import Engine
from specpipe.engine.forward.attention_interface import register
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.kv_memory import sized_engine
from specpipe.engine.state.text_decoder import NoTextDecoder
from specpipe.models.loader import outline_of
from specpipe.speculation.policies.fixed import Fixed
from specpipe.speculation.policies.policy import Policy


def build_synthetic_engine(bench: EngineBench) -> Engine:
    """Returns an engine with random weights and slots for the largest batch size.

    Raises ModelError for an unknown shape, MachineError if memory does not hold the models and one page of KV.
    """
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
        prefix_sharing=bench.prefix_sharing,
        kv_dtype=bench.kv_dtype,
        dense_copies=bench.dense_copies,
    )
    with _kernels_ahead(bench, config, dtype) if device.type == "cuda" else nullcontext():
        models = [
            random_model(shape, device, dtype, quantize=quantize, seed=seed)
            for seed, (shape, quantize) in enumerate(bench.models)
        ]
        runners = [make_runner(model, config) for model in models]
    return sized_engine(runners, config, NoTextDecoder(), ())


def _kernels_ahead(bench: EngineBench, config: EngineConfig, dtype: torch.dtype) -> EngineCompileAhead:
    def outline(shape: str, quantize: BenchQuantize) -> ModelRunner:
        model = outline_of(config_of(shape), dtype)
        if quantize != "none":
            draw_quantized(model, quantize, torch.device("meta"))
        return make_runner(model, config)

    def outlines() -> list[ModelRunner]:
        return [outline(shape, quantize) for shape, quantize in bench.models]

    return EngineCompileAhead(outlines, config, NoTextDecoder(), (), sampling=SamplingParams(), choices=bench.choices)


def make_runner(model: Any, config: EngineConfig) -> ModelRunner:
    """Returns a runner of a model for rows as long as the configuration allows."""
    length = config.pages_per_row * config.page_size
    return ModelRunner(
        model,
        vocab_size=model.config.vocab_size,
        context_length=length,
        page_size=config.page_size,
        kv_dtype=config.kv_dtype,
    )


def random_requests(lengths: Sequence[tuple[int, int]], vocab_size: int, *seed: int) -> list[Request]:
    """Returns greedy rows of random tokens, one for each (prompt length, number of new tokens) in `lengths`.

    seed: rows of another seed share no tokens with these, so that an engine that saw them has nothing cached.
    """
    random = np.random.default_rng(seed)
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
    """Returns a plan that uses the draft model with this K in every round."""
    return SpeculationPlan(ks=(k,), proposer="draft", queue_depth=0.0, reason="benchmark")


def run_requests(engine: Engine, rows: Sequence[Request], k: int) -> tuple[float, list[StepReport]]:
    """Runs rows to completion with a fixed K, as `run_policy` does."""
    return run_policy(engine, rows, Fixed(k=k, proposer="draft"), Profile())


def run_policy(
    engine: Engine, rows: Sequence[Request], policy: Policy, profile: Profile
) -> tuple[float, list[StepReport]]:
    """Runs rows to completion under a policy, as one shard. profile: rounds timed before the first row.

    Returns the wall-clock seconds from submission to the last completion, and the report of every step.
    """
    began = ended = time.perf_counter()
    steps: list[StepReport] = []

    def observe(step: StepReport) -> None:
        nonlocal ended
        steps.append(step)
        if step.completions:  # later rounds have no rows: the host runs one round behind
            ended = time.perf_counter()

    loop, _ = loop_over(engine, policy, profile, observe)
    loop.run([rows])
    return ended - began, steps
