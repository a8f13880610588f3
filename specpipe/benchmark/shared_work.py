"""Complete jobs whose prompts repeat each other: few-shot evaluations, and several samples of each prompt."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from specpipe.benchmark.bench_config import SHARED_WORKS, SharedWork
from specpipe.benchmark.synthetic_engine import run_policy, run_requests
from specpipe.core import Profile, Request, SamplingParams, StepReport
from specpipe.engine.engine import Engine
from specpipe.engine.rounds.profiled_rounds import PROFILED_CONTEXT, rounds_to_profile
from specpipe.speculation.policies.fixed import Fixed
from specpipe.speculation.policies.make_policy import make_policy
from specpipe.speculation.policies.policy import Policy

_WARM_UP_TOKENS = 8
"""New tokens of each row of the warm-up, at most: enough to load every kernel and capture every graph."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedWorkResult:
    """Measurements of one job with one K, or under a policy."""

    work: str
    policy: str
    k: int | None
    """The fixed K; None under another policy."""
    k_rounds: Mapping[int, int]
    """Rounds by K."""
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
    late_graphs: int
    """Graphs captured while the job ran."""


class SharedWorkJobs:
    """Jobs on one new engine, each after a warm-up; no job has a token of another one."""

    def __init__(self, engine: Engine, *, tuned: bool) -> None:
        """tuned: times rounds, as a worker does before its first row under a policy that measures."""
        self._engine, self._profile, self._seeds = engine, Profile(), count()
        if tuned:
            shapes = rounds_to_profile(engine.config.slots, engine.config.max_k, engine.proposers)
            self._profile = engine.profile(SamplingParams(), shapes, context=PROFILED_CONTEXT, within_s=2.0)

    def run_fixed(self, name: str, k: int) -> SharedWorkResult:
        """Measures the job SHARED_WORKS[name] with a fixed K."""
        work = SHARED_WORKS[name]
        few = replace(work, new_tokens=min(work.new_tokens, _WARM_UP_TOKENS))
        run_requests(self._engine, self._requests(few), k)
        return self._run(name, "fixed", Fixed(k=k, proposer="draft"), k)

    def run_tuned(self, name: str, policy: str) -> SharedWorkResult:
        """Measures the job under a policy without estimates but the profile, with K up to the engine's.

        The job runs twice, and the second run counts: the first one captures graphs.
        """
        config, proposers = self._engine.config, self._engine.proposers
        made = make_policy(policy, k=config.max_k, max_running=config.slots, proposers=proposers)
        self._run(name, policy, made, None)
        return self._run(name, policy, made, None)

    def _requests(self, work: SharedWork) -> list[Request]:
        return shared_requests(work, self._engine.target.vocab_size, seed=next(self._seeds))

    def _run(self, name: str, policy_name: str, policy: Policy, k: int | None) -> SharedWorkResult:
        rows, graphs = self._requests(SHARED_WORKS[name]), self._engine.graphs_captured
        gc.collect()  # else a full collection, 0.3 s on an H200's host, may be due in the job; workers freeze libraries
        seconds, steps = run_policy(self._engine, rows, policy, self._profile)
        return SharedWorkResult(
            work=name,
            policy=policy_name,
            k=k,
            k_rounds=dict(sorted(Counter(step.k for step in steps if step.running).items())),
            rows=len(rows),
            seconds=seconds,
            output_tokens_per_s=sum(row.sampling.max_new_tokens for row in rows) / seconds,
            prompt_tokens=sum(len(row.prompt_token_ids) for row in rows),
            prefill_tokens=sum(part.prefill_tokens for step in steps for part in step.shards.values()),
            round_ms=_round_ms(steps, self._engine.config.slots),
            late_graphs=self._engine.graphs_captured - graphs,
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
