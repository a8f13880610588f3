"""The engine's host side: admit, prefill, launch a round, and read what an earlier round did.

On a GPU the host runs one round behind: while round n runs it reads round n - 1, detokenizes, finishes and refills.
What a late round did to a row that has finished meanwhile is dropped; its slot is reused safely, because everything
the host asks for afterwards runs after that round on the same stream.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import torch

from specpipe.core import (
    Completion,
    EngineConfig,
    Profile,
    ProposerName,
    Request,
    SamplingParams,
    ShardRound,
    SpeculationPlan,
    StepReport,
)
from specpipe.engine.accounting import ShardTally
from specpipe.engine.collector import Collector
from specpipe.engine.device.device_clock import DeviceClock, Mark, StampReader, StepTimes
from specpipe.engine.device.graph_capture import GraphCapture
from specpipe.engine.forward.graphed_prefill import EagerPrefills, GraphedPrefills, Prefills
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.proposers.make_proposers import make_proposers
from specpipe.engine.rounds.graphed_rounds import EagerRounds, GraphedRounds, Rounds
from specpipe.engine.rounds.profiler import Point, Profiler
from specpipe.engine.rounds.round import Round
from specpipe.engine.rounds.round_key import RoundKey, keys_of
from specpipe.engine.rounds.warm_up import WarmUp
from specpipe.engine.state.chunks import Chunk, cut_chunks, total_tokens
from specpipe.engine.state.in_flight import Flight, InFlight, Launch, read_later
from specpipe.engine.state.page_allocator import TRASH_PAGE, PageAllocator
from specpipe.engine.state.row_state import RowState
from specpipe.engine.state.scheduler import Scheduler
from specpipe.engine.state.slot_state import SlotState
from specpipe.engine.state.text_decoder import TextDecoder
from specpipe.engine.step_chooser import StepChooser


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
        runners = [target] if draft is None else [target, draft]
        for runner in runners:
            runner.allocate_pages(num_pages)
        self._device = target.device
        on_gpu = self._device.type == "cuda"  # an outline's is "meta"
        behind = rounds_behind if rounds_behind is not None else int(on_gpu)
        # A round writes at most max_k + 1 tokens, and so did each that the host has not read.
        reach = (behind + 1) * (config.max_k + 1)
        self._scheduler = Scheduler(config, PageAllocator(num_pages), decoder, reach=reach)
        self._state = SlotState(config, eos_ids=eos_ids, device=self._device)
        self._collector = Collector(self._scheduler, self._state, decoder)
        self._clock = DeviceClock(self._device)
        self._stamps = StampReader()
        self._in_flight = InFlight(behind)
        self._synthetic = torch.tensor(config.synthetic_rates, device=self._device) if config.synthetic_rates else None
        self._proposers = make_proposers(config, target, draft)
        self._chooser = StepChooser(
            self._scheduler,
            self._in_flight,
            config,
            proposers=self._proposers,
            static_width=self._device.type != "cpu",  # a GPU kernel reads lengths; its shapes stay static
        )
        round_ = Round(
            self._state,
            target,
            self._proposers,
            method=config.method,
            synthetic_rates=self._synthetic,
            clock=self._clock,
        )
        self._rounds: Rounds = EagerRounds(round_)
        self._prefills: Prefills = EagerPrefills(self._state)
        self._graph_capture = GraphCapture(self._device) if on_gpu else None
        if self._graph_capture is not None:
            self._rounds = GraphedRounds(round_, self._graph_capture, slots=config.slots)
            self._prefills = GraphedPrefills(self._state, runners, self._graph_capture, budget=config.prefill_budget)
        self.warm_up = WarmUp(round_, runners, config, self.proposers)

    @property
    def proposers(self) -> tuple[ProposerName, ...]:
        """Those that a plan may name, "none" aside."""
        return tuple(self._proposers)

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

    @property
    def graphs_captured(self) -> int:
        """So far, ahead of time or on the way."""
        return 0 if self._graph_capture is None else self._graph_capture.captures

    def submit(self, requests: Sequence[Request], plan: SpeculationPlan) -> None:
        """Queues rows, from any thread; `plan` rules every round from now on. A row that cannot run completes with
        an error in the next step."""
        self._scheduler.submit(requests, plan)

    def prepare(
        self, sampling: SamplingParams, choices: Iterable[tuple[ProposerName, int]], *, within_s: float = math.inf
    ) -> None:
        """Does ahead of time what first prefills, and first rounds of such rows with these proposers and K, would have
        to do: capturing graphs, in this order. What `within_s` seconds do not suffice for is captured when needed."""
        began = time.perf_counter()
        self._prefills.prepare(within_s=within_s)
        within_s -= time.perf_counter() - began
        self._rounds.prepare(keys_of(sampling, choices, width=self.config.pages_per_row), within_s=within_s)

    def profile(
        self,
        sampling: SamplingParams,
        shapes: Iterable[tuple[int, ProposerName, int]],
        *,
        context: int,
        within_s: float,
    ) -> Profile:
        """What rounds of such rows and prefills of the draft model take; shapes: (rows, proposer, K), the most telling
        first; context: tokens of each row, or fewer where rows cannot be so long.

        Call it before the first row; it leaves no trace. What does not fit into `within_s` seconds is missing.
        """
        assert not self._scheduler.rows, "rows are running"
        config, context = self.config, min(context, self.config.max_model_len // 2)
        width = config.pages_per_row
        if self._device.type == "cpu":  # there a round reads as much KV as its block table covers
            width = (context + config.max_k) // config.page_size + 1
        points = [Point(n, RoundKey.of([sampling], proposer, k, width=width)) for n, proposer, k in shapes]
        self._state.pretend(context, pages=self.kv_pages)
        try:
            profiler = Profiler(self._rounds, self._clock, within_s=within_s)
            return profiler.profile(points, self._draft_prefill(context), context=context, most=config.prefill_budget)
        finally:
            self._state.forget()

    def _draft_prefill(self, longest: int) -> Callable[[int], None] | None:
        """Prefills so many tokens of the dummy slot by the draft model alone, in chunks of `longest`."""
        draft, dummy = self.draft, self._state.dummy
        if draft is None:
            return None

        def run(tokens: int) -> None:
            chunks = [Chunk(dummy, 0, min(left, longest)) for left in range(tokens, 0, -longest)]
            self._prefills.run(draft, chunks)

        return run

    def set_synthetic_rates(self, rates: Sequence[float]) -> None:
        """Unconditional acceptance per position from now on, as many as `config.synthetic_rates`: for benchmarks."""
        assert self._synthetic is not None and len(rates) == len(self._synthetic)
        self._synthetic.copy_(torch.tensor(rates))  # in place: captured graphs read it

    def step(self) -> StepReport | None:
        """At most one prefill chunk and one round, then the results of the oldest round in flight.

        None when there is nothing to do.
        """
        began = time.perf_counter()
        tally: defaultdict[int, ShardTally] = defaultdict(ShardTally)
        completions = self._scheduler.take_refused()
        self._make_room(tally)
        self._admit()
        launched = self._launch(self._prefill(tally))
        collected = self._in_flight.next(launched)
        context = 0.0
        if collected is not None:
            context = _mean_length(collected.launch.rows)
            completions += self._collector.collect(collected, tally)
        if launched is None and collected is None and not completions:
            self._stamps.forget()
            return None
        shards = {shard: t.freeze() for shard, t in tally.items()}
        return self._report(collected, context, time.perf_counter() - began, shards, completions)

    def _report(
        self,
        collected: Flight | None,
        context: float,
        seconds: float,
        shards: dict[int, ShardRound],
        completions: list[Completion],
    ) -> StepReport:
        launch, times = Launch(), StepTimes({}, 0.0, 0.0)
        if collected is not None:
            launch = collected.launch
            times = self._stamps.read(collected.stamps, prefilled=launch.prefilled, round_ran=bool(launch.rows))
        host = max(0.0, seconds - sum(times.phases.values()))
        return StepReport(
            k=launch.k,
            proposer=launch.proposer,
            running=len(launch.rows),
            waiting=self.waiting,
            slots=self.config.slots,
            seconds=seconds,
            phases={**times.phases, "host": host},
            context=context,
            round_s=times.round_s if launch.steady else 0.0,
            draft_prefill_tokens=launch.draft_prefill_tokens,
            draft_prefill_s=times.draft_prefill_s,
            draft_behind=launch.draft_behind,
            left=launch.left,
            shards=shards,
            completions=tuple(completions),
        )

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

    def _activate(self, rows: list[RowState]) -> None:
        if rows:
            self._state.activate([row.slot for row in rows])

    def _prefill(self, tally: dict[int, ShardTally]) -> Launch:
        """Prefills at most a budget's worth for each model."""
        rows = self._scheduler.rows
        chunks = cut_chunks(self._scheduler.target_chunks(), self.config.prefill_budget)
        drafts = self._chooser.draft_chunks()
        if not chunks and not drafts:
            return Launch()
        self._clock.mark(Mark.PREFILL_BEGIN)
        if chunks:
            self._prefills.run(self.target, chunks)
            for chunk in chunks:
                rows[chunk.slot].target_done = chunk.stop
                tally[rows[chunk.slot].request.shard].prefill_tokens += chunk.stop - chunk.start
            self._activate([rows[c.slot] for c in chunks if rows[c.slot].prefilled])
        self._clock.mark(Mark.TARGET_PREFILLED)
        if self.draft is not None and drafts:
            self._prefill_draft(self.draft, drafts)
        self._clock.mark(Mark.PREFILLED)
        return Launch(prefilled=True, draft_prefill_tokens=total_tokens(drafts))

    def _prefill_draft(self, draft: ModelRunner, chunks: list[Chunk]) -> None:
        self._prefills.run(draft, chunks)
        slots = self._state.upload([c.slot for c in chunks])
        self._state.draft_valid[slots] = self._state.upload([c.stop for c in chunks])
        for chunk in chunks:
            self._scheduler.rows[chunk.slot].draft_done = chunk.stop

    def _launch(self, prefill: Launch) -> Flight | None:
        rows = self._chooser.rows()
        if not rows:
            nothing = self._clock.stamps.new_empty(0, 5)
            return read_later(prefill, nothing, self._clock.stamps) if prefill.prefilled else None
        key, captures = self._chooser.key(rows), self.graphs_captured
        packed = self._rounds.run([row.slot for row in rows], key)
        steady = self.graphs_captured == captures
        self._chooser.rounds += 1
        behind = sum(max(0, row.length - 1 - row.draft_done) for row in rows) / len(rows)
        left = sum(row.limit - row.length for row in rows) / len(rows)
        launch = prefill._replace(
            rows=rows, k=key.k, proposer=key.proposer, steady=steady, draft_behind=behind, left=left
        )
        return read_later(launch, packed, self._clock.stamps)

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


def _mean_length(rows: Sequence[RowState]) -> float:
    return sum(row.length for row in rows) / len(rows) if rows else 0.0
