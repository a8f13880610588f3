"""A worker that only pretends: slots, shards, rounds and draft KV as the engine has them, seconds by a machine's table.

What a round yields follows from the row, the position and K (policy_draws.py), so that the rounds of one K are played
in one go, though rows end and others get their slots. Shapes: n rows that run, m rounds of a segment, w rows in it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import numpy as np

from specpipe.core import ProposerName
from specpipe.simulator.draws import Draws, Ints, Mask
from specpipe.simulator.paths import Paths, extended
from specpipe.simulator.row_queue import RowQueue
from specpipe.simulator.scenarios import Scenario
from specpipe.simulator.segment import Segment, catch_up


class SimulatedWorker:
    """State between rounds; `fork` copies it, so that others can go on from the same place."""

    def __init__(self, scenario: Scenario, draws: Draws) -> None:
        self.scenario, self.draws = scenario, draws
        self.seconds = 0.0
        self.rounds = 0
        self.queue = RowQueue(scenario, draws.stride)
        self.rows: Ints = np.empty(0, dtype=np.int64)
        """[n] those that hold a slot, the oldest first."""
        self._at, self._end = self.rows, self.rows
        """[n] the place of each, and the one where it ends."""
        self.behind: Ints = self.rows
        """[n] tokens that the draft has not seen."""

    def fork(self) -> SimulatedWorker:
        """A copy that goes on by itself."""
        other = copy.copy(self)  # arrays are replaced, never changed
        other.queue = copy.copy(self.queue)
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
    def mean_left(self) -> float:
        """Tokens that a row which holds a slot may still generate: all have the limit of the longest."""
        generated = (self._at - self.rows * self.draws.stride).sum() / max(1, len(self.rows))
        return float(self.draws.stride - 1 - generated)

    @property
    def queue_depth(self) -> float:
        """Rows running, waiting and in shards that have not arrived."""
        return float(len(self.rows) + self.queue.left)

    @property
    def left(self) -> int:
        """Tokens that the rows which hold a slot will still generate."""
        return int((self._end - self._at).sum())

    @property
    def context(self) -> float:
        """Mean tokens of the rows that hold a slot."""
        return float((self._at + self._lengths(self.rows)).sum()) / len(self.rows)

    def _lengths(self, rows: Ints) -> Ints:
        """Added to a place: tokens of the row."""
        return self.scenario.input[rows] - rows * self.draws.stride

    def unfinished(self) -> tuple[Ints, Ints, Ints]:
        """→ rows that have not ended, those that hold a slot first; the place of each, and the one where it ends."""
        rows, at, end = self.queue.next(self.queue.left)
        return np.concatenate([self.rows, rows]), np.concatenate([self._at, at]), np.concatenate([self._end, end])

    def admit(self) -> bool:
        """Shards arrive and rows get slots; says whether any row runs."""
        self.queue.arrive(len(self.rows))
        if new := self.queue.due(len(self.rows), self.queue.waiting):
            rows, at, end = self.queue.next(new)
            self.queue.take(new)
            self.rows, self._at = np.concatenate([self.rows, rows]), np.concatenate([self._at, at])
            self._end = np.concatenate([self._end, end])
            self.behind = np.concatenate([self.behind, self.scenario.input[rows]])
        return bool(len(self.rows))

    def play(
        self,
        proposer: ProposerName,
        k: int,
        most: int = 1,
        *,
        holds: Callable[[int], bool] = lambda running: True,
        least_ready: float = 0.0,
        catch_up: int | None = None,
    ) -> Segment:
        """So many rounds with this K, fewer where a shard comes. Call `admit` before.

        holds: whether this K is right for another number of rows: where not, the segment ends; least_ready: as in a
        plan; catch_up: tokens that the draft catches up a step, if fewer than the budget: new rows end the segment.
        """
        if k and self.left == len(self.rows):  # no row has a use for a draft
            k, most = 0, 1
        caught_up, late = self._catch_up(catch_up) if k and proposer == "draft" else (0, None)
        if late is not None:
            most = 1
            if len(late) - np.count_nonzero(late) < least_ready * len(late):
                k, late = 0, None
        if not k:
            proposer = "none"
        walk = partial(self.draws.walk, proposer, k)
        at = walk(self._at, self._end, most)
        if late is not None:
            at[1, late] = at[0, late] + 1
        paths = Paths(self.rows, self._end, np.zeros_like(self.rows), at, self._end - at[:-1])
        alone = proposer == "draft" and catch_up is not None
        paths = extended(paths, self.queue, walk, holds, alone=alone)
        return self._book(proposer, k, paths, caught_up, late)

    def _catch_up(self, limit: int | None) -> tuple[int, Mask | None]:
        """→ tokens, and the rows that are still behind, if there are any."""
        if not self.behind.any():
            return 0, None
        new = self._at == self.rows * self.draws.stride
        budget = self.scenario.prefill_budget if limit is None else limit
        tokens, self.behind = catch_up(self.behind, new, budget, all_alike=limit is not None)
        return tokens, self.behind > 0 if self.behind.any() else None

    def _book(self, proposer: ProposerName, k: int, paths: Paths, caught_up: int, late: Mask | None) -> Segment:
        machine = self.scenario.machine
        running, left = np.count_nonzero(paths.left, axis=1), paths.left.sum(axis=1)
        if k and (useless := running == left)[1:].any():  # a token of each row, without a draft
            rounds = 1 + int(np.argmax(useless[1:]))
            paths, running, left = paths.until(rounds), running[:rounds], left[:rounds]
        context = ((paths.left > 0) @ (paths.end + self._lengths(paths.rows)) - left) / running
        seconds = machine.seconds_of(proposer, k, running, context)
        prefills = self._follow(proposer, paths, late)
        prefills[0] += caught_up
        self.seconds += float(seconds.sum())
        if forwards := np.count_nonzero(prefills):
            self.seconds += machine.prefill_s(float(prefills.sum()), float(forwards))
        self.rounds += len(left)
        return Segment(proposer, k, running, context, seconds, prefills, paths, late, self._keep(paths))

    def _follow(self, proposer: ProposerName, paths: Paths, late: Mask | None) -> Ints:
        """How far the draft is behind, old rows and new → [m] tokens of prompts that it read beside the target."""
        n, prefills = len(self.rows), np.zeros(len(paths.at) - 1, dtype=np.int64)
        prompts = self.scenario.input[paths.rows[n:]]
        if proposer != "draft":
            self.behind = np.concatenate([self.behind, prompts]) + paths.at[-1] - paths.at[0]
            return prefills
        if late is not None:
            self.behind = self.behind + late
        if len(prompts):
            self.behind = np.concatenate([self.behind, np.zeros_like(prompts)])
            np.add.at(prefills, paths.begin[n:], np.where(prompts == 1, 0, prompts))
        return prefills

    def _keep(self, paths: Paths) -> Ints:
        """The rows that go on keep their slots → those that ended."""
        self.queue.take(len(paths.rows) - len(self.rows))
        self.rows, self._at, self._end = paths.rows, paths.at[-1], paths.end
        over = self._at == self._end
        if not over.any():
            return self.rows[:0]
        goes_on: Mask = ~over
        self.rows, self._at = self.rows[goes_on], self._at[goes_on]
        self._end, self.behind = self._end[goes_on], self.behind[goes_on]
        ended: Ints = paths.rows[over]
        return ended
