"""Simulated worker: slots, shards, rounds and draft KV as in the engine, with seconds from a machine's tables.

The tokens of a round follow from row, position and K (draws.py). So consecutive rounds of one K are computed together,
even while rows end and others get their slots. Shapes: n running rows, m rounds of a segment, w rows in it.
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
    """State between rounds. `fork` copies it, so that other runs can continue from it."""

    def __init__(self, scenario: Scenario, draws: Draws) -> None:
        self.scenario, self.draws = scenario, draws
        self.seconds = 0.0
        self.rounds = 0
        self.queue = RowQueue(scenario, draws.stride)
        self.rows: Ints = np.empty(0, dtype=np.int64)
        """[n] rows with a slot, the oldest first."""
        self._at, self._end = self.rows, self.rows
        """[n] position and end position of each."""
        self.behind: Ints = self.rows
        """[n] tokens that are missing in the draft model's KV."""

    def fork(self) -> SimulatedWorker:
        """Returns an independent copy."""
        other = copy.copy(self)  # arrays are replaced, never changed
        other.queue = copy.copy(self.queue)
        return other

    def caught_up(self) -> SimulatedWorker:
        """Sets the draft model as caught up, and returns the worker."""
        self.behind = np.zeros_like(self.behind)
        return self

    @property
    def mean_behind(self) -> float:
        """Mean missing draft tokens of a row with a slot."""
        return float(self.behind.sum()) / max(1, len(self.behind))

    @property
    def mean_left(self) -> float:
        """Mean tokens that a row with a slot may still generate, where all have the longest row's limit."""
        generated = (self._at - self.rows * self.draws.stride).sum() / max(1, len(self.rows))
        return float(self.draws.stride - 1 - generated)

    @property
    def queue_depth(self) -> float:
        """Rows running, waiting and in shards that have not arrived."""
        return float(len(self.rows) + self.queue.left)

    @property
    def left(self) -> int:
        """Tokens that the rows with slots will still generate."""
        return int((self._end - self._at).sum())

    @property
    def context(self) -> float:
        """Mean tokens of the rows with slots."""
        return float((self._at + self._lengths(self.rows)).sum()) / len(self.rows)

    def _lengths(self, rows: Ints) -> Ints:
        """Returns [n] offsets: position + offset = tokens of the row."""
        return self.scenario.input[rows] - rows * self.draws.stride

    def unfinished(self) -> tuple[Ints, Ints, Ints]:
        """Returns the unfinished rows, those with slots first, their positions and end positions."""
        rows, at, end = self.queue.next(self.queue.left)
        return np.concatenate([self.rows, rows]), np.concatenate([self._at, at]), np.concatenate([self._end, end])

    def admit(self) -> bool:
        """Takes in due shards and gives free slots to rows. Returns True if any row runs."""
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
        same_k: Callable[[int], bool] = lambda running: True,
        least_ready: float = 0.0,
        catch_up: int | None = None,
    ) -> Segment:
        """Plays up to `most` rounds with this K, until a shard arrives. Call `admit` before.

        same_k: returns True if K stays the same at an occupancy, otherwise the segment ends; least_ready: as in a plan;
        catch_up: limit on the tokens caught up in a step, if below the budget; new rows then end the segment.
        """
        if k and self.left == len(self.rows):  # every row has one token left
            k, most = 0, 1
        caught_up, lacks_draft = self._catch_up(catch_up) if k and proposer == "draft" else (0, None)
        if lacks_draft is not None:
            most = 1
            if len(lacks_draft) - np.count_nonzero(lacks_draft) < least_ready * len(lacks_draft):
                k, lacks_draft = 0, None
        if not k:
            proposer = "none"
        walk = partial(self.draws.walk, proposer, k)
        at = walk(self._at, self._end, most)
        if lacks_draft is not None:
            at[1, lacks_draft] = at[0, lacks_draft] + 1
        paths = Paths(self.rows, self._end, np.zeros_like(self.rows), at, self._end - at[:-1])
        stop_at_new_rows = proposer == "draft" and catch_up is not None
        paths = extended(paths, self.queue, walk, same_k, stop_at_new_rows=stop_at_new_rows)
        return self._book(proposer, k, paths, caught_up, lacks_draft)

    def _catch_up(self, limit: int | None) -> tuple[int, Mask | None]:
        """Catches up. Returns the tokens, and a mask [n] of the rows that are still behind, or None."""
        if not self.behind.any():
            return 0, None
        new = self._at == self.rows * self.draws.stride
        budget = self.scenario.prefill_budget if limit is None else limit
        tokens, self.behind = catch_up(self.behind, new, budget, all_alike=limit is not None)
        return tokens, self.behind > 0 if self.behind.any() else None

    def _book(self, proposer: ProposerName, k: int, paths: Paths, caught_up: int, lacks_draft: Mask | None) -> Segment:
        """Computes the seconds of the rounds and applies them to the state."""
        machine = self.scenario.machine
        running, left = np.count_nonzero(paths.left, axis=1), paths.left.sum(axis=1)
        if k and (useless := running == left)[1:].any():  # every row has one token left: a plain round
            rounds = 1 + int(np.argmax(useless[1:]))
            paths, running, left = paths.until(rounds), running[:rounds], left[:rounds]
        context = ((paths.left > 0) @ (paths.end + self._lengths(paths.rows)) - left) / running
        seconds = machine.seconds_of(proposer, k, running, context)
        prefills = self._follow(proposer, paths, lacks_draft)
        prefills[0] += caught_up
        self.seconds += float(seconds.sum())
        if forwards := np.count_nonzero(prefills):
            self.seconds += machine.prefill_s(float(prefills.sum()), float(forwards))
        self.rounds += len(left)
        return Segment(proposer, k, running, context, seconds, prefills, paths, lacks_draft, self._keep(paths))

    def _follow(self, proposer: ProposerName, paths: Paths, lacks_draft: Mask | None) -> Ints:
        """Updates `behind` for old and new rows. Returns [m] prompt tokens read beside the target."""
        n, prefills = len(self.rows), np.zeros(len(paths.at) - 1, dtype=np.int64)
        prompts = self.scenario.input[paths.rows[n:]]
        if proposer != "draft":
            self.behind = np.concatenate([self.behind, prompts]) + paths.at[-1] - paths.at[0]
            return prefills
        if lacks_draft is not None:
            self.behind = self.behind + lacks_draft
        if len(prompts):
            self.behind = np.concatenate([self.behind, np.zeros_like(prompts)])
            np.add.at(prefills, paths.begin[n:], np.where(prompts == 1, 0, prompts))
        return prefills

    def _keep(self, paths: Paths) -> Ints:
        """Removes rows that ended from their slots, and returns them."""
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
