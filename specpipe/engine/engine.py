"""The engine's host side: admit, prefill, launch a round, and read what an earlier round did.

On a GPU the host runs one round behind: while round n runs it reads round n - 1, detokenizes, finishes and refills.
What a late round did to a row that has finished meanwhile is dropped; its slot is reused safely, because everything
the host asks for afterwards runs after that round on the same stream.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence

import torch

from specpipe.core import (
    EngineConfig,
    Phase,
    Request,
    SamplingParams,
    SpeculationPlan,
    StepReport,
)
from specpipe.engine.accounting import ShardTally
from specpipe.engine.collect import Collector, InFlight, read_later
from specpipe.engine.graphs import EagerRounds, GraphedRounds, Rounds
from specpipe.engine.logprobs import told_width
from specpipe.engine.pages import TRASH_PAGE, PageAllocator
from specpipe.engine.prefill import Chunk, cut_chunks, prefill
from specpipe.engine.proposers import DraftModelProposer, NGramProposer, Proposer
from specpipe.engine.round import Round, RoundKey
from specpipe.engine.rows import Row, TextDecoder
from specpipe.engine.runner import ModelRunner
from specpipe.engine.scheduler import Scheduler
from specpipe.engine.slots import SlotState
from specpipe.engine.timing import DeviceClock, Mark, phase_seconds


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
        self._behind = rounds_behind if rounds_behind is not None else int(self._device.type == "cuda")
        # A round writes at most max_k + 1 tokens, and so did each that the host has not read.
        reach = (self._behind + 1) * (config.max_k + 1)
        self._scheduler = Scheduler(config, PageAllocator(num_pages), decoder, reach=reach)
        self._state = SlotState(config, eos_ids=eos_ids, device=self._device)
        self._collector = Collector(self._scheduler, self._state, decoder, drafts=draft is not None)
        self._clock = DeviceClock(self._device)
        self._in_flight: deque[InFlight] = deque()
        rates = torch.tensor(config.synthetic_rates, device=self._device) if config.synthetic_rates else None
        self._speculates = config.proposer != "none"
        self._round = Round(
            self._state,
            target,
            self._proposer(),
            method=config.method,
            synthetic_rates=rates,
            clock=self._clock,
        )
        self._rounds: Rounds = EagerRounds(self._round)
        if self._device.type == "cuda":
            self._rounds = GraphedRounds(self._round, slots=config.slots, device=self._device)

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
        """Rows submitted that hold no slot, or no longer."""
        return self._scheduler.waiting

    @property
    def kv_pages_used(self) -> int:
        """KV pages that rows hold."""
        return self.kv_pages - self._scheduler.pages.free

    @property
    def kv_pages(self) -> int:
        """KV pages that rows can have."""
        return self._scheduler.pages.num_pages - 1

    def submit(self, requests: Sequence[Request], plan: SpeculationPlan) -> None:
        """Queues rows, from any thread; `plan` rules every round from now on. A row that cannot run completes with
        an error in the next step."""
        self._scheduler.submit(requests, plan)

    def prepare(self, sampling: SamplingParams, ks: Iterable[int]) -> None:
        """Does ahead of time what the first rounds of such rows with these K would have to do: capturing graphs."""
        key = RoundKey(
            k=0,
            all_greedy=sampling.greedy,
            truncated=sampling.truncates,
            width=self.config.pages_per_row,
            penalised=sampling.penalises,
            logprobs=told_width(sampling.logprobs),
        )
        held = {False, sampling.min_tokens > 0}
        self._rounds.prepare(key._replace(k=k, held=h) for k in set(ks) for h in held)

    def rehearse_round(self) -> None:
        """Runs the widest greedy round, eagerly and for the dummy slot alone: it changes nothing that rows see."""
        config, dummy = self.config, self._state.dummy
        key = RoundKey(k=config.max_k, all_greedy=True, truncated=False, width=config.pages_per_row)
        self._round(self._state.upload([dummy] * config.slots), key)

    def rehearse_prefill(self) -> None:
        """Likewise: one prefill of a whole budget by each model."""
        config, chunks, left = self.config, [], self.config.prefill_budget
        while left > 0:
            chunks.append(Chunk(self._state.dummy, 0, min(left, config.max_model_len)))
            left -= chunks[-1].stop
        for runner in (self.target, self.draft):
            if runner is not None:
                prefill(runner, self._state, chunks, page_size=config.page_size)

    def step(self) -> StepReport | None:
        """At most one prefill chunk and one round, then the results of the oldest round in flight.

        None when there is nothing to do.
        """
        began = time.perf_counter()
        tally: defaultdict[int, ShardTally] = defaultdict(ShardTally)
        completions = self._scheduler.take_refused()
        self._make_room(tally)
        self._admit()
        launched = self._launch(prefilled=self._prefill(tally))
        if launched is not None:
            self._in_flight.append(launched)
        due = len(self._in_flight) > self._behind or (self._in_flight and launched is None)
        collected = self._in_flight.popleft() if due else None
        if collected is not None:
            completions += self._collector.collect(collected, tally)
        if launched is None and collected is None and not completions:
            return None
        seconds = time.perf_counter() - began
        return StepReport(
            k=collected.k if collected else 0,
            running=len(collected.rows) if collected else 0,
            waiting=self.waiting,
            slots=self.config.slots,
            seconds=seconds,
            phases=self._phases(collected, seconds),
            shards={shard: t.freeze() for shard, t in tally.items()},
            completions=tuple(completions),
        )

    @staticmethod
    def _phases(collected: InFlight | None, seconds: float) -> dict[Phase, float]:
        phases: dict[Phase, float] = {}
        if collected is not None:
            phases = phase_seconds(collected.stamps, prefilled=collected.prefilled, round_ran=bool(collected.rows))
        phases["host"] = max(0.0, seconds - sum(phases.values()))
        return phases

    def _make_room(self, tally: dict[int, ShardTally]) -> None:
        room = self._scheduler.make_room()
        if room.preempted:
            self._state.release([row.slot for row in room.preempted])
        for row in room.preempted:
            tally[row.request.shard].preemptions += 1
        if room.grants.slots:
            self._state.grant(room.grants)

    def _admit(self) -> None:
        admissions = self._scheduler.admit()
        if not admissions:
            return
        self._state.admit(admissions)
        self._activate([row for a in admissions if (row := self._scheduler.rows[a.slot]).prefilled])

    def _activate(self, rows: list[Row]) -> None:
        if rows:
            self._state.activate([row.slot for row in rows])

    def _planned_k(self) -> int:
        """K while as many rows hold a slot as do now, those that are still being prefilled included."""
        plan = self._scheduler.plan
        if plan is None or not self._speculates:
            return 0
        return min(plan.k_for(self.running), self.config.max_k)

    def _prefill(self, tally: dict[int, ShardTally]) -> bool:
        """Prefills at most a budget's worth for each model; says whether there was anything to do."""
        budget, page_size, rows = self.config.prefill_budget, self.config.page_size, self._scheduler.rows
        chunks = cut_chunks(self._scheduler.target_chunks(), budget)
        drafts: list[Chunk] = []
        if self.draft is not None and self._planned_k():
            drafts = cut_chunks(self._scheduler.draft_chunks(), budget)
        if not chunks and not drafts:
            return False
        self._clock.mark(Mark.PREFILL_BEGIN)
        if chunks:
            prefill(self.target, self._state, chunks, page_size=page_size)
            for chunk in chunks:
                rows[chunk.slot].target_done = chunk.stop
                tally[rows[chunk.slot].request.shard].prefill_tokens += chunk.stop - chunk.start
            self._activate([rows[c.slot] for c in chunks if rows[c.slot].prefilled])
        if self.draft is not None and drafts:
            self._prefill_draft(self.draft, drafts)
        self._clock.mark(Mark.PREFILLED)
        return True

    def _prefill_draft(self, draft: ModelRunner, chunks: list[Chunk]) -> None:
        prefill(draft, self._state, chunks, page_size=self.config.page_size)
        slots = self._state.upload([c.slot for c in chunks])
        self._state.draft_valid[slots] = self._state.upload([c.stop for c in chunks])
        for chunk in chunks:
            self._scheduler.rows[chunk.slot].draft_done = chunk.stop

    def _launch(self, *, prefilled: bool) -> InFlight | None:
        # Every round in flight commits at least one token: a row that reaches its limit by those needs no round more.
        unread = Counter(row for flight in self._in_flight for row in flight.rows)
        rows = [row for row in self._scheduler.rows.values() if row.prefilled and row.length + unread[row] < row.limit]
        if not rows:
            nothing = self._clock.stamps.new_empty(0, 5)
            return read_later([], 0, nothing, self._clock.stamps, prefilled=True) if prefilled else None
        k = self._planned_k() if any(row.limit - row.length > 1 for row in rows) else 0
        key = RoundKey(
            k=k,
            all_greedy=all(row.request.sampling.greedy for row in rows),
            truncated=any(row.request.sampling.truncates for row in rows),
            width=self._width(rows, k),
            held=any(row.held for row in rows),
            penalised=any(row.request.sampling.penalises for row in rows),
            logprobs=max(told_width(row.request.sampling.logprobs) for row in rows),
        )
        packed = self._rounds.run([row.slot for row in rows], key)
        return read_later(rows, k, packed, self._clock.stamps, prefilled=prefilled)

    def _width(self, rows: list[Row], k: int) -> int:
        """Block-table columns that this round can reach. A GPU kernel reads lengths; its shapes stay static."""
        if self._device.type != "cpu":
            return self.config.pages_per_row
        unread = sum(flight.k + 1 for flight in self._in_flight)
        return min(
            (max(row.length for row in rows) + unread + k) // self.config.page_size + 1, self.config.pages_per_row
        )

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
            held = self._scheduler.pages.held(slot)
            table = self._state.block_table[slot].tolist()
            assert table == [*held, *[TRASH_PAGE] * (len(table) - len(held))]
