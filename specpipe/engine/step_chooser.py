"""Decisions of a step, from the plan, the rows that run and the rounds in flight."""

from __future__ import annotations

from collections.abc import Container, Sequence

from specpipe.core import EngineConfig, ProposerName
from specpipe.engine.rounds.round_key import RoundKey
from specpipe.engine.state.chunks import Chunk
from specpipe.engine.state.in_flight import StepsInFlight
from specpipe.engine.state.prefix_groups import (
    CPU_LIMITS,
    GPU_LIMITS,
    PrefixGrouper,
    PrefixGroups,
    choose_groups,
)
from specpipe.engine.state.row_state import RowState
from specpipe.engine.state.scheduler import Scheduler


class StepChooser:
    """Decides for each step which rows run, with which proposer and K, and which chunks the draft model catches up."""

    def __init__(
        self,
        scheduler: Scheduler,
        in_flight: StepsInFlight,
        config: EngineConfig,
        *,
        proposers: Container[ProposerName],
        static_width: bool,
    ) -> None:
        """proposers: those of the engine. static_width: every block table is as wide as the longest possible row's."""
        self._scheduler, self._in_flight, self._config = scheduler, in_flight, config
        self._proposers, self._static_width = proposers, static_width
        self._grouper = PrefixGrouper(GPU_LIMITS if static_width else CPU_LIMITS)
        self.rounds = 0
        """Rounds launched so far: plans explore by this count."""

    def draft_chunks(self) -> list[Chunk]:
        """Returns what the draft model prefills in this step; nothing where no round is planned to use it."""
        plan = self._scheduler.plan
        proposer = self.planned()[0]
        if plan is None or proposer not in ("draft", "joined"):
            return []
        explore = plan.exploring(self.rounds)
        limit = None if explore is None else explore.catch_up
        budget = self._config.prefill_budget if limit is None else min(self._config.prefill_budget, limit)
        joined = proposer == "joined"
        return self._scheduler.prefills.draft_chunks(budget, self._in_flight.plain_rounds, skip_following=joined)

    def rows(self) -> list[RowState]:
        """Returns the rows of the next round: prefilled ones that rounds in flight do not bring to their limit."""
        in_flight = self._in_flight.rounds
        return [
            row for row in self._scheduler.rows.values() if row.prefilled and row.length + in_flight[row] < row.limit
        ]

    def choice(self, rows: list[RowState]) -> tuple[ProposerName, int]:
        """Returns proposer and K of a round of these rows."""
        return self.planned() if any(row.may_draft for row in rows) else ("none", 0)

    def groups(self, rows: list[RowState]) -> PrefixGroups | None:
        """Returns the groups of these rows that read shared pages together; None where none are worth it."""
        return self._grouper.groups(rows, self.choice(rows)[1])

    def prefill_groups(self, chunks: Sequence[Chunk]) -> PrefixGroups | None:
        """Returns the groups of chunks behind equal pages; None without any, and on a GPU, where groups need chunks of
        equal length."""
        if self._static_width:
            return None
        rows, size = self._scheduler.rows, self._config.page_size
        groups = choose_groups([rows[chunk.slot].prefix[: chunk.start // size] for chunk in chunks])
        return groups if groups.members else None

    def key(self, rows: list[RowState], *, shared: bool) -> RoundKey:
        """Returns the key of a round of these rows. shared: they have groups."""
        proposer, k = self.choice(rows)
        return RoundKey.of(
            [row.request.sampling for row in rows],
            proposer,
            k,
            width=self._width(rows, k),
            below_min_tokens=any(row.below_min_tokens for row in rows),
            shared=shared,
        )

    def planned(self) -> tuple[ProposerName, int]:
        """Returns proposer and K of the plan at the present number of rows with a slot, those in prefill included."""
        plan = self._scheduler.plan
        if plan is None:
            return "none", 0
        proposer, k = plan.choice(len(self._scheduler.rows), self.rounds)
        k = min(k, self._config.largest_k(proposer))
        return (proposer, k) if k and proposer in self._proposers else ("none", 0)

    def _width(self, rows: list[RowState], k: int) -> int:
        """Returns the number of block-table columns that this round can reach."""
        if self._static_width:
            return self._config.pages_per_row
        longest = max(row.length for row in rows) + self._in_flight.max_new_tokens + k
        return min(longest // self._config.page_size + 1, self._config.pages_per_row)
