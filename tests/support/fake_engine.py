"""An engine without a model. Its tokens are a function of the row's seed and position."""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from specpipe.core import (
    AcceptanceCounts,
    Completion,
    DraftSource,
    EngineConfig,
    ProposerName,
    Request,
    RowTiming,
    Score,
    ShardRound,
    SpeculationPlan,
    StepReport,
)


def token_at(seed: int, position: int) -> int:
    """Returns the token of a row at a position, which does not depend on K, shard or worker."""
    return (seed * 6364136223846793005 + position * 1442695040888963407) % 2**64 % 997


def accepted_of(seed: int, position: int, k: int) -> int:
    """Returns how many of k draft tokens are accepted: each with a probability of about 2/3."""
    count = 0
    while count < k and token_at(seed + 1, position + count) % 3:
        count += 1
    return count


def score_of(request: Request, continuation: int) -> Score:
    """Returns the score of a row's continuation, a function of the row's seed and of all token ids."""
    tokens = request.continuations[continuation]
    context = sum(request.prompt_token_ids)
    logprobs = array("f", [-token_at(request.seed + context, i * 1000 + token) / 64 for i, token in enumerate(tokens)])
    kept = logprobs if request.sampling.logprobs is not None else None
    return Score(
        logprob=sum(logprobs), num_tokens=len(tokens), is_greedy=token_at(request.seed, continuation) % 2 == 0,
        token_logprobs=kept,
    )  # fmt: skip


def _source(proposer: ProposerName) -> DraftSource:
    return "reference" if proposer == "replay" else "ngram" if proposer == "ngram" else "draft"


@dataclass(eq=False)
class _Row:
    request: Request
    submitted: float
    started: float = 0.0
    first: float = 0.0
    last: float = 0.0
    tokens: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    prefilled: bool = False
    speculates: bool = True


class FakeEngine:
    """`step_s` is slept in every step; `fail_at_step` raises in that one; a prompt of "BAD" completes with an error."""

    def __init__(self, config: EngineConfig, *, step_s: float = 0.0, fail_at_step: int | None = None) -> None:
        self.config = config
        self.steps = 0
        self.requests: list[Request] = []  # all that were submitted
        self.seen_ks: list[tuple[int, int]] = []  # (running, k) of every round
        self.starts: dict[str, int] = {}  # request -> rows that ran, itself included, when it got a slot last
        self._step_s, self._fail_at_step = step_s, fail_at_step
        self._lock = threading.Lock()
        self._queue: deque[_Row] = deque()
        self._active: list[_Row] = []
        self._plan: SpeculationPlan | None = None

    @property
    def running(self) -> int:
        return len(self._active)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def kv_pages_used(self) -> int:
        return 2 * len(self._active)

    @property
    def kv_pages(self) -> int:
        return 2 * self.config.slots

    def submit(self, requests: Sequence[Request], plan: SpeculationPlan) -> None:
        with self._lock:
            self._plan = plan
            self.requests.extend(requests)
            self._queue.extend(_Row(request, time.perf_counter()) for request in requests)

    def step(self) -> StepReport | None:
        with self._lock:
            while self._queue and len(self._active) < self.config.slots:
                row = self._queue.popleft()
                running = self.starts[row.request.request_id] = len(self._active) + 1
                row.speculates = self._plan is None or self._plan.speculates(running)
                row.started = row.last = time.perf_counter()
                self._active.append(row)
            plan, rows = self._plan, list(self._active)
        if not rows:
            return None
        assert plan is not None
        self.steps += 1
        if self.steps == self._fail_at_step:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        began = time.perf_counter()
        proposer, k = plan.choice(len(rows), self.steps - 1) if any(r.speculates for r in rows) else ("none", 0)
        self.seen_ks.append((len(rows), k))
        time.sleep(self._step_s)
        shards = self._round(rows, k, proposer)
        done = [row for row in rows if row.request.prompt == "BAD" or self._missing(row) == 0]
        with self._lock:
            ended = set(done)
            self._active = [row for row in self._active if row not in ended]
            waiting = len(self._queue)
        seconds = time.perf_counter() - began
        return StepReport(
            k=k,
            running=sum(not row.request.continuations for row in rows),
            waiting=waiting,
            slots=self.config.slots,
            seconds=seconds,
            phases={"prefill": 0.1 * seconds, "draft": 0.2 * seconds, "verify": 0.5 * seconds, "host": 0.2 * seconds},
            proposer=proposer,
            context=sum(len(r.request.prompt_token_ids) + len(r.tokens) for r in rows) / len(rows),
            round_s=0.9 * seconds,
            shards=shards,
            completions=tuple(self._complete(row) for row in done),
        )

    @staticmethod
    def _missing(row: _Row) -> int:
        return row.request.new_tokens - len(row.tokens)

    def _round(self, rows: list[_Row], k: int, proposer: ProposerName) -> dict[int, ShardRound]:
        by_shard: dict[int, list[_Row]] = {}
        for row in rows:
            by_shard.setdefault(row.request.shard, []).append(row)
        return {shard: self._shard_round(mine, k, _source(proposer)) for shard, mine in by_shard.items()}

    def _shard_round(self, rows: list[_Row], k: int, source: DraftSource) -> ShardRound:
        counts, emitted, prefill, gaps = AcceptanceCounts(), 0, 0, []
        rows = [row for row in rows if row.request.prompt != "BAD"]
        scored = [row.request for row in rows if row.request.continuations]
        prefill += sum(len(request.prompt_token_ids) + request.scored_tokens for request in scored)
        rows = [row for row in rows if not row.request.continuations]
        for row in rows:
            if not row.prefilled:
                row.prefilled = True
                prefill += len(row.request.prompt_token_ids)
            width = min(k, self._missing(row) - 1) if row.speculates else 0
            position = len(row.tokens)
            accepted = accepted_of(row.request.seed, position, width)
            row.tokens += [token_at(row.request.seed, position + i) for i in range(accepted + 1)]
            row.drafted += width
            row.accepted += accepted
            now = time.perf_counter()
            gaps.append(now - row.last)
            row.first, row.last = row.first or now, now
            emitted += accepted + 1
            if width:
                counts += AcceptanceCounts(
                    drafts=1,
                    draft_tokens=width,
                    accepted_tokens=accepted,
                    recovered_tokens=int(accepted < width),
                    bonus_tokens=int(accepted == width),
                    proposed_per_position=(1,) * width,
                    reached_per_position=tuple(int(i <= accepted) for i in range(width)),
                    accepted_per_position=tuple(int(i < accepted) for i in range(width)),
                )
        return ShardRound(
            rows=len(rows),
            plain_rows=sum(not row.speculates for row in rows),
            prefill_tokens=prefill,
            scored_tokens=sum(request.scored_tokens for request in scored),
            verified=counts,
            by_source={source: counts} if counts.drafts else {},
            emitted_tokens=emitted,
            emitted_accepted_tokens=counts.accepted_tokens,
            gaps_s=tuple(gaps),
        )

    @staticmethod
    def _complete(row: _Row) -> Completion:
        if row.request.prompt == "BAD":
            return Completion(request=row.request, finish_reason="error", error="a bad row")
        if row.request.continuations:
            scores = tuple(score_of(row.request, i) for i in range(len(row.request.continuations)))
            return Completion(request=row.request, finish_reason="scored", scores=scores)
        return Completion(
            request=row.request,
            token_ids=tuple(row.tokens),
            text=" ".join(map(str, row.tokens)),
            finish_reason="length",
            draft_tokens=row.drafted,
            accepted_tokens=row.accepted,
            timing=RowTiming(
                queued_s=row.started - row.submitted,
                first_token_s=row.first - row.started,
                last_token_s=row.last - row.started,
            ),
        )
