"""`specpipe bench engine --policy`: a mixed job that drains to its tail, under a policy and under every fixed K.

All jobs have the same rows, on one engine that was loaded and prepared once. Acceptance is synthetic: with more draft
tokens than rates, the last conditional rate holds for all further positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from specpipe.benchmark.switching import SWITCHES_S, switch_windows
from specpipe.benchmark.synthetic_engine import random_requests
from specpipe.benchmark.tuned_job import JobResult, TunedEngine
from specpipe.core import Request, SamplingParams
from specpipe.engine.engine import Engine
from specpipe.speculation.fixed import Fixed
from specpipe.speculation.make_policy import make_policy
from specpipe.speculation.policy import Policy
from specpipe.speculation.profiled_rounds import PROFILED_CONTEXT, rounds_to_profile

ACCEPTANCE = {
    "high": (0.9, 0.8, 0.7),
    "middle": (0.8718, 0.5663, 0.3188),
    "low": (0.3, 0.1, 0.03),
    "useless": (0.0,),
}
"""Unconditional acceptance per position."""
SEQUENCE = ("high", "middle", "low")
"""Run one behind the other, what was learnt kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What is compared. Lengths are in tokens."""

    policy: str = "goodput"
    ks: tuple[int, ...] = (0, 1, 2, 3, 5)
    """Fixed K to compare with; the largest is the widest that the policy may take."""
    acceptance: tuple[str, ...] = tuple(ACCEPTANCE)
    rows: int = 768
    shard_rows: int = 192
    shortest: int = 32
    longest: int = 511
    threshold: int = 64
    """For queue_threshold."""


def rates_for(rates: Sequence[float], k: int) -> tuple[float, ...]:
    """k unconditional rates: those given, then as if the last conditional rate went on."""
    out = list(rates[:k])
    while len(out) < k:
        before = out[-2] if len(out) > 1 else 1.0
        out.append(out[-1] * (out[-1] / before if before else 0.0))
    return tuple(out)


def mixed_rows(what: Comparison, vocab_size: int) -> list[Request]:
    random = np.random.default_rng(0)
    pairs = random.integers(what.shortest, what.longest + 1, (what.rows, 2)).tolist()
    return random_requests([(prompt, new) for prompt, new in pairs], vocab_size)


def compare(engine: Engine, what: Comparison) -> Iterator[dict[str, Any]]:
    """One result after the other, ready for JSON: every job, then what they come to. The engine is fresh."""
    jobs = Jobs(engine, what)
    yield {"profile": asdict(jobs.profile)}
    names = [name for name in SEQUENCE if name in what.acceptance]
    tuned: TunedEngine | None = None
    for name in what.acceptance:
        for k in what.ks if name != "useless" else (0,):
            if line := jobs.fixed(name, k):
                yield line
        found = jobs.start()
        yield jobs.policy(name, found)
        yield jobs.verdict(name)
        tuned = found if [name] == names[:1] else tuned
    if tuned is not None and len(names) > 1:
        yield from jobs.sequence(tuned, names)
    if "middle" in what.acceptance:
        yield from jobs.switches("middle")


class Jobs:
    """Jobs of the same rows, one after the other, on one prepared engine."""

    def __init__(self, engine: Engine, what: Comparison) -> None:
        """Captures every graph and times the first rounds, as a worker does before its first shard."""
        self._engine, self._what = engine, what
        self._rows = mixed_rows(what, engine.target.vocab_size)
        self._found: dict[tuple[str, int | None], JobResult] = {}
        """By acceptance and K; None: the policy, which had learnt nothing before."""
        widest = max(what.ks)
        choices = [(proposer, k) for k in range(widest + 1) for proposer in (*engine.proposers, "none")]
        engine.prepare(SamplingParams(), choices)
        shapes = rounds_to_profile(engine.config.slots, widest, engine.proposers)
        self.profile = engine.profile(SamplingParams(), shapes, context=PROFILED_CONTEXT, within_s=2.0)
        rows = self._rows[: max(4, engine.config.slots // 4)]
        self._tuned(Fixed(k=widest, proposer="draft")).run(rows, what.shard_rows)  # the vendor's libraries, and clocks

    def start(self) -> TunedEngine:
        """Under the policy, with nothing learnt but the profile."""
        what = self._what
        return self._tuned(
            make_policy(what.policy, k=max(what.ks), max_running=what.threshold, proposers=self._engine.proposers)
        )

    def fixed(self, name: str, k: int) -> dict[str, Any] | None:
        """The job with one K; None where it ran already: plain decoding does not ask for acceptance."""
        plain = next((found for (_, other), found in self._found.items() if other == 0), None)
        ran = k == 0 and plain is not None
        found = plain if ran and plain else self._run(self._tuned(Fixed(k=k, proposer="draft")), name)
        self._found[name, k] = found
        return None if ran else _line(found, acceptance=name, policy="fixed", k=k)

    def policy(self, name: str, tuned: TunedEngine, **more: Any) -> dict[str, Any]:
        """The job under the policy."""
        found = self._run(tuned, name)
        self._found.setdefault((name, None), found)
        return _line(found, acceptance=name, policy=self._what.policy, **more)

    def verdict(self, name: str) -> dict[str, Any]:
        """The policy's first job at this acceptance, against the fixed K that ran at it."""
        fixed = {k: job.tokens_per_s for (at, k), job in self._found.items() if at == name and k is not None}
        best, speed = max(fixed, key=fixed.__getitem__), self._found[name, None].tokens_per_s
        return {
            "acceptance": name,
            "best_fixed_k": best,
            "best_fixed_tokens_per_s": fixed[best],
            "share_of_best_fixed": speed / fixed[best],
            "share_of_plain": speed / fixed[0],
        }

    def sequence(self, tuned: TunedEngine, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The jobs of `names` as one, the first of which `tuned` has run: it keeps what it learnt; a fixed K has
        nothing to keep."""
        seconds = self._found[names[0], None].seconds
        for place, name in enumerate(names[1:], start=1):
            line = self.policy(name, tuned, after=list(names[:place]))
            yield line
            seconds += line["seconds"]
        ks = [k for k in self._what.ks if all((name, k) in self._found for name in names)]
        fixed = {k: sum(self._found[name, k].seconds for name in names) for k in ks}
        k = min(fixed, key=fixed.__getitem__)
        yield {
            "sequence": list(names),
            "seconds": seconds,
            "fixed_seconds": {str(k): total for k, total in fixed.items()},
            "best_fixed_k": k,
            "share_of_best_fixed": fixed[k] / seconds,
        }

    def switches(self, name: str) -> Iterator[dict[str, Any]]:
        """Speculation off and on again while all slots are full."""
        self._accept(name)
        k = min(k for k in self._what.ks if k)
        fastest = max(job.output_tokens / job.seconds for job in self._found.values())
        count = math.ceil(SWITCHES_S * fastest / np.mean([row.sampling.max_new_tokens for row in self._rows]))
        rows = mixed_rows(replace(self._what, rows=count), self._engine.target.vocab_size)
        for found in switch_windows(self._engine, rows, k=k):
            yield {"acceptance": name, "k": k, **asdict(found)}

    def _tuned(self, policy: Policy) -> TunedEngine:
        return TunedEngine(self._engine, policy, self.profile)

    def _accept(self, name: str) -> None:
        self._engine.set_synthetic_rates(rates_for(ACCEPTANCE[name], len(self._engine.config.synthetic_rates)))

    def _run(self, tuned: TunedEngine, name: str) -> JobResult:
        self._accept(name)
        return tuned.run(self._rows, self._what.shard_rows)


def _line(result: JobResult, **what: Any) -> dict[str, Any]:
    return {
        **what,
        "tokens_per_s": result.tokens_per_s,
        "seconds": result.seconds,
        "output_tokens": result.output_tokens,
        "acceptance_length": result.verified.acceptance_length,
        "k_rounds": result.k_rounds,
        "plans": result.plans,
        "planning_s": result.planning_s,
        "late_kernels": list(result.late_kernels),
        "late_graphs": result.late_graphs,
        "reasons": list(result.reasons),
    }
