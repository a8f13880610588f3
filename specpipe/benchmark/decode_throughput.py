"""Decode throughput of one engine by batch size and K, with synthetic acceptance.

Decode throughput = generated tokens / (seconds of the run - seconds of prefill). The seconds of prefill are those of a
run of the same prompts with one new token each, which prefills the target only, plus the draft's prefill in the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from specpipe.benchmark.bench_config import MIXED_LENGTHS, MIXED_ROWS, EngineBench
from specpipe.benchmark.round_profile import RoundProfile, profile_rounds
from specpipe.benchmark.synthetic_engine import fixed_plan, random_requests, run_requests
from specpipe.core import Phase, SamplingParams, StepReport
from specpipe.engine.engine import Engine


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedJobResult:
    """Throughput of the mixed job with one K."""

    mixed_k: int
    tokens_per_s: float
    """Output tokens per second, prefill included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeResult:
    """Measurements of one batch size and K."""

    batch: int
    k: int
    decode_tokens_per_s: float
    total_s: float
    prefill_s: float
    """Seconds of the same prompts with one new token each, plus the draft's prefill."""
    acceptance_length: float
    round_ms: float
    """Median duration of a decoding round."""
    idle_share: float
    """Share of decoding time in which the device waits between two rounds, by the device's clock."""
    phases_ms: dict[Phase, float] = field(default_factory=dict)
    """Mean ms of a decoding round by phase; `host` is the host's time that no other phase covers."""
    profile: RoundProfile | None = None


def measure_decode(engine: Engine, bench: EngineBench, batch: int, k: int) -> DecodeResult:
    """Measures one batch size and K on an engine whose graphs are captured (`Engine.prepare`)."""
    vocab = engine.target.vocab_size
    lengths = [[(bench.prompt_tokens, new)] * batch for new in (8, 1, bench.new_tokens)]
    warm_up, one_token, whole = (random_requests(rows, vocab, batch, k, run) for run, rows in enumerate(lengths))
    run_requests(engine, warm_up, k)
    one_token_s, _ = run_requests(engine, one_token, k)
    total_s, steps = run_requests(engine, whole, k)
    prefill_s = one_token_s + sum(step.draft_prefill_s for step in steps)
    # Rounds with all rows decoding: neither the prefill at the start nor the tail at the end.
    rounds = [step for step in steps if step.running == batch and "prefill" not in step.phases][2:-8] or steps
    drafts = sum(part.verified.drafts for step in steps for part in step.shards.values())
    accepted = sum(part.verified.accepted_tokens for step in steps for part in step.shards.values())
    phases: dict[Phase, float] = {}
    for step in rounds:
        for phase, seconds in step.phases.items():
            phases[phase] = phases.get(phase, 0.0) + 1e3 * seconds / len(rounds)
    return DecodeResult(
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
    """Returns the idle share over rounds that follow another one directly (`StepReport.round_s` is set)."""
    timed = [step for step in rounds if step.round_s and "prefill" not in step.phases]
    total = sum(step.round_s for step in timed)
    busy = sum(seconds for step in timed for phase, seconds in step.phases.items() if phase != "host")
    return max(0.0, 1 - busy / total) if total else 0.0


def _profile(engine: Engine, bench: EngineBench, batch: int, k: int) -> RoundProfile:
    """Profiles rounds in which all rows decode."""
    warm_up = 3
    # As many tokens as these rounds can emit, including the rounds that initialise the profiler.
    tokens = (bench.profiled_rounds + 2 * warm_up) * (k + 1)
    new_tokens = min(tokens, bench.max_model_len - bench.prompt_tokens)
    rows = random_requests([(bench.prompt_tokens, new_tokens)] * batch, engine.target.vocab_size, batch, k)
    engine.submit(rows, fixed_plan(k))
    decoding = 0
    while decoding < warm_up:
        step = engine.step()
        assert step is not None, "all rows ended before the profile began"
        decoding += step.running == batch and "prefill" not in step.phases
    rounds = min(bench.profiled_rounds, new_tokens // (k + 1) - 2 * warm_up)
    found = profile_rounds(engine.step, engine.target.device, max(1, rounds))
    while engine.step() is not None:
        pass
    return found


def measure_all(engine: Engine, bench: EngineBench) -> Iterator[DecodeResult]:
    """Captures all graphs, then measures every batch size with every K."""
    engine.prepare(SamplingParams(), bench.choices)
    for batch in bench.batches:
        for k in bench.ks:
            yield measure_decode(engine, bench, batch, k)


def measure_mixed_job(engine: Engine, k: int) -> MixedJobResult:
    """Measures MIXED_ROWS rows of random lengths with a fixed K, prefill included.

    Prompts of the same lengths run once before, two new tokens each: cuBLAS loads a kernel on the first call with its
    shape.
    """
    random, vocab = np.random.default_rng(0), engine.target.vocab_size
    shortest, longest = MIXED_LENGTHS
    lengths = [tuple(pair) for pair in random.integers(shortest, longest + 1, (MIXED_ROWS, 2)).tolist()]
    run_requests(engine, random_requests([(prompt, 2) for prompt, _ in lengths], vocab, k, 0), k)
    seconds, steps = run_requests(engine, random_requests(lengths, vocab, k, 1), k)
    tokens = sum(part.emitted_tokens for step in steps for part in step.shards.values())
    return MixedJobResult(mixed_k=k, tokens_per_s=tokens / seconds)
