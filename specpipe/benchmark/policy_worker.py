"""A worker that only pretends: slots, shards, rounds and draft KV as the engine has them, seconds by a machine's table.

Whether a draft is accepted is drawn once for every row and position, so that two policies meet the same text.
Shapes: n rows of a round, K draft tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specpipe.benchmark.policy_scenarios import Scenario
from specpipe.core import AcceptanceCounts, ProposerName

PREFILL_BUDGET = 2048  # tokens that the draft catches up a step
Ints = npt.NDArray[np.int64]
Choose = Callable[["SimulatedWorker"], tuple[ProposerName, int]]


class Draws(NamedTuple):
    """Of a scenario, shared by every worker that plays it."""

    accepted: npt.NDArray[np.float32]
    """[R, longest output + K] uniform: a draft at this position is accepted where it is below the probability."""
    found: npt.NDArray[np.float32]
    """[R, longest output + K] uniform: an n-gram is found here where it is below the coverage."""


class Played(NamedTuple):
    """One round."""

    proposer: ProposerName
    k: int
    running: int
    context: float
    seconds: float
    """Of the round proper."""
    draft_prefill: int
    """Tokens that the draft caught up before it."""
    verified: AcceptanceCounts
    ended: Ints
    """Rows."""


def draws(scenario: Scenario) -> Draws:
    rng = np.random.default_rng(scenario.seed)
    shape = (len(scenario.output), int(scenario.output.max()) + scenario.max_k)
    return Draws(rng.random(shape, dtype=np.float32), rng.random(shape, dtype=np.float32))


class SimulatedWorker:
    """State between rounds; `fork` copies it, so that others can go on from the same place."""

    def __init__(self, scenario: Scenario, drawn: Draws) -> None:
        self.scenario, self._draws = scenario, drawn
        self.seconds = 0.0
        self.rounds = 0
        self.shards_in = 0
        """Shards that have arrived."""
        self._waiting: list[int] = []
        self._shards = int(scenario.shard[-1]) + 1
        self.rows: Ints = np.empty(0, dtype=np.int64)
        """Those that hold a slot."""
        self.made: Ints = np.zeros(len(scenario.output), dtype=np.int64)
        """[R] tokens generated."""
        self.behind: Ints = scenario.input.copy()
        """[R] tokens that the draft has not seen."""

    def fork(self) -> SimulatedWorker:
        """A copy that goes on by itself."""
        other = copy.copy(self)
        other._waiting = list(self._waiting)
        other.rows, other.made, other.behind = self.rows.copy(), self.made.copy(), self.behind.copy()
        return other

    @property
    def queue_depth(self) -> float:
        """Rows running, waiting and in shards that have not arrived."""
        return float(len(self.rows) + len(self._waiting) + np.count_nonzero(self.scenario.shard >= self.shards_in))

    @property
    def context(self) -> float:
        """Mean tokens of the rows that hold a slot."""
        return int((self.scenario.input[self.rows] + self.made[self.rows]).sum()) / len(self.rows)

    def admit(self) -> bool:
        """Shards arrive and rows get slots; says whether any row runs."""
        scenario = self.scenario
        while self.shards_in < self._shards and self._drained():
            self._waiting.extend(np.flatnonzero(scenario.shard == self.shards_in).tolist())
            self.shards_in += 1
        free = scenario.slots - len(self.rows)
        if free and self._waiting:
            self.rows = np.concatenate([self.rows, np.array(self._waiting[:free], dtype=np.int64)])
            del self._waiting[:free]
        return bool(len(self.rows))

    def _drained(self) -> bool:
        full = self.scenario.refill >= 1
        return len(self._waiting) < self.scenario.slots if full else self._nearly_empty()

    def _nearly_empty(self) -> bool:
        return not self._waiting and len(self.rows) <= self.scenario.refill * self.scenario.slots

    def play(self, proposer: ProposerName, k: int) -> Played:
        """One round of the rows that hold a slot. Call `admit` before."""
        scenario, rows = self.scenario, self.rows
        left = scenario.output[rows] - self.made[rows]
        k = k if bool((left > 1).any()) else 0
        caught_up = self._catch_up(rows) if k and proposer == "draft" else 0
        context = self.context
        seconds = scenario.machine.seconds(proposer, k, len(rows), context)
        emitted, verified = self._verify(rows, left, proposer, k)
        self.made[rows] += emitted
        if k and proposer == "draft":
            self.behind[rows] = np.where(self.behind[rows] > 0, self.behind[rows] + emitted, 0)
        else:
            self.behind[rows] += emitted
        over = self.made[rows] >= scenario.output[rows]
        self.rows = rows[~over]
        self.seconds += seconds + caught_up * scenario.machine.draft_prefill
        self.rounds += 1
        return Played(proposer, k, len(rows), context, seconds, caught_up, verified, rows[over])

    def _catch_up(self, rows: Ints) -> int:
        """The draft reads what it has not seen, as much as a step allows; the other rows draft nothing this round.
        A single token is no more than its first step reads anyway."""
        self.behind[rows[self.behind[rows] == 1]] = 0
        rows = rows[np.argsort(self.behind[rows], kind="stable")]  # as the engine does: those nearest to drafting first
        ahead = np.cumsum(self.behind[rows])
        room = np.clip(PREFILL_BUDGET - (ahead - self.behind[rows]), 0, self.behind[rows])
        self.behind[rows] -= room
        return int(room.sum())

    def _verify(self, rows: Ints, left: Ints, proposer: ProposerName, k: int) -> tuple[Ints, AcceptanceCounts]:
        """→ tokens emitted [n], and the counts that the engine would report."""
        if not k:
            return np.ones(len(rows), dtype=np.int64), AcceptanceCounts(bonus_tokens=0)
        at, kind = self.made[rows], self.scenario.kind[rows]
        room = np.minimum(k, left - 1)
        if proposer == "draft":
            room[self.behind[rows] > 0] = 0
        else:
            room[self._draws.found[rows, at] >= self.scenario.coverage[proposer][kind]] = 0
        ahead = np.arange(k)
        offered = ahead < room[:, None]
        passes = self._draws.accepted[rows[:, None], at[:, None] + ahead] < self.scenario.accepts[proposer][kind, :k]
        accepted = np.cumprod(passes & offered, axis=1, dtype=np.int64)
        reached = offered.copy()
        reached[:, 1:] &= accepted[:, :-1] > 0
        counts = AcceptanceCounts(
            drafts=int(np.count_nonzero(room)),
            draft_tokens=int(room.sum()),
            accepted_tokens=int(accepted.sum()),
            proposed_per_position=tuple(offered.sum(axis=0).tolist()),
            reached_per_position=tuple(reached.sum(axis=0).tolist()),
            accepted_per_position=tuple(accepted.sum(axis=0).tolist()),
        )
        return accepted.sum(axis=1) + 1, counts
