"""The engine's host side: admit, prefill, launch a round, and read what an earlier round did.

On a GPU the host runs one round behind: while round n runs it reads round n - 1, detokenizes, finishes and refills.
What a late round did to a row that has finished meanwhile is dropped; its slot is reused safely, because everything
the host asks for afterwards runs after that round on the same stream.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specpipe.core import (
    Completion,
    EngineConfig,
    FinishReason,
    Phase,
    Request,
    ShardRound,
    SpeculationPlan,
    StepReport,
)
from specpipe.engine.accounting import count_acceptance
from specpipe.engine.pages import PageAllocator
from specpipe.engine.prefill import Chunk, cut_chunks, prefill
from specpipe.engine.proposers import DraftModelProposer, NGramProposer, Proposer
from specpipe.engine.round import Round, RoundKey
from specpipe.engine.rows import Row, TextDecoder
from specpipe.engine.runner import ModelRunner
from specpipe.engine.scheduler import Scheduler
from specpipe.engine.slots import SlotState
from specpipe.engine.timing import clock_for

STATUS_ERRORS = {
    1: "the model's logits hold NaN or infinity for this row",
    2: "no token has a probability above zero for this row",
}


class InFlight(NamedTuple):
    """A round that was launched and not read yet."""

    rows: list[Row]
    k: int
    packed: Tensor
    """[B, K + 5] int64 on the host, valid once `done` has passed."""
    done: torch.cuda.Event | None


class _ShardTally:
    """What one step did for one shard, while it is being counted."""

    def __init__(self) -> None:
        self.proposed: list[int] = []
        self.accepted: list[int] = []
        self.gaps: list[float] = []
        self.emitted = self.emitted_accepted = self.prefill_tokens = 0

    def freeze(self) -> ShardRound:
        return ShardRound(
            rows=len(self.proposed),
            prefill_tokens=self.prefill_tokens,
            verified=count_acceptance(np.array(self.proposed, dtype=np.int64), np.array(self.accepted, dtype=np.int64)),
            emitted_tokens=self.emitted,
            emitted_accepted_tokens=self.emitted_accepted,
            gaps_s=tuple(self.gaps),
        )


class Engine:
    """Generates for many rows at once with one draft/target pair. `submit` is thread-safe; `step` has one caller."""

    def __init__(
        self,
        target: ModelRunner,
        draft: ModelRunner | None,
        *,
        config: EngineConfig,
        decoder: TextDecoder,
        eos_ids: Sequence[int],
        num_pages: int,
        rounds_behind: int | None = None,
    ) -> None:
        """num_pages counts the trash page. rounds_behind: rounds launched before the oldest one is read; by default 1
        on a GPU and 0 on a CPU, which has nothing to overlap."""
        self.config = config
        self.target, self.draft = target, draft
        for runner in (target, draft):
            if runner is not None:
                runner.allocate_pages(num_pages)
        self._device = target.device
        self._scheduler = Scheduler(config, PageAllocator(num_pages), decoder)
        self._state = SlotState(config, eos_ids=eos_ids, device=self._device)
        self._decoder = decoder
        self._clock = clock_for(self._device)
        self._behind = rounds_behind if rounds_behind is not None else int(self._device.type == "cuda")
        self._in_flight: deque[InFlight] = deque()
        rates = torch.tensor(config.synthetic_rates, device=self._device) if config.synthetic_rates else None
        self._round = Round(
            self._state,
            target,
            self._proposer(),
            method=config.method,
            synthetic_rates=rates,
            clock=self._clock,
        )

    def _proposer(self) -> Proposer | None:
        if self.config.proposer == "draft":
            assert self.draft is not None, "proposer draft without a draft model"
            return DraftModelProposer(self.draft, vocab_size=self.target.vocab_size, method=self.config.method)
        return NGramProposer(self.config) if self.config.proposer == "ngram" else None

    @property
    def running(self) -> int:
        """Rows that hold a slot."""
        return len(self._scheduler.rows)

    @property
    def waiting(self) -> int:
        """Rows submitted that hold no slot yet."""
        return self._scheduler.waiting

    def submit(self, requests: Sequence[Request], plan: SpeculationPlan) -> None:
        """Queues rows, from any thread; `plan` rules every round from now on. A row that cannot run completes with
        an error in the next step."""
        self._scheduler.submit(requests, plan)

    def step(self) -> StepReport | None:
        """At most one prefill chunk and one round, then the results of the oldest round in flight.

        None when there is nothing to do.
        """
        began = time.perf_counter()
        tally: defaultdict[int, _ShardTally] = defaultdict(_ShardTally)
        completions = self._scheduler.take_refused()
        self._admit()
        self._clock.start()
        self._prefill(tally)
        launched = self._launch()
        if launched is not None:
            self._in_flight.append(launched)
        due = len(self._in_flight) > self._behind or (self._in_flight and launched is None)
        collected = self._in_flight.popleft() if due else None
        if collected is not None:
            completions += self._collect(collected, tally)
        if launched is None and collected is None and not completions and not tally:
            return None
        seconds = time.perf_counter() - began
        return StepReport(
            k=collected.k if collected else 0,
            running=len(collected.rows) if collected else 0,
            waiting=self.waiting,
            slots=self.config.slots,
            seconds=seconds,
            phases=self._phases(seconds),
            shards={shard: t.freeze() for shard, t in tally.items()},
            completions=tuple(completions),
        )

    def _phases(self, seconds: float) -> dict[Phase, float]:
        phases = self._clock.take()
        phases["host"] = max(0.0, seconds - sum(phases.values()))
        return phases

    def _admit(self) -> None:
        admissions = self._scheduler.admit()
        if not admissions:
            return
        self._state.admit(admissions)
        self._activate([row for a in admissions if (row := self._scheduler.rows[a.slot]).prefilled])

    def _activate(self, rows: list[Row]) -> None:
        if rows:
            self._state.activate([row.slot for row in rows])

    def _planned_k(self, running: int) -> int:
        plan = self._scheduler.plan
        if plan is None or self._round.proposer is None:
            return 0
        return min(plan.k_for(running), self.config.max_k)

    def _prefill(self, tally: dict[int, _ShardTally]) -> None:
        budget, page_size, rows = self.config.prefill_budget, self.config.page_size, self._scheduler.rows
        chunks = cut_chunks(self._scheduler.target_chunks(), budget)
        if chunks:
            prefill(self.target, self._state, chunks, page_size=page_size)
            for chunk in chunks:
                rows[chunk.slot].target_done = chunk.stop
                tally[rows[chunk.slot].request.shard].prefill_tokens += chunk.stop - chunk.start
            self._activate([rows[c.slot] for c in chunks if rows[c.slot].prefilled])
        if self.draft is not None and self._planned_k(sum(row.prefilled for row in rows.values())):
            self._prefill_draft(self.draft, cut_chunks(self._scheduler.draft_chunks(), budget))
        self._clock.mark("prefill")

    def _prefill_draft(self, draft: ModelRunner, chunks: list[Chunk]) -> None:
        if not chunks:
            return
        prefill(draft, self._state, chunks, page_size=self.config.page_size)
        slots = self._state.upload([c.slot for c in chunks])
        self._state.draft_valid[slots] = self._state.upload([c.stop for c in chunks])
        for chunk in chunks:
            self._scheduler.rows[chunk.slot].draft_done = chunk.stop

    def _launch(self) -> InFlight | None:
        # Every round in flight commits at least one token: a row that reaches its limit by those needs no round more.
        unread = Counter(row for flight in self._in_flight for row in flight.rows)
        rows = [row for row in self._scheduler.rows.values() if row.prefilled and row.length + unread[row] < row.limit]
        if not rows:
            return None
        k = min(self._planned_k(len(rows)), max(row.limit - row.length - 1 for row in rows))
        key = RoundKey(
            k=k,
            all_greedy=all(row.request.sampling.greedy for row in rows),
            truncated=any(row.request.sampling.truncates for row in rows),
            width=self._width(rows, k),
        )
        result = self._round(self._state.upload([row.slot for row in rows]), key)
        packed = result.pack()
        if self._device.type == "cpu":
            return InFlight(rows, k, packed, None)
        host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
        host.copy_(packed, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        return InFlight(rows, k, host, done)

    def _width(self, rows: list[Row], k: int) -> int:
        """Block-table columns that this round can reach. A GPU kernel reads lengths; its shapes stay static."""
        if self._device.type != "cpu":
            return self.config.pages_per_row
        unread = sum(flight.k + 1 for flight in self._in_flight)
        return min(
            (max(row.length for row in rows) + unread + k) // self.config.page_size + 1, self.config.pages_per_row
        )

    def _collect(self, flight: InFlight, tally: dict[int, _ShardTally]) -> list[Completion]:
        if flight.done is not None:
            flight.done.synchronize()
        packed: NDArray[np.int64] = flight.packed.numpy()
        now = time.perf_counter()
        finished: list[tuple[Row, Completion]] = []
        for row, values in zip(flight.rows, packed.tolist(), strict=True):
            if self._scheduler.rows.get(row.slot) is not row:
                continue  # finished by the host while this round ran
            completion = self._take(row, values, flight.k, now, tally[row.request.shard])
            if completion is not None:
                finished.append((row, completion))
        if finished:
            self._state.release([row.slot for row, _ in finished])
            for row, _ in finished:
                self._scheduler.release(row)
        return [completion for _, completion in finished]

    def _take(self, row: Row, values: list[int], k: int, now: float, tally: _ShardTally) -> Completion | None:
        """Books one row's part of a round; → its completion if it ended."""
        emitted, accepted, proposed, status = values[k + 1 :]
        if status:
            return row.complete("error", error=STATUS_ERRORS[status])
        if proposed and self.draft is not None:
            row.draft_done = row.length + min(accepted, k - 1)
        before, last_token_at = row.length, row.last_token_at
        text = row.extend(values[:emitted], now)
        kept = row.length - before
        row.proposed += proposed
        row.accepted += min(accepted, kept)
        tally.proposed.append(proposed)
        tally.accepted.append(accepted)
        tally.emitted += kept
        tally.emitted_accepted += min(accepted, kept)
        if before > len(row.request.prompt_token_ids):
            tally.gaps.append(now - last_token_at)
        if text is not None:
            return row.complete("stop", text=text)
        return self._ended(row)

    def _ended(self, row: Row) -> Completion | None:
        sampling, last = row.request.sampling, row.generated[-1]
        reason: FinishReason
        if last in sampling.stop_token_ids or (last in self._state.eos_ids and not sampling.ignore_eos):
            reason = "stop"
        elif row.length >= row.limit:
            reason = "length"
        else:
            return None
        return row.complete(reason, text=self._decoder.decode(row.generated))

    def check_integrity(self) -> None:
        """Raises AssertionError if slots, pages or the host's view of the device do not fit together.

        Waits for the device: for tests and idle moments.
        """
        self._scheduler.check_integrity()
        if self._in_flight:
            return
        for slot, row in self._scheduler.rows.items():
            assert int(self._state.length[slot]) == row.length
            assert int(self._state.draft_valid[slot]) == row.draft_done
            assert int(self._state.limit[slot]) == row.limit
