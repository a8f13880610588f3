"""What the next step does, from the plan that rules, the rows that run and the rounds that are under way."""

from __future__ import annotations

from collections.abc import Container

from specpipe.core import EngineConfig, ProposerName
from specpipe.engine.rounds.round_key import RoundKey
from specpipe.engine.state.chunks import Chunk, cut_chunks
from specpipe.engine.state.in_flight import InFlight
from specpipe.engine.state.row_state import RowState
from specpipe.engine.state.scheduler import Scheduler


class StepChooser:
    """Whom the draft model catches up with, which rows take part in a round, who drafts for them, and how many."""

    def __init__(
        self,
        scheduler: Scheduler,
        in_flight: InFlight,
        config: EngineConfig,
        *,
        proposers: Container[ProposerName],
        static_width: bool,
    ) -> None:
        """proposers: those that there are. static_width: every block table is as wide as the longest row's."""
        self._scheduler, self._in_flight, self._config = scheduler, in_flight, config
        self._proposers, self._static_width = proposers, static_width
        self.rounds = 0
        """Launched so far: plans explore by this count."""

    def draft_chunks(self) -> list[Chunk]:
        """What the draft model catches up in this step; none where no round is to need it."""
        plan = self._scheduler.plan
        if plan is None or self._planned()[0] != "draft":
            return []
        explore = plan.exploring(self.rounds)
        limit = None if explore is None else explore.catch_up_at(self.rounds)
        budget = self._config.prefill_budget if limit is None else min(self._config.prefill_budget, limit)
        return cut_chunks(self._scheduler.draft_chunks(self._in_flight.plain_rounds), budget)

    def rows(self) -> list[RowState]:
        """Those of the next round: a row that reaches its limit by rounds under way needs no round more."""
        under_way = self._in_flight.rounds
        return [
            row for row in self._scheduler.rows.values() if row.prefilled and row.length + under_way[row] < row.limit
        ]

    def key(self, rows: list[RowState]) -> RoundKey:
        """Of their round."""
        room = any(row.limit - row.length > 1 for row in rows)
        proposer, k = self._planned() if room else ("none", 0)
        if proposer == "draft" and self._must_wait(rows):
            proposer, k = "none", 0
        asked = [row.request.sampling for row in rows]
        return RoundKey.of(asked, proposer, k, width=self._width(rows, k), held=any(row.held for row in rows))

    def _planned(self) -> tuple[ProposerName, int]:
        """Who drafts, and how many, while as many rows hold a slot as do now, those being prefilled included."""
        plan = self._scheduler.plan
        if plan is None:
            return "none", 0
        proposer, k = plan.choice(len(self._scheduler.rows), self.rounds)
        k = min(k, self._config.max_k)
        return (proposer, k) if k and proposer in self._proposers else ("none", 0)

    def _must_wait(self, rows: list[RowState]) -> bool:
        """Whether too few rows have a draft for a round with drafts to pay: all of them would verify K tokens.

        Where a step catches up hardly more tokens than it generates, waiting would never end.
        """
        plan = self._scheduler.plan
        if plan is None or not plan.least_ready or plan.exploring(self.rounds) is not None:
            return False
        able = [row for row in rows if row.limit - row.length > 1]
        plain = self._in_flight.plain_rounds
        ready = sum(row.draft_ready(plain) for row in able)
        return ready < plan.least_ready * len(able) and self._config.prefill_budget >= 2 * len(able)

    def _width(self, rows: list[RowState], k: int) -> int:
        """Block-table columns that this round can reach."""
        if self._static_width:
            return self._config.pages_per_row
        longest = max(row.length for row in rows) + self._in_flight.most_tokens + k
        return min(longest // self._config.page_size + 1, self._config.pages_per_row)
