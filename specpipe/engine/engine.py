"""The engine's host side: admit, prefill, launch a round, and read the results of an earlier round.

On a GPU the host runs one round behind: while round n runs it reads round n - 1, detokenizes, finishes and refills.
The results of a late round for a row that has finished meanwhile are dropped; its slot is reused safely, because
everything that the host queues afterwards runs after that round on the same stream.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

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
from specpipe.engine.device.device_clock import DeviceClock, StampReader, StepTimes
from specpipe.engine.device.graph_capture import GraphCapture
from specpipe.engine.forward.graphed_prefill import EagerPrefills, GraphedPrefills, Prefills
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.proposers.corpus import Answer, Corpus
from specpipe.engine.proposers.make_proposers import make_proposers
from specpipe.engine.rounds.graphed_rounds import EagerRounds, GraphedRounds, Rounds
from specpipe.engine.rounds.profiler import ProfilePoint, Profiler
from specpipe.engine.rounds.round import Round
from specpipe.engine.rounds.round_key import RoundKey, expected_keys
from specpipe.engine.rounds.warm_up import WarmUp
from specpipe.engine.state.in_flight import StepInFlight, StepLaunch, StepsInFlight
from specpipe.engine.state.page_allocator import TRASH_PAGE, PageAllocator
from specpipe.engine.state.scheduler import Scheduler
from specpipe.engine.state.slot_state import SlotState
from specpipe.engine.state.text_decoder import TextDecoder
from specpipe.engine.step_chooser import StepChooser
from specpipe.engine.step_launcher import StepLauncher


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
        """Allocates KV pages and state; num_pages counts the trash page.

        rounds_behind: rounds launched before the oldest one is read; by default 1 on a GPU and 0 on a CPU, which has
        nothing to overlap.
        """
        self.config = config
        self.target, self.draft = target, draft
        self._runners = [target] if draft is None else [target, draft]
        self._uncompiled_reported = 0
        for runner in self._runners:
            runner.allocate_pages(num_pages)
        self._device = target.device
        self._on_gpu = self._device.type == "cuda"  # the device of a weightless outline is "meta"
        behind = rounds_behind if rounds_behind is not None else int(self._on_gpu)
        # A round writes at most max_k + 1 tokens, and so did each that the host has not read.
        lookahead = (behind + 1) * (config.max_k + 1)
        self._scheduler = Scheduler(config, PageAllocator(num_pages), decoder, lookahead=lookahead)
        self._state = SlotState(config, eos_ids=eos_ids, device=self._device)
        self._corpus = self._make_corpus()
        self._collector = Collector(self._scheduler, self._state, decoder, self._corpus)
        self._clock = DeviceClock(self._device)
        self._stamps = StampReader()
        self._in_flight = StepsInFlight(behind)
        self._synthetic = torch.tensor(config.synthetic_rates, device=self._device) if config.synthetic_rates else None
        self._proposers = make_proposers(config, target, draft, self._corpus)
        round_ = Round(
            self._state,
            target,
            self._proposers,
            method=config.method,
            synthetic_rates=self._synthetic,
            clock=self._clock,
        )
        self._launcher = self._make_launcher(round_)
        self.warm_up = WarmUp(round_, self._runners, config, self.proposers)

    def _make_corpus(self) -> Corpus | None:
        """Returns the pool of finished answers; None where no round would read it."""
        if not (self.config.corpus_mib and self.config.replay_k):
            return None
        return Corpus(self._device, mib=self.config.corpus_mib, vocab_size=self.target.vocab_size)

    def _make_launcher(self, round_: Round) -> StepLauncher:
        """Makes the launcher, with graphs on a GPU."""
        rounds: Rounds = EagerRounds(round_)
        prefills: Prefills = EagerPrefills(self._state)
        graph_capture = GraphCapture(self._device) if self._on_gpu else None
        if graph_capture is not None:
            rounds = GraphedRounds(round_, graph_capture, slots=self.config.slots)
            budget = self.config.prefill_budget
            prefills = GraphedPrefills(self._state, self._runners, graph_capture, budget=budget)
        chooser = StepChooser(
            self._scheduler,
            self._in_flight,
            self.config,
            proposers=self._proposers,
            static_width=self._device.type != "cpu",  # a GPU kernel reads lengths; its shapes stay static
        )
        return StepLauncher(
            self.target,
            self.draft,
            scheduler=self._scheduler,
            chooser=chooser,
            state=self._state,
            clock=self._clock,
            rounds=rounds,
            prefills=prefills,
            graph_capture=graph_capture,
        )

    @property
    def proposers(self) -> tuple[ProposerName, ...]:
        """Proposers that a plan may name, "none" aside."""
        return tuple(self._proposers)

    @property
    def running(self) -> int:
        """Rows that hold a slot."""
        return len(self._scheduler.rows)

    @property
    def waiting(self) -> int:
        """Submitted rows without a slot, preempted ones included."""
        return self._scheduler.waiting

    @property
    def kv_pages_used(self) -> int:
        """KV pages that rows hold."""
        return self.kv_pages - self._scheduler.pages.free

    @property
    def kv_pages(self) -> int:
        """KV pages of the engine without the trash page."""
        return self._scheduler.pages.num_pages - 1

    @property
    def graphs_captured(self) -> int:
        """CUDA graphs captured so far, by `prepare` or on first use."""
        return self._launcher.graphs_captured

    def submit(self, requests: Sequence[Request], plan: SpeculationPlan) -> None:
        """Queues rows, from any thread; `plan` is valid for every round from now on.

        A row that can never run completes with an error in the next step.
        """
        self._scheduler.submit(requests, plan)

    def add_answers(self, answers: Iterable[Answer]) -> None:
        """Appends earlier answers (token ids of prompt and answer) to the corpus, on the thread that calls `step`.

        Does nothing without a corpus. Answers of rows that end are added by themselves.
        """
        if self._corpus is not None:
            self._corpus.add(answers)

    def prepare(
        self, sampling: SamplingParams, choices: Iterable[tuple[ProposerName, int]], *, within_s: float = math.inf
    ) -> None:
        """Captures graphs of prefills, then of rounds with these sampling parameters, proposers and K, then of the same
        for rows that share pages.

        It stops after `within_s` seconds; the rest is captured on first use.
        """
        began = time.perf_counter()
        self._launcher.prefills.prepare(within_s=within_s)
        keys = expected_keys(sampling, choices, width=self.config.pages_per_row)
        shared = [key._replace(shared=True) for key in keys] if self.config.prefix_sharing else []
        for some in (keys, shared):
            self._launcher.rounds.prepare(some, within_s=within_s - (time.perf_counter() - began))

    def profile(
        self,
        sampling: SamplingParams,
        shapes: Iterable[tuple[int, ProposerName, int]],
        *,
        context: int,
        within_s: float,
    ) -> Profile:
        """Measures rounds of rows with these sampling parameters.

        Call it before the first row; it leaves the state as it was. What does not fit into `within_s` seconds is left
        out. shapes: (rows, proposer, K), the most important first. context: tokens of each row, cut to half of
        max_model_len.
        """
        # Rounds of dummy rows write into all pages.
        assert not self._scheduler.rows and not self._scheduler.pages.cached, "rows are running, or have run"
        config, context = self.config, min(context, self.config.max_model_len // 2)
        width = config.pages_per_row
        if self._device.type == "cpu":  # there a round reads as much KV as its block table covers
            width = (context + config.max_k) // config.page_size + 1
        points = [ProfilePoint(n, RoundKey.of([sampling], proposer, k, width=width)) for n, proposer, k in shapes]
        vocab_size = min(model.vocab_size for model in (self.target, self.draft) if model is not None)
        self._state.set_dummy_rows(context, pages=self.kv_pages, vocab_size=vocab_size)
        try:
            profiler = Profiler(self._launcher.rounds, self._clock, within_s=within_s)
            return replace(profiler.profile(points, context=context), expert_share=self.target.expert_share)
        finally:
            self._state.clear_dummy_rows()

    def set_synthetic_rates(self, rates: Sequence[float]) -> None:
        """Sets the unconditional acceptance rates by position, as many as `config.synthetic_rates`: for benchmarks."""
        assert self._synthetic is not None and len(rates) == len(self._synthetic)
        self._synthetic.copy_(torch.tensor(rates))  # in place: captured graphs read it

    def step(self) -> StepReport | None:
        """Launches at most one prefill chunk and one round, then reads the oldest step in flight if it is due.

        Returns None when there is nothing to do.
        """
        began = time.perf_counter()
        tally: defaultdict[int, ShardTally] = defaultdict(ShardTally)
        completions = self._scheduler.take_refused()
        self._assign_pages(tally)
        self._admit()
        launched = self._launcher.launch(tally)
        collected = self._in_flight.next(launched)
        context = 0.0
        if collected is not None:
            context = _mean_kv_read(collected.launch, self.config.page_size)
            completions += self._collector.collect(collected, tally)
        self._count_uncompiled(tally)
        if launched is None and collected is None and not completions:
            self._stamps.reset()
            return None
        shards = {shard: t.freeze() for shard, t in tally.items()}
        return self._report(collected, context, time.perf_counter() - began, shards, completions)

    def _count_uncompiled(self, tally: dict[int, ShardTally]) -> None:
        """Adds forwards that ran uncompiled since the last step to a shard of this one, if there is any."""
        total = sum(runner.uncompiled_forwards for runner in self._runners)
        for shard in list(tally)[:1]:
            tally[shard].uncompiled_forwards += total - self._uncompiled_reported
            self._uncompiled_reported = total

    def _report(
        self,
        collected: StepInFlight | None,
        context: float,
        seconds: float,
        shards: dict[int, ShardRound],
        completions: list[Completion],
    ) -> StepReport:
        """Returns the report of a step. context: as in the report; seconds: the host's time for the step."""
        launch, times = StepLaunch(), StepTimes({}, 0.0, 0.0)
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
            round_s=0.0 if launch.captured_graph else times.round_s,
            draft_prefill_tokens=launch.draft_prefill_tokens,
            draft_prefill_s=times.draft_prefill_s,
            draft_behind=launch.draft_behind,
            shards=shards,
            completions=tuple(completions),
        )

    def _assign_pages(self, tally: dict[int, ShardTally]) -> None:
        """Gives growing rows pages and takes slots from preempted ones."""
        changes = self._scheduler.assign_pages()
        if changes.preempted:
            self._state.release([row.slot for row in changes.preempted])
        for row in changes.preempted:
            tally[row.request.shard].preemptions += 1
        if changes.grants.slots:
            self._state.grant(changes.grants)

    def _admit(self) -> None:
        """Admits waiting rows; a row whose prompt is one token needs no prefill and is activated at once."""
        admissions = self._scheduler.admit()
        if not admissions:
            return
        self._state.admit(admissions)
        self._launcher.activate([row for a in admissions if (row := self._scheduler.rows[a.slot]).prefilled])

    def check_integrity(self) -> None:
        """Raises AssertionError if slots, pages or the host's view of the device are inconsistent.

        Waits for the device: for tests and idle moments.
        """
        self._scheduler.check_integrity()
        if self._corpus is not None:
            self._corpus.check_integrity()
        if self._in_flight:
            return
        for slot, row in self._scheduler.rows.items():
            assert int(self._state.length[slot]) == row.length
            assert int(self._state.draft_valid[slot]) == row.draft_valid
            assert int(self._state.limit[slot]) == row.limit
            assert bool(self._state.speculates[slot]) == row.speculates
            held = [node.page for node in row.prefix] + [*self._scheduler.pages.held(slot)]
            table = self._state.block_table[slot].tolist()
            assert table == [*held, *[TRASH_PAGE] * (len(table) - len(held))]


def _mean_kv_read(launch: StepLaunch, page_size: int) -> float:
    """Returns the tokens of KV that a round's attention reads in each layer, by row."""
    if not launch.rows:
        return 0.0
    return (sum(row.length for row in launch.rows) - launch.saved_pages * page_size) / len(launch.rows)
