"""Simulated engine: a worker's engine whose rounds take the seconds of a machine and accept what was drawn.

Scheduler, step chooser and step reports are the engine's own. A round is a few operations on arrays of the running
rows; the rows' own objects are updated before the scheduler or the chooser reads them. Every round is read before the
next one is launched. Prefill by the target takes no time: it is the same under every policy.
Shapes: n rows of a round, the oldest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from specpipe.core import (
    AcceptanceCounts,
    Completion,
    ProposerName,
    Request,
    ShardRound,
    SpeculationPlan,
    StepReport,
)
from specpipe.engine.accounting import count_acceptance
from specpipe.engine.state.chunks import total_tokens
from specpipe.engine.state.in_flight import StepsInFlight
from specpipe.engine.state.page_allocator import PageAllocator
from specpipe.engine.state.row_state import RowState
from specpipe.engine.state.scheduler import Scheduler
from specpipe.engine.step_chooser import StepChooser
from specpipe.simulator.draws import NO_DRAFT, Draws, Ints
from specpipe.simulator.measurement import Measurement
from specpipe.simulator.scenarios import Scenario

_NOTHING = AcceptanceCounts()


class SimulatedEngine:
    """Implements `EngineProtocol` for the requests of one scenario. `Request.seed` is the row of the scenario."""

    def __init__(self, scenario: Scenario, draws: Draws, measurement: Measurement, *, pages: int | None = None) -> None:
        """pages: KV pages; by default enough for all slots."""
        self.config = config = scenario.engine_config
        self.scenario, self._draws, self._measurement = scenario, draws, measurement
        self.kv_pages = pages or config.slots * config.pages_per_row
        self._scheduler = Scheduler(
            config, PageAllocator(self.kv_pages + 1), _NoTextDecoder(), lookahead=config.max_k + 1
        )
        self._chooser = StepChooser(
            self._scheduler, StepsInFlight(0), config, proposers=scenario.proposers, static_width=True
        )
        self.seconds = 0.0
        """Seconds of rounds and draft prefills on an undisturbed machine."""
        self._rows: list[RowState] = []
        self._at = self._end = self._limit = self._lag = np.empty(0, dtype=np.int64)
        """[n] position, position of the last token, position of the length limit, tokens that the draft's KV lacks."""
        self._speculates = np.empty(0, dtype=bool)
        """[n] rows that may have drafts."""
        self._length = 0
        """Tokens of all rows of the round."""
        self._new_rows = self._lagging = False
        """Rows with a slot that no round has had yet; rows that the draft model may have to catch up with."""
        self._shards: list[tuple[int, int, int]] = []
        """Shard, first and last + 1 of its rows in the round."""

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
        return self._at // self._draws.stride

    @property
    def context(self) -> float:
        """Mean tokens of these rows."""
        return self._length / max(1, len(self._rows))

    @property
    def left(self) -> int:
        """Tokens that these rows will still generate."""
        return int((self._end - self._at).sum())

    @property
    def behind(self) -> int:
        """Tokens of these rows that the draft model would have to prefill."""
        return int(((self._lag - 1) * self._speculates).sum())

    def submit(self, requests: Sequence[Request], plan: SpeculationPlan) -> None:
        """Queues rows, and applies the plan from the next round on."""
        self._scheduler.submit(requests, plan)

    def catch_up(self) -> None:
        """Makes the draft model catch up with all rows at no cost."""
        self._lag = np.minimum(self._lag, 2)
        self._sync()
        for row in self._scheduler.rows.values():
            row.draft_valid = max(row.draft_valid, row.length - 2)

    def step(self) -> StepReport | None:
        """Runs one prefill and one round. Returns None when there is no row."""
        refused = self._scheduler.take_refused()
        preempted = self._assign_pages() if self.config.pages_per_row > 1 else {}
        if self._scheduler.waiting and self._scheduler.admit():
            self._new_rows = self._lagging = True
        prefilled = self._prefill_target() if self._new_rows else {}
        draft_tokens = self._prefill_draft() if self._lagging else 0
        if not self._rows and not prefilled and not draft_tokens and not refused:
            return None
        return self._report(refused, preempted, prefilled, draft_tokens)

    def _assign_pages(self) -> dict[int, int]:
        """Gives growing rows pages. Returns the preempted rows by shard."""
        self._sync()
        preempted = self._scheduler.assign_pages().preempted
        counts: dict[int, int] = {}
        for row in preempted:
            counts[row.request.shard] = counts.get(row.request.shard, 0) + 1
        if preempted:
            self._take_rows()
        return counts

    def _prefill_target(self) -> dict[int, int]:
        """Prefills at most a budget's tokens. Returns the tokens by shard."""
        rows = self._scheduler.rows
        tokens: dict[int, int] = {}
        chunks = self._scheduler.target_chunks(self.config.prefill_budget)
        self._scheduler.target_prefilled(chunks)
        for chunk in chunks:
            shard = rows[chunk.slot].request.shard
            tokens[shard] = tokens.get(shard, 0) + chunk.stop - chunk.start
        self._sync()
        self._take_rows()
        self._new_rows = len(self._rows) < len(rows)
        return tokens

    def _prefill_draft(self) -> int:
        """Prefills the draft model where the next round uses it. Returns the tokens."""
        if self._chooser.planned()[0] != "draft":
            return 0
        self._sync()
        chunks = self._chooser.draft_chunks()
        self._scheduler.draft_prefilled(chunks)
        rows = self._scheduler.rows
        self._lag = np.array([row.length - row.draft_valid for row in self._rows], dtype=np.int64)
        self._lagging = not all(row.draft_ready(0) or not row.may_draft for row in rows.values())
        return total_tokens(chunks)

    def _sync(self) -> None:
        """Updates the row objects."""
        generated = (self._at % self._draws.stride).tolist()
        for row, count, lag in zip(self._rows, generated, self._lag.tolist(), strict=True):
            row.generated = [0] * count
            row.draft_valid = row.length - lag

    def _take_rows(self) -> None:
        """Takes the rows of the next round from their objects."""
        self._rows = self._chooser.rows()
        stride, output = self._draws.stride, self.scenario.output
        which = np.array([row.request.seed for row in self._rows], dtype=np.int64)
        lengths = [(len(row.generated), row.remaining, row.length, row.draft_valid) for row in self._rows]
        generated, remaining, length, valid = np.array(lengths, dtype=np.int64).reshape(-1, 4).T
        self._at, self._end = which * stride + generated, which * stride + output[which]
        self._limit, self._lag, self._length = self._at + remaining, length - valid, int(length.sum())
        self._speculates = np.array([row.speculates for row in self._rows], dtype=bool)
        self._find_shards()

    def _find_shards(self) -> None:
        """Finds the shards of the rows, which are in order of submission."""
        self._shards, start = [], 0
        shards = [row.request.shard for row in self._rows]
        while start < len(shards):
            stop = start + shards[start:].count(shards[start])
            self._shards.append((shards[start], start, stop))
            start = stop

    def _choice(self) -> tuple[ProposerName, int]:
        """Returns proposer and K of the round."""
        choice = self._chooser.choice(self._rows)
        if choice[1] and int((self._limit - self._at).max()) <= 1:  # the objects may be older than the arrays
            self._sync()
            return self._chooser.choice(self._rows)
        return choice

    def _report(
        self, refused: list[Completion], preempted: dict[int, int], prefilled: dict[int, int], draft_tokens: int
    ) -> StepReport:
        """Runs the round and returns the step's report."""
        n, machine, measurement = len(self._rows), self.scenario.machine, self._measurement
        proposer, k = self._choice() if n else ("none", 0)
        context, prefill_s, round_s = self.context, 0.0, 0.0
        behind, left = (self.behind / n, int((self._limit - self._at).sum()) / n) if n else (0.0, 0.0)
        if draft_tokens:
            seconds = machine.prefill_s(draft_tokens, 1.0)
            self.seconds += seconds
            prefill_s = measurement.prefill_s(seconds)
        shards: dict[int, ShardRound] = {}
        completions: list[Completion] = refused
        if n:
            seconds = machine.seconds(proposer, k, n, context)
            self.seconds += seconds
            round_s = measurement.round_s(proposer, k, n, seconds)
            self._chooser.rounds += 1
            shards = self._round(proposer, k, prefilled)
            completions = completions + self._end_rows()
        for shard in prefilled.keys() | preempted.keys():
            if shard not in shards or preempted:
                known = shards.get(shard, ShardRound(prefill_tokens=prefilled.get(shard, 0)))
                shards[shard] = _with_preemptions(known, preempted.get(shard, 0))
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
            draft_behind=behind,
            left=left,
        )

    def _round(self, proposer: ProposerName, k: int, prefilled: dict[int, int]) -> dict[int, ShardRound]:
        """Generates the tokens of a round. Returns the counts by shard."""
        before = self._at
        if not k:
            self._at = before + 1
            self._lag = self._lag + 1
            self._lagging = True
            self._length += len(before)
            return {
                shard: ShardRound(
                    rows=stop - start,
                    prefill_tokens=prefilled.get(shard, 0),
                    plain_rows=stop - start - int(self._speculates[start:stop].sum()),
                    verified=_NOTHING,
                    emitted_tokens=stop - start,
                )
                for shard, start, stop in self._shards
            }
        run = self._draws.runs(proposer).take(before)
        proposed = np.minimum(self._limit - before - 1, k)
        proposed[(run == NO_DRAFT) if proposer == "ngram" else (self._lag > 2)] = 0
        proposed *= self._speculates
        accepted = np.minimum(run, proposed)
        np.maximum(accepted, 0, out=accepted)
        self._at = np.minimum(before + accepted + 1, self._end)
        emitted = self._at - before
        if proposer == "draft":  # the KV of the draft model follows up to the last draft token that it has read
            follows = np.where(proposed > 0, np.minimum(accepted, k - 1) + self._lag, 0)
            self._lag = self._lag + emitted - follows
            self._lagging = self._lagging or not proposed.all()
        else:
            self._lag = self._lag + emitted
            self._lagging = True
        self._length += int(emitted.sum())
        kept = np.minimum(accepted, emitted)
        return {
            shard: ShardRound(
                rows=stop - start,
                plain_rows=stop - start - int(self._speculates[start:stop].sum()),
                prefill_tokens=prefilled.get(shard, 0),
                verified=count_acceptance(proposed[start:stop], accepted[start:stop]),
                emitted_tokens=int(emitted[start:stop].sum()),
                emitted_accepted_tokens=int(kept[start:stop].sum()),
            )
            for shard, start, stop in self._shards
        }

    def _end_rows(self) -> list[Completion]:
        """Removes the rows that have ended, and returns their completions."""
        over = self._at == self._end
        if not over.any():
            return []
        completions = []
        for i in np.flatnonzero(over).tolist():
            row = self._rows[i]
            row.generated = [0] * int(self.scenario.output[row.request.seed])
            self._length -= row.length
            completions.append(row.complete("length" if row.remaining == 0 else "stop"))
            self._scheduler.release(row)
        stays = ~over
        self._rows = [row for row, ended in zip(self._rows, over.tolist(), strict=True) if not ended]
        self._at, self._end = self._at[stays], self._end[stays]
        self._limit, self._lag = self._limit[stays], self._lag[stays]
        self._speculates = self._speculates[stays]
        self._find_shards()
        return completions

    def check_integrity(self) -> None:
        """Raises AssertionError if slots, pages or the rows of the round are inconsistent."""
        self._sync()
        self._scheduler.check_integrity()
        assert self._rows == self._chooser.rows()
        assert self._length == sum(row.length for row in self._rows)


class _NoTextDecoder:
    """TextDecoder for rows without text."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return ""

    def stream(self, stop: tuple[str, ...]) -> Any:
        raise AssertionError("no row of a simulation has stop strings")


def _with_preemptions(part: ShardRound, preemptions: int) -> ShardRound:
    return ShardRound(
        rows=part.rows,
        plain_rows=part.plain_rows,
        prefill_tokens=part.prefill_tokens,
        preemptions=preemptions,
        verified=part.verified,
        emitted_tokens=part.emitted_tokens,
        emitted_accepted_tokens=part.emitted_accepted_tokens,
    )
