"""Complete jobs whose prompts repeat each other: few-shot evaluations, and several samples of each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specpipe.benchmark.bench_config import SHARED_WORKS, SharedWork
from specpipe.benchmark.synthetic_engine import run_requests
from specpipe.core import Request, SamplingParams, StepReport
from specpipe.engine.engine import Engine

_WARM_UP_TOKENS = 8
"""New tokens of each row of the warm-up, at most: enough to load every kernel and capture every graph."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedWorkResult:
    """Measurements of one job with one K."""

    work: str
    k: int
    rows: int
    seconds: float
    """From submission to the last completion."""
    output_tokens_per_s: float
    prompt_tokens: int
    """Tokens of all prompts."""
    prefill_tokens: int
    """Prompt tokens that the target computed."""
    round_ms: float
    """Median duration of a round with all slots running and no prefill; of any round where there is none."""


def measure_shared_work(engine: Engine, name: str, k: int) -> SharedWorkResult:
    """Measures the job SHARED_WORKS[name] with a fixed K, after a warm-up; no token was ever run before."""
    work, vocab = SHARED_WORKS[name], engine.target.vocab_size
    few = replace(work, new_tokens=min(work.new_tokens, _WARM_UP_TOKENS))
    run_requests(engine, shared_requests(few, vocab, seed=2 * k + 1), k)
    rows = shared_requests(work, vocab, seed=2 * k)
    seconds, steps = run_requests(engine, rows, k)
    return SharedWorkResult(
        work=name,
        k=k,
        rows=len(rows),
        seconds=seconds,
        output_tokens_per_s=len(rows) * work.new_tokens / seconds,
        prompt_tokens=sum(len(row.prompt_token_ids) for row in rows),
        prefill_tokens=sum(part.prefill_tokens for step in steps for part in step.shards.values()),
        round_ms=_round_ms(steps, engine.config.slots),
    )


def _round_ms(steps: Sequence[StepReport], slots: int) -> float:
    """Returns the median duration of full rounds, as in SharedWorkResult."""
    timed = [step for step in steps if step.round_s and "prefill" not in step.phases]
    return 1e3 * float(
        np.median([step.round_s for step in timed if step.running == slots] or [s.round_s for s in timed])
    )


def shared_requests(work: SharedWork, vocab_size: int, *, seed: int) -> list[Request]:
    """Returns the greedy rows of a job, of random tokens that no other job or seed has."""
    random = np.random.default_rng([seed, work.shared_tokens, work.own_tokens, work.new_tokens])
    shared = random.integers(0, vocab_size, work.shared_tokens).tolist()
    rows = []
    for prompt in range(work.prompts):
        tokens = (*shared, *random.integers(0, vocab_size, work.own_tokens).tolist())
        for sample in range(work.samples):
            row = prompt * work.samples + sample
            rows.append(
                Request(
                    request_id=str(row),
                    shard=0,
                    row=row,
                    sample=sample,
                    prompt="",
                    prompt_token_ids=tokens,
                    sampling=SamplingParams(max_new_tokens=work.new_tokens, ignore_eos=True),
                    seed=row,
                )
            )
    return rows
