"""`specpipe bench engine`: decode throughput of one engine over batch sizes and K, with synthetic acceptance.

Decode-only throughput = generated tokens / (seconds of the run - seconds of the same prompts with one token each - what
prefilling the draft took in the run: rows of one token need no draft, so their run leaves it out).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from specpipe.benchmark.rounds_profile import RoundProfile, profile_rounds
from specpipe.benchmark.shapes import config_of, random_model
from specpipe.core import EngineConfig, Phase, ProposerName, Request, SamplingParams, SpeculationPlan, StepReport
from specpipe.engine.ahead import KernelsAhead
from specpipe.engine.attention import register
from specpipe.engine.build import PREPARE_S, sized_engine
from specpipe.engine.engine import Engine
from specpipe.engine.runner import ModelRunner
from specpipe.models.loader import outline_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One batch size and K."""

    batch: int
    k: int
    decode_tokens_per_s: float
    total_s: float
    prefill_s: float
    """Of the same prompts with one token each, and of prefilling the draft."""
    acceptance_length: float
    round_ms: float
    idle_share: float
    """Of decoding rounds, by the device's clock: from the end of one to the start of the next, when it waits."""
    phases_ms: dict[Phase, float] = field(default_factory=dict)
    """Mean of a decoding round; `host` is what of the host's time no other phase covers."""
    profile: RoundProfile | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StartUp:
    """Seconds from the command to the first token of an engine."""

    import_s: float
    """torch and specpipe."""
    build_s: float
    """Weights, made at random on the device, KV memory, and meanwhile compiling kernels that no cache holds."""
    prepare_s: float
    """Capturing graphs, the largest batches first, for at most `PREPARE_S` seconds."""
    first_token_s: float
    """Of one row, prefill included."""
    total_s: float


class _NoText:
    """Rows of random tokens have no text."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return ""

    def stream(self, stop: tuple[str, ...]) -> Any:
        raise AssertionError("no row of a benchmark has stop strings")


def build(bench: Bench) -> Engine:
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


def _kernels_ahead(bench: Bench, config: EngineConfig, dtype: torch.dtype) -> KernelsAhead:
    def outlines() -> list[ModelRunner]:
        return [_runner(outline_of(config_of(shape), dtype), config, fp8=fp8) for shape, fp8 in bench.pair]

    return KernelsAhead(outlines, config, _NoText(), (), sampling=SamplingParams(), choices=bench.choices)


def _runner(model: Any, config: EngineConfig, *, fp8: bool) -> ModelRunner:
    length = config.pages_per_row * config.page_size
    return ModelRunner(
        model, vocab_size=model.config.vocab_size, context_length=length, page_size=config.page_size, fp8=fp8
    )


def start(bench: Bench, began: float) -> tuple[Engine, StartUp]:
    """A prepared engine, and where the seconds from `began` (`time.perf_counter`) to its first token went."""
    marks = [began, time.perf_counter()]
    engine = build(bench)
    marks.append(time.perf_counter())
    engine.prepare(SamplingParams(), bench.choices, within_s=PREPARE_S)
    marks.append(time.perf_counter())
    run(engine, requests([(bench.prompt_tokens, 1)], engine.target.vocab_size), bench.ks[0])
    marks.append(time.perf_counter())
    imported, built, prepared, first = (after - before for before, after in itertools.pairwise(marks))
    engine.prepare(SamplingParams(), bench.choices)  # the rest: no figure pays for a capture
    return engine, StartUp(
        import_s=imported, build_s=built, prepare_s=prepared, first_token_s=first, total_s=marks[-1] - began
    )


def requests(lengths: Sequence[tuple[int, int]], vocab_size: int, *, seed: int = 0) -> list[Request]:
    """Rows of random tokens: (prompt tokens, new tokens) each."""
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


def _plan(k: int) -> SpeculationPlan:
    return SpeculationPlan(ks=(k,), proposer="draft", queue_depth=0.0, reason="benchmark")


def run(engine: Engine, rows: Sequence[Request], k: int) -> tuple[float, list[StepReport]]:
    """→ wall seconds from submission to the last completion, and every step."""
    began = ended = time.perf_counter()
    engine.submit(rows, _plan(k))
    steps = []
    while (step := engine.step()) is not None:
        steps.append(step)
        if step.completions:  # a late round may follow, for nobody
            ended = time.perf_counter()
    return ended - began, steps


def measure(engine: Engine, bench: Bench, batch: int, k: int) -> Measured:
    """Warm-up, prefill alone, then the whole. The engine is prepared (`Engine.prepare`)."""
    vocab = engine.target.vocab_size
    run(engine, requests([(bench.prompt_tokens, 8)] * batch, vocab), k)
    first_s, _ = run(engine, requests([(bench.prompt_tokens, 1)] * batch, vocab), k)
    total_s, steps = run(engine, requests([(bench.prompt_tokens, bench.new_tokens)] * batch, vocab), k)
    prefill_s = first_s + sum(step.draft_prefill_s for step in steps)
    # Rounds in the middle: no prefill, no tail.
    rounds = [step for step in steps if step.running == batch and "prefill" not in step.phases][2:-8] or steps
    drafts = sum(part.verified.drafts for step in steps for part in step.shards.values())
    accepted = sum(part.verified.accepted_tokens for step in steps for part in step.shards.values())
    phases: dict[Phase, float] = {}
    for step in rounds:
        for phase, seconds in step.phases.items():
            phases[phase] = phases.get(phase, 0.0) + 1e3 * seconds / len(rounds)
    return Measured(
        batch=batch,
        k=k,
        decode_tokens_per_s=batch * bench.new_tokens / (total_s - prefill_s),
        total_s=total_s,
        prefill_s=prefill_s,
        acceptance_length=1 + accepted / drafts if drafts else 1.0,
        round_ms=1e3 * float(np.median([step.seconds for step in rounds])),
        idle_share=_idle_share(rounds),
        phases_ms=phases,
        profile=_profile(engine, bench, batch, k) if bench.profiled_rounds else None,
    )


def _idle_share(rounds: Sequence[StepReport]) -> float:
    """Of rounds whose beginning was told by the end of the one before (`StepReport.round_s`)."""
    timed = [step for step in rounds if step.round_s and "prefill" not in step.phases]
    whole = sum(step.round_s for step in timed)
    busy = sum(seconds for step in timed for phase, seconds in step.phases.items() if phase != "host")
    return max(0.0, 1 - busy / whole) if whole else 0.0


def _profile(engine: Engine, bench: Bench, batch: int, k: int) -> RoundProfile:
    """Rounds in which all rows decode."""
    warm_up = 3
    # As many tokens as the rounds can emit, and those of the rounds that the profiler runs for itself.
    tokens = (bench.profiled_rounds + 2 * warm_up) * (k + 1)
    new_tokens = min(tokens, bench.max_model_len - bench.prompt_tokens)
    engine.submit(requests([(bench.prompt_tokens, new_tokens)] * batch, engine.target.vocab_size), _plan(k))
    decoding = 0
    while decoding < warm_up:
        step = engine.step()
        assert step is not None, "the rows ended before the profile began"
        decoding += step.running == batch and "prefill" not in step.phases
    rounds = min(bench.profiled_rounds, new_tokens // (k + 1) - 2 * warm_up)
    found = profile_rounds(engine.step, engine.target.device, max(1, rounds))
    while engine.step() is not None:
        pass
    return found


def sweep(engine: Engine, bench: Bench) -> Iterator[Measured]:
    """Every batch size and K, once all graphs are captured."""
    engine.prepare(SamplingParams(), bench.choices)
    for batch in bench.batches:
        for k in bench.ks:
            yield measure(engine, bench, batch, k)


def mixed_job(engine: Engine, k: int, *, rows: int = 768, shortest: int = 32, longest: int = 511) -> float:
    """Rows of mixed lengths, prefill included → output tokens per second.

    Before it all prompts with two tokens each: the vendor's library loads a kernel when it first meets its shape.
    """
    random, vocab = np.random.default_rng(0), engine.target.vocab_size
    lengths = [tuple(pair) for pair in random.integers(shortest, longest + 1, (rows, 2)).tolist()]
    run(engine, requests([(prompt, 2) for prompt, _ in lengths], vocab), k)
    seconds, steps = run(engine, requests(lengths, vocab), k)
    return sum(part.emitted_tokens for step in steps for part in step.shards.values()) / seconds
