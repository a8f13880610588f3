"""What a simulated run takes under one K to its end, without playing it round by round.

With one K, and a draft that is never behind, what a row emits depends on that row alone. So the rounds that each row
takes are known at once, and who runs beside whom follows from the order in which slots become free.
Shapes: R rows that have not ended, those that hold a slot first; T rounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specpipe.core import admission_batch
from specpipe.simulator.draws import Ints
from specpipe.simulator.oracle import RoundChoice
from specpipe.simulator.simulated_worker import SimulatedWorker

_NEAR = 1.05  # times the least estimate: what may be the best for all that an estimate is worth


class _RowRounds(NamedTuple):
    """Of every row, [R]."""

    rounds: Ints
    read: npt.NDArray[np.float64]
    """Tokens that its rounds attend to, together."""
    alone: Ints
    """1 where its last round finds one token left, to be generated without a draft; else 0."""


class FixedKRuns:
    """Runs that go on from one place, each with a K of its own."""

    def __init__(self, worker: SimulatedWorker) -> None:
        """worker: where all of them begin, its draft caught up. It is left as it is."""
        self._worker, scenario = worker, worker.scenario
        self._running, self._arrived = len(worker.rows), worker.queue.waiting
        self._rows, self._at, self._end = worker.unfinished()
        self._read = scenario.input[self._rows] - self._rows * worker.draws.stride
        """[R]: added to a place, the tokens of the row."""
        self._new = self._rows[self._running :]

    def best(self, choices: Iterable[RoundChoice]) -> tuple[float, RoundChoice]:
        """→ the seconds at the end of the fastest, and which it is. Only those that come near it are followed row by
        row; the others are estimated."""
        estimates = {choice: self._seconds(choice, self._expected(choice)) for choice in choices}
        near = _NEAR * min(estimates.values())
        return min((self.seconds(choice), choice) for choice, seconds in estimates.items() if seconds <= near)

    def seconds(self, choice: RoundChoice) -> float:
        """At the end."""
        return self._worker.seconds + self._seconds(choice, self._followed(choice))

    def _seconds(self, choice: RoundChoice, course: _RowRounds) -> float:
        """From here on."""
        scenario, (proposer, k) = self._worker.scenario, choice
        machine = scenario.machine
        began = np.array(self._starts(course.rounds.tolist()), dtype=np.int64)
        ended = began + course.rounds
        running = np.cumsum(np.bincount(began, minlength=ended.max()) - np.bincount(ended)[:-1])
        total = machine.token_s(proposer, k) * float(course.read.sum())
        shapes = np.bincount(running)
        total += sum(count * machine.seconds(proposer, k, n, 0.0) for n, count in enumerate(shapes.tolist()) if count)
        if proposer == "draft":
            tokens, forwards = float(scenario.input[self._new].sum()), len(np.unique(began[self._running :]))
            total += machine.prefill_s(tokens, forwards)
        last = ended[course.alone == 1] - 1
        plain = np.bincount(last, minlength=len(running)) == running  # rounds in which no row has a use for a draft
        for n in running[plain].tolist():
            total -= machine.seconds(proposer, k, n, 0.0) - machine.seconds("none", 0, n, 0.0)
        return float(total)

    def _starts(self, rounds: list[int]) -> list[int]:
        """rounds [R] → [R] the round in which each begins: as slots become free, and as shards come."""
        scenario = self._worker.scenario
        slots, at_once = scenario.slots, admission_batch(scenario.slots)
        busy, now = rounds[: self._running], 0
        began = [0] * self._running
        heapify(busy)  # the rounds in which slots become free
        for place, count in enumerate(self._arrivals()):
            while place and len(busy) > scenario.refill * slots:
                now = max(now, heappop(busy))
            left = count
            while left:
                most = slots - min(left, at_once)
                while len(busy) > most or (busy and busy[0] <= now):
                    now = max(now, heappop(busy))
                new = min(left, slots - len(busy))
                for took in rounds[len(began) : len(began) + new]:
                    heappush(busy, now + took)
                began += [now] * new
                left -= new
        return began

    def _arrivals(self) -> list[int]:
        """Rows that wait for a slot from the start on, and of each shard that comes later, when slots are free."""
        shards = self._worker.scenario.shard[self._new]
        if self._worker.scenario.refill >= 1:  # rows always wait
            return [len(shards)]
        return [self._arrived, *np.unique(shards[self._arrived :], return_counts=True)[1].tolist()]

    def _followed(self, choice: RoundChoice) -> _RowRounds:
        if not choice[1]:
            return self._expected(choice)
        following = self._worker.draws.following(*choice)
        rounds, alone = np.zeros(len(self._at), dtype=np.int64), np.zeros(len(self._at), dtype=np.int64)
        read, who = np.zeros(len(self._at)), np.arange(len(self._at))
        at, end, passed = self._at, self._end, np.zeros(len(self._at), dtype=np.int64)
        for count in range(1, self._worker.draws.stride):
            passed = passed + at
            reached = following.take(at)
            going = reached < end
            if not going.all():
                over = ~going
                ended = who[over]
                rounds[ended], read[ended] = count, passed[over]
                alone[ended] = end[over] - at[over] == 1
                who, end, passed, reached = who[going], end[going], passed[going], reached[going]
            at = reached
            if not len(at):
                break
        return _RowRounds(rounds, read + rounds * self._read, alone)

    def _expected(self, choice: RoundChoice) -> _RowRounds:
        """Exact without drafts."""
        left = self._end - self._at
        rounds = np.ceil(left / self._tokens(choice)).astype(np.int64)
        read = rounds * (self._at + self._read + 0.5 * (left - left / rounds))
        return _RowRounds(rounds, read, np.zeros(len(left), dtype=np.int64))

    def _tokens(self, choice: RoundChoice) -> npt.NDArray[np.float64]:
        """→ [R] of a round, expected."""
        scenario, (proposer, k) = self._worker.scenario, choice
        if not k:
            return np.ones(len(self._rows))
        accepted = np.cumprod(scenario.accepts[proposer][:, :k], axis=1).sum(axis=1)
        return np.asarray(1 + scenario.coverage[proposer] * accepted)[scenario.kind[self._rows]]
