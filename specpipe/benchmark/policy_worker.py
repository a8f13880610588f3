"""A worker that only pretends: slots, shards, rounds and draft KV as the engine has them, seconds by a machine's table.

What a round yields follows from the row, the position and K (policy_draws.py), so that rounds between two events are
played in one go. Shapes: n rows that run, m rounds of a stretch.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specpipe.benchmark.policy_draws import Draws, Ints
from specpipe.benchmark.policy_scenarios import Scenario
from specpipe.core import ProposerName

Mask = npt.NDArray[np.bool_]


class Stretch(NamedTuple):
    """Rounds, one after the other, of the same rows with the same K."""

    proposer: ProposerName
    """"none" where k is 0."""
    k: int
    running: int
    context: npt.NDArray[np.float64]
    """[m] mean tokens of a row when a round began."""
    seconds: npt.NDArray[np.float64]
    """[m] of the rounds proper."""
    draft_prefill: int
    """Tokens that the draft caught up before the first one."""
    places: Ints
    """[m + 1, n] where each row stood when a round began, and after the last one; [m + 1, 0] where k is 0."""
    late: npt.NDArray[np.bool_] | None
    """[n] rows without a draft because the draft model was behind; None: no row."""
    ended: Ints
    """Rows, with the last round."""

    @property
    def rounds(self) -> int:
        return len(self.seconds)


class SimulatedWorker:
    """State between rounds; `fork` copies it, so that others can go on from the same place."""

    def __init__(self, scenario: Scenario, draws: Draws) -> None:
        self.scenario, self.draws = scenario, draws
        self.seconds = 0.0
        self.rounds = 0
        self.shards_in = 0
        """Shards that have arrived."""
        self._ends = np.searchsorted(scenario.shard, np.arange(int(scenario.shard[-1]) + 1), side="right").tolist()
        """The first row behind each shard."""
        self._admitted = 0
        self._tokens = 0
        """Of all rows that hold a slot, prompts included."""
        self.rows: Ints = np.empty(0, dtype=np.int64)
        """[n] those that hold a slot, the oldest first."""
        self._at, self._end = self.rows, self.rows
        """[n] the place of each, and the one where it ends."""
        self.behind: Ints = self.rows
        """[n] tokens that the draft has not seen."""

    def fork(self) -> SimulatedWorker:
        """A copy that goes on by itself."""
        other = copy.copy(self)
        other._at, other.behind = self._at.copy(), self.behind.copy()  # the others are replaced, never changed
        return other

    def caught_up(self) -> SimulatedWorker:
        """The same, the draft having seen all."""
        self.behind = np.zeros_like(self.behind)
        return self

    @property
    def mean_behind(self) -> float:
        """Tokens that the draft has not seen, of a row that holds a slot."""
        return float(self.behind.sum()) / max(1, len(self.behind))

    @property
    def queue_depth(self) -> float:
        """Rows running, waiting and in shards that have not arrived."""
        return float(len(self.rows) + len(self.scenario.output) - self._admitted)

    @property
    def left(self) -> int:
        """Tokens that the rows which hold a slot will still generate."""
        return int((self._end - self._at).sum())

    @property
    def context(self) -> float:
        """Mean tokens of the rows that hold a slot."""
        return self._tokens / len(self.rows)

    def unfinished(self) -> tuple[Ints, Ints, Ints]:
        """→ rows that have not ended, those that hold a slot first; the place of each, and the one where it ends."""
        new = np.arange(self._admitted, len(self.scenario.output))
        start = new * self.draws.length
        return (
            np.concatenate([self.rows, new]),
            np.concatenate([self._at, start]),
            np.concatenate([self._end, start + self.scenario.output[new]]),
        )

    def admit(self) -> bool:
        """Shards arrive and rows get slots; says whether any row runs."""
        while self._shard_due():
            self.shards_in += 1
        if new := min(self.scenario.slots - len(self.rows), self.waiting):
            scenario, rows = self.scenario, np.arange(self._admitted, self._admitted + new)
            start = rows * self.draws.length
            self.rows = np.concatenate([self.rows, rows])
            self._at = np.concatenate([self._at, start])
            self._end = np.concatenate([self._end, start + scenario.output[rows]])
            self.behind = np.concatenate([self.behind, scenario.input[rows]])
            self._tokens += int(scenario.input[rows].sum())
            self._admitted += new
        return bool(len(self.rows))

    @property
    def waiting(self) -> int:
        """Rows of shards that have arrived, without a slot."""
        return (self._ends[self.shards_in - 1] if self.shards_in else 0) - self._admitted

    def _shard_due(self) -> bool:
        scenario = self.scenario
        if self.shards_in == len(self._ends):
            return False
        if scenario.refill >= 1:
            return self.waiting < scenario.slots
        return not self.waiting and len(self.rows) <= scenario.refill * scenario.slots

    def play(
        self,
        proposer: ProposerName,
        k: int,
        most: int = 1,
        *,
        least_ready: float = 0.0,
        catch_up: int | None = None,
    ) -> Stretch:
        """So many rounds of the rows that hold a slot, fewer where one ends or a shard comes. Call `admit` before.

        least_ready: as in a plan; catch_up: tokens that the draft catches up a step, if fewer than the budget.
        """
        most = 1 if self._shard_due() else most
        least = int((self._end - self._at).min())
        if k and least == 1 and self.left == len(self.rows):
            k = 0
        if not k:
            return self._plain(min(most, least))
        caught_up, late = self._catch_up(catch_up) if proposer == "draft" else (0, None)
        if late is not None and len(late) - np.count_nonzero(late) < least_ready * len(late):
            return self._plain(1, caught_up)
        # Before each of them the row that is next to end can use a draft: no other K would be taken for them.
        rounds = 1 if late is not None else min(most, max(0, least - 2) // (k + 1) + 1)
        return self._draft(proposer, k, rounds, caught_up, late)

    def _plain(self, rounds: int, caught_up: int = 0) -> Stretch:
        n = len(self.rows)
        tokens = self._tokens + n * np.arange(rounds)
        self._at += rounds
        self.behind += rounds
        self._tokens += n * rounds
        return self._book("none", 0, tokens, caught_up, np.empty((rounds + 1, 0), dtype=np.int64), None)

    def _draft(self, proposer: ProposerName, k: int, rounds: int, caught_up: int, late: Mask | None) -> Stretch:
        table, n = self.draws.emitted(proposer, k), len(self.rows)
        at = np.empty((rounds + 1, n), dtype=np.int64)
        at[0] = self._at
        for i in range(rounds):
            np.add(at[i], table[at[i]], out=at[i + 1])
        if late is not None:
            at[1, late] = at[0, late] + 1
        self._at = at[-1].copy()
        if proposer != "draft":
            self.behind += at[-1] - at[0]
        elif late is not None:
            self.behind[late] += 1
        reached = at.sum(axis=1)
        tokens = reached[:-1] + (self._tokens - reached[0])
        self._tokens += int(reached[-1] - reached[0])
        return self._book(proposer, k, tokens, caught_up, at, late)

    def _book(
        self,
        proposer: ProposerName,
        k: int,
        tokens: Ints,
        caught_up: int,
        places: Ints,
        late: Mask | None,
    ) -> Stretch:
        """tokens [m]: of all rows when a round began."""
        n, machine = len(self.rows), self.scenario.machine
        context = tokens / n
        seconds = machine.seconds(proposer, k, n, context)
        self.seconds += float(seconds.sum()) + caught_up * machine.draft_prefill
        self.rounds += len(seconds)
        return Stretch(proposer, k, n, context, seconds, caught_up, places, late, self._end_rows())

    def _end_rows(self) -> Ints:
        over = self._at >= self._end
        if not over.any():
            return self.rows[:0]
        ended, goes_on = self.rows[over], ~over
        self._tokens -= int((self.scenario.input[ended] + self.scenario.output[ended]).sum())
        self.rows, self._at = self.rows[goes_on], self._at[goes_on]
        self._end, self.behind = self._end[goes_on], self.behind[goes_on]
        return ended

    def _catch_up(self, limit: int | None) -> tuple[int, Mask | None]:
        """→ tokens, and the rows that are still behind, if there are any.

        The draft reads prompts beside the target, and what it has not seen of other rows as far as a step allows; those
        that are left draft nothing this round. One token is no more than its first step reads anyway.
        """
        behind = self.behind
        if not behind.any():
            return 0, None
        behind[behind == 1] = 0
        budget = self.scenario.prefill_budget if limit is None else limit
        if (whole := int(behind.sum())) <= budget:
            behind[:] = 0
            return whole, None
        with_prompts = 0
        if limit is None:
            new = self._at == self.rows * self.draws.length
            with_prompts = int(behind[new].sum())
            behind[new] = 0
            budget = max(0, budget - with_prompts)
        order = np.argsort(behind, kind="stable")  # as the engine does: those nearest to drafting first
        ahead = np.cumsum(behind[order]) - behind[order]
        room = np.clip(budget - ahead, 0, behind[order])
        behind[order] -= room
        return with_prompts + int(room.sum()), behind > 0 if behind.any() else None
