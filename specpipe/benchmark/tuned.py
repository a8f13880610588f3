"""`specpipe bench engine --policy`: a mixed job that drains to its tail, under a policy and under every fixed K.

All jobs have the same rows, on one engine that was loaded and prepared once. Acceptance is synthetic: with more draft
tokens than rates, the last conditional rate holds for all further positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from specpipe.benchmark.engine import requests
from specpipe.benchmark.job import JobResult, TunedEngine
from specpipe.benchmark.switching import switch_windows
from specpipe.core import Request, SamplingParams
from specpipe.engine.engine import Engine
from specpipe.speculation.cost import points_to_time
from specpipe.speculation.fixed import Fixed
from specpipe.speculation.make import make_policy

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
    return requests([(prompt, new) for prompt, new in pairs], vocab_size)


def compare(engine: Engine, what: Comparison) -> Iterator[dict[str, Any]]:
    """One result after the other, ready for JSON: every job, then what they come to. The engine is fresh."""
    rows = mixed_rows(what, engine.target.vocab_size)
    engine.prepare(SamplingParams(), [(p, k) for k in range(max(what.ks) + 1) for p in (*engine.proposers, "none")])
    shapes = points_to_time(engine.config.slots, max(what.ks), engine.proposers)
    profile = engine.profile(SamplingParams(), shapes, within_s=2.0)
    yield {"profile": [asdict(point) for point in profile]}
    runs = _Runs(engine, what, rows, profile)
    runs.warm_up()
    for name in what.acceptance:
        yield from runs.one(name)
    names = [name for name in SEQUENCE if name in what.acceptance]
    if len(names) > 1:
        yield from runs.sequence(names)
    if "middle" in what.acceptance:
        yield from runs.switches("middle")


class _Runs:
    def __init__(self, engine: Engine, what: Comparison, rows: list[Request], profile: Sequence[Any]) -> None:
        self._engine, self._what, self._rows, self._profile = engine, what, rows, profile
        self._fixed: dict[tuple[str, int], JobResult] = {}

    def warm_up(self) -> None:
        """Shapes of prefill that jobs will meet, and clocks."""
        self._tuned(max(self._what.ks)).run(self._rows[: 2 * self._engine.config.slots], self._what.shard_rows)

    def _tuned(self, k: int | None) -> TunedEngine:
        """k: fixed; None: the policy."""
        what = self._what
        policy = (
            Fixed(k=k, proposer="draft")
            if k is not None
            else make_policy(what.policy, k=max(what.ks), max_running=what.threshold, proposers=self._engine.proposers)
        )
        return TunedEngine(self._engine, policy, self._profile)

    def _accept(self, name: str) -> None:
        self._engine.set_synthetic_rates(rates_for(ACCEPTANCE[name], len(self._engine.config.synthetic_rates)))

    def one(self, name: str) -> Iterator[dict[str, Any]]:
        """Every fixed K and the policy at one acceptance."""
        self._accept(name)
        best = (0.0, 0)
        for k in self._what.ks if name != "useless" else (0,):
            found = self._fixed.get(("", 0)) if k == 0 else None  # plain decoding does not ask
            if found is None:
                found = self._tuned(k).run(self._rows, self._what.shard_rows)
                yield _line(found, acceptance=name, policy="fixed", k=k)
            self._fixed["" if k == 0 else name, k] = found
            best = max(best, (found.tokens_per_s, k))
        policy = self._tuned(None).run(self._rows, self._what.shard_rows)
        yield _line(policy, acceptance=name, policy=self._what.policy)
        yield {
            "acceptance": name,
            "best_fixed_k": best[1],
            "best_fixed_tokens_per_s": best[0],
            "share_of_best_fixed": policy.tokens_per_s / best[0],
            "share_of_plain": policy.tokens_per_s / self._fixed["", 0].tokens_per_s,
        }

    def sequence(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The jobs of `names` as one: the policy keeps what it learnt; a fixed K has nothing to keep."""
        tuned, seconds = self._tuned(None), 0.0
        for name in names:
            self._accept(name)
            found = tuned.run(self._rows, self._what.shard_rows)
            yield _line(found, acceptance=name, policy=self._what.policy, after=list(names[: names.index(name)]))
            seconds += found.seconds
        fixed = {k: sum(self._fixed["" if k == 0 else name, k].seconds for name in names) for k in self._what.ks}
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
        for k in (k for k in self._what.ks if k):
            for found in switch_windows(self._engine, self._rows, k=k):
                yield {"acceptance": name, "k": k, **asdict(found)}
            return


def _line(result: JobResult, **what: Any) -> dict[str, Any]:
    return {
        **what,
        "tokens_per_s": result.tokens_per_s,
        "seconds": result.seconds,
        "output_tokens": result.output_tokens,
        "acceptance_length": result.verified.acceptance_length,
        "k_rounds": result.k_rounds,
        "plans": result.plans,
        "reasons": list(result.reasons),
    }
