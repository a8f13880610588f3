"""Simulated engine: a worker's engine whose rounds take the seconds of a machine and accept what was drawn.

Scheduler, step chooser and step reports are the engine's own. A round is a few operations on arrays of the running
rows; the rows' own objects are updated before the scheduler or the chooser reads them. Every round is read before the
next one is launched. Prefill by the target takes no time: it is the same under every policy. One page holds a row.
Shapes: n rows of a round, the oldest first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from specpipe.core import AcceptanceCounts, Completion, ProposerName, Request, ShardRound, SpeculationPlan, StepReport
from specpipe.engine.accounting import count_acceptance
from specpipe.engine.state.chunks import total_tokens
from specpipe.engine.state.in_flight import StepsInFlight
from specpipe.engine.state.page_allocator import PageAllocator
from specpipe.engine.state.row_state import RowState
from specpipe.engine.state.scheduler import Scheduler
from specpipe.engine.state.text_decoder import NoTextDecoder
from specpipe.engine.step_chooser import StepChooser
from specpipe.simulator.draws import NO_DRAFT, Draws, Ints
from specpipe.simulator.measurement import Measurement
from specpipe.simulator.scenarios import Scenario

_READY = 2  # tokens that the first draft step feeds
_NO_COUNTS = AcceptanceCounts()
_NO_COMPLETION = StepReport(k=0, running=0, waiting=0, slots=0, seconds=0.0)


class SimulatedEngine:
    """Implements `EngineProtocol` for the requests of one scenario. `Request.seed` is the row of the scenario."""

    def __init__(self, scenario: Scenario, draws: Draws, measurement: Measurement, *, counts: bool = True) -> None:
        """counts: reports have counts by shard, and the tokens that the draft model lacks; without them, steps without
        a completion have an empty report."""
        self.config = config = scenario.engine_config
        self.scenario, self._draws, self._measurement, self._counts = scenario, draws, measurement, counts
        self.kv_pages = config.slots
        self._scheduler = Scheduler(
            config, PageAllocator(self.kv_pages + 1), NoTextDecoder(), lookahead=config.max_k + 1
        )
        self._chooser = StepChooser(
            self._scheduler, StepsInFlight(0), config, proposers=scenario.proposers, static_width=True
        )
        self.seconds = 0.0
        """Seconds of rounds and draft prefills on an undisturbed machine."""
        self.plans: list[SpeculationPlan] = []
        """The plan of every step."""
        self.ended = 0
        """Rows that have ended."""
        self._rows: list[RowState] = []
        self._length = 0
        """Tokens of all rows of the round."""
        self._ready = False
        """True if it is sure that every row of the round can have a draft of the draft model."""
        self._sure_tokens = 0
        """Tokens that every row of the round will surely generate."""
        self._set_state(np.empty((5, 0), dtype=np.int64))
        self._new: deque[RowState] = deque()
        """Rows with a slot that take no part in rounds yet."""
        self._shards: dict[int, int] = {}
        """Rows of the round by shard. Those of a shard are neighbours."""
        self._plain: Counter[int] = Counter()
        """Those of them that may not have drafts."""

    def _set_state(self, state: Ints) -> None:
        """Replaces the state of the rows of the round.

        state: [5, n] position, position of the end, position from which the length limit leaves one token, tokens that
        the draft model's KV lacks, and 1 for rows that may have drafts.
        """
        self._state = state
        self._at, self._end, self._last, self._lag, self._drafts = state

    @property
    def running(self) -> int:
        """Rows with a slot."""
        return len(self._scheduler.rows)

    @property
    def waiting(self) -> int:
        """Rows without a slot."""
        return self._scheduler.waiting

    @property
    def kv_pages_used(self) -> int:
        """KV pages that rows hold."""
        return self.kv_pages - self._scheduler.pages.free

    @property
    def rounds(self) -> int:
        """Rounds so far."""
        return self._chooser.rounds

    @property
    def rows(self) -> Ints:
        """[n] rows of the scenario that take part in rounds."""
        return np.asarray(self._at // self._draws.stride)

    @property
    def context(self) -> float:
        """Mean tokens of these rows."""
        return self._length / max(1, len(self._rows))

    @property
    def left(self) -> int:
        """Tokens that these rows will still generate."""
        return int(self._end.sum() - self._at.sum())

    @property
    def behind(self) -> int:
        """Tokens that the draft model's KV lacks, over these rows."""
        return int(np.dot(self._lag - 1, self._drafts))

    def submit(self, requests: Sequence[Request], plan: SpeculationPlan) -> None:
        """Queues rows, and applies the plan from the next round on."""
        self._scheduler.submit(requests, plan)

    def catch_up(self) -> None:
        """Makes the draft model catch up with all rows at no cost."""
        np.minimum(self._lag, _READY, out=self._lag)
        self._sync(range(len(self._rows)))
        for row in self._new:
            row.draft_valid = max(row.draft_valid, row.length - _READY)

    def step(self) -> StepReport | None:
        """Runs one prefill and one round. Returns None when there is no row."""
        scheduler = self._scheduler
        if scheduler.waiting and len(scheduler.rows) < self.config.slots:
            self._new.extend(scheduler.rows[admission.slot] for admission in scheduler.admit())
        prefilled = self._prefill_target() if self._new else {}
        proposer, k = self._chooser.planned()
        draft_tokens = self._prefill_draft() if proposer == "draft" else 0
        if self._new:
            self._take_new_rows()
        if not self._rows and not prefilled and not draft_tokens:
            return None
        assert scheduler.plan is not None
        self.plans.append(scheduler.plan)
        if k and not np.dot(self._drafts, self._last - self._at):  # no row has room for a draft
            proposer, k = "none", 0
        return self._run(proposer, k, prefilled, draft_tokens)

    def _prefill_target(self) -> dict[int, int]:
        """Prefills at most a budget's tokens. Returns the tokens by shard."""
        chunks = self._scheduler.prefills.target_chunks(self.config.prefill_budget)
        self._scheduler.prefills.target_prefilled(chunks)
        tokens: dict[int, int] = {}
        for chunk in chunks:
            shard = self._scheduler.rows[chunk.slot].request.shard
            tokens[shard] = tokens.get(shard, 0) + chunk.stop - chunk.start
        return tokens

    def _prefill_draft(self) -> int:
        """Prefills the draft model. Returns the tokens."""
        behind = [] if self._ready else (self._lag > _READY).nonzero()[0].tolist()
        if not behind and not self._new:
            self._ready = bool(self._drafts.all())
            return 0
        self._sync(behind)  # the objects of the others were ready when they were last updated
        chunks = self._chooser.draft_chunks()
        self._scheduler.prefills.draft_prefilled(chunks)
        for i in behind:
            self._lag[i] = self._rows[i].length - self._rows[i].draft_valid
        return total_tokens(chunks)

    def _sync(self, which: Iterable[int]) -> None:
        """Updates the objects of these rows of the round."""
        for i in which:
            row = self._rows[i]
            row.generated = self._draws.tokens[int(self._at[i]) % self._draws.stride]
            row.draft_valid = row.length - int(self._lag[i])

    def _take_new_rows(self) -> None:
        """Takes prefilled rows into the rounds. They are prefilled in their order."""
        columns = []
        while self._new and self._new[0].prefilled:
            row = self._new.popleft()
            length, at, shard = row.length, row.request.seed * self._draws.stride, row.request.shard
            end = at + int(self.scenario.output[row.request.seed])
            columns.append((at, end, at + row.remaining - 1, length - row.draft_valid, row.speculates))
            self._rows.append(row)
            self._length += length
            self._shards[shard] = self._shards.get(shard, 0) + 1
            self._plain[shard] += not row.speculates
        if columns:
            self._set_state(np.concatenate([self._state, np.array(columns, dtype=np.int64).T], axis=1))
            self._ready, self._sure_tokens = False, 0

    def _run(self, proposer: ProposerName, k: int, prefilled: dict[int, int], draft_tokens: int) -> StepReport:
        """Runs the round and returns the step's report."""
        n, machine = len(self._rows), self.scenario.machine
        context, behind = self.context, self.behind if self._counts else 0
        prefill_s = machine.prefill_s(draft_tokens, 1.0) if draft_tokens else 0.0
        round_s = machine.seconds(proposer, k, n, context) if n else 0.0
        self.seconds += prefill_s + round_s
        prefill_s = self._measurement.prefill_s(prefill_s) if draft_tokens else 0.0
        round_s = self._measurement.round_s(proposer, k, n, round_s) if n else 0.0
        self._chooser.rounds += n > 0
        shards = self._round(proposer, k, prefilled)
        completions = self._end_rows(k + 1)
        if not self._counts and not completions:
            return _NO_COMPLETION
        return StepReport(
            k=k,
            proposer=proposer,
            running=n,
            waiting=self._scheduler.waiting,
            slots=self.config.slots,
            seconds=prefill_s + round_s,
            phases={"prefill": prefill_s, "verify": round_s},
            shards=shards,
            completions=tuple(completions),
            context=context,
            round_s=round_s,
            draft_prefill_tokens=draft_tokens,
            draft_prefill_s=prefill_s,
            draft_behind=behind / max(1, n),
        )

    def _round(self, proposer: ProposerName, k: int, prefilled: dict[int, int]) -> dict[int, ShardRound]:
        """Generates the tokens of a round. prefilled: tokens by shard. Returns the counts by shard."""
        if k:
            proposed, accepted, emitted = self._draft(proposer, k)
            self._length += int(emitted.sum())
        else:
            self._at += 1
            self._lag += 1
            self._ready = False
            self._length += len(self._rows)
        if not self._counts:
            return {}
        starts = [0, *accumulate(self._shards.values())]
        shards = {}
        for (shard, rows), start in zip(self._shards.items(), starts, strict=False):
            verified, tokens = _NO_COUNTS, rows
            if k:
                part = slice(start, start + rows)
                verified, tokens = count_acceptance(proposed[part], accepted[part]), int(emitted[part].sum())
            shards[shard] = ShardRound(
                rows=rows,
                plain_rows=self._plain[shard],
                prefill_tokens=prefilled.pop(shard, 0),
                verified=verified,
                emitted_tokens=tokens,
            )
        return shards | {shard: ShardRound(prefill_tokens=tokens) for shard, tokens in prefilled.items()}

    def _draft(self, proposer: ProposerName, k: int) -> tuple[Ints, Ints, Ints]:
        """Generates the tokens of a round with drafts. Returns proposed, accepted and emitted tokens, each [n]."""
        at, lag = self._at, self._lag
        run = self._draws.runs(proposer).take(at)
        proposed = np.minimum(self._last - at, k)
        self._ready &= proposer == "draft"
        if not self._ready:
            has_draft = self._drafts * (lag <= _READY if proposer == "draft" else run != NO_DRAFT)
            proposed *= has_draft
            run *= has_draft
        accepted = np.minimum(run, proposed)
        emitted = np.minimum(accepted + 1, self._end - at)
        at += emitted
        if proposer == "draft":  # its KV follows up to the last draft token that it has read
            lag *= proposed == 0
            lag -= np.minimum(accepted, k - 1)
        lag += emitted
        return proposed, accepted, emitted

    def _end_rows(self, most: int) -> list[Completion]:
        """Removes the rows that have ended, and returns their completions. most: tokens that a row may have got."""
        self._sure_tokens -= most
        if self._sure_tokens > 0 or not self._rows:
            return []
        left = self._end - self._at
        self._sure_tokens = int(left.min())
        if self._sure_tokens:
            return []
        completions = []
        for i in reversed((left == 0).nonzero()[0].tolist()):
            row = self._rows.pop(i)
            shard = row.request.shard
            row.generated = self._draws.tokens[int(self.scenario.output[row.request.seed])]
            self._length -= row.length
            self._shards[shard] -= 1
            self._plain[shard] -= not row.speculates
            if not self._shards[shard]:
                del self._shards[shard]
            completions.append(row.complete("length" if row.remaining == 0 else "stop"))
            self._scheduler.release(row)
        self._set_state(self._state.compress(left > 0, axis=1))
        self.ended += len(completions)
        return completions

    def check_integrity(self) -> None:
        """Raises AssertionError if slots, pages or the rows of the round are inconsistent."""
        self._sync(range(len(self._rows)))
        self._scheduler.check_integrity()
        assert self._rows == self._chooser.rows() and sum(self._shards.values()) == len(self._rows)
        assert self._length == sum(row.length for row in self._rows)
