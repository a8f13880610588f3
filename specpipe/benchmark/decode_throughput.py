"""Decode throughput of one engine over batch sizes and K, with synthetic acceptance.

Decode-only throughput = generated tokens / (seconds of the run - seconds of the same prompts with one token each - what
prefilling the draft took in the run: rows of one token need no draft, so their run leaves it out).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from specpipe.benchmark.round_profile import RoundProfile, profile_rounds
from specpipe.benchmark.synthetic_engine import EngineBench, fixed_plan, random_requests, run_requests
from specpipe.core import Phase, SamplingParams, StepReport
from specpipe.engine.engine import Engine


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


def measure(engine: Engine, bench: EngineBench, batch: int, k: int) -> Measured:
    """Warm-up, prefill alone, then the whole. The engine is prepared (`Engine.prepare`)."""
    vocab = engine.target.vocab_size
    run_requests(engine, random_requests([(bench.prompt_tokens, 8)] * batch, vocab), k)
    first_s, _ = run_requests(engine, random_requests([(bench.prompt_tokens, 1)] * batch, vocab), k)
    total_s, steps = run_requests(engine, random_requests([(bench.prompt_tokens, bench.new_tokens)] * batch, vocab), k)
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


def _profile(engine: Engine, bench: EngineBench, batch: int, k: int) -> RoundProfile:
    """Rounds in which all rows decode."""
    warm_up = 3
    # As many tokens as the rounds can emit, and those of the rounds that the profiler runs for itself.
    tokens = (bench.profiled_rounds + 2 * warm_up) * (k + 1)
    new_tokens = min(tokens, bench.max_model_len - bench.prompt_tokens)
    engine.submit(random_requests([(bench.prompt_tokens, new_tokens)] * batch, engine.target.vocab_size), fixed_plan(k))
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


def sweep(engine: Engine, bench: EngineBench) -> Iterator[Measured]:
    """Every batch size and K, once all graphs are captured."""
    engine.prepare(SamplingParams(), bench.choices)
    for batch in bench.batches:
        for k in bench.ks:
            yield measure(engine, bench, batch, k)


def mixed_job(engine: Engine, k: int) -> float:
    """768 rows of 32 to 511 tokens in and out, prefill included → output tokens per second.

    Before it all prompts with two tokens each: the vendor's library loads a kernel when it first meets its shape.
    """
    random, vocab = np.random.default_rng(0), engine.target.vocab_size
    lengths = [tuple(pair) for pair in random.integers(32, 512, (768, 2)).tolist()]
    run_requests(engine, random_requests([(prompt, 2) for prompt, _ in lengths], vocab), k)
    seconds, steps = run_requests(engine, random_requests(lengths, vocab), k)
    return sum(part.emitted_tokens for step in steps for part in step.shards.values()) / seconds
