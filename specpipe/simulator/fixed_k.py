"""Seconds of a simulated run under one K, computed row by row instead of round by round.

With one K and a draft model that is never behind, the rounds of a row depend on that row alone. Which rows run together
then follows from the order in which slots become free.
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

_CLOSE = 1.05  # choices up to this multiple of the least estimate are computed exactly


class _RowRounds(NamedTuple):
    """Rounds of every row, [R]."""

    rounds: Ints
    read: npt.NDArray[np.float64]
    """Tokens that its rounds attend to, summed."""
    one_left: Ints
    """1 where its last round finds one token left, to be generated without a draft; else 0."""


class FixedKRuns:
    """Runs that continue from one state, each with a fixed K."""

    def __init__(self, worker: SimulatedWorker) -> None:
        """worker: the common start, with its draft model caught up. It is not changed."""
        self._worker, scenario = worker, worker.scenario
        self._running, self._arrived = len(worker.rows), worker.queue.waiting
        self._rows, self._at, self._end = worker.unfinished()
        self._read = scenario.input[self._rows] - self._rows * worker.draws.stride
        """[R] added to a position: the tokens of the row."""
        self._new = self._rows[self._running :]

    def best(self, choices: Iterable[RoundChoice]) -> tuple[float, RoundChoice]:
        """Returns the final seconds of the fastest choice, and that choice. Only choices near it are computed fully."""
        estimates = {choice: self._seconds(choice, self._expected(choice)) for choice in choices}
        near = _CLOSE * min(estimates.values())
        return min((self.seconds(choice), choice) for choice, seconds in estimates.items() if seconds <= near)

    def seconds(self, choice: RoundChoice) -> float:
        """Returns the seconds at the end of the run."""
        return self._worker.seconds + self._seconds(choice, self._followed(choice))

    def _seconds(self, choice: RoundChoice, row_rounds: _RowRounds) -> float:
        """Returns the seconds from the start state to the end."""
        scenario, (proposer, k) = self._worker.scenario, choice
        machine = scenario.machine
        began = np.array(self._starts(row_rounds.rounds.tolist()), dtype=np.int64)
        ended = began + row_rounds.rounds
        running = np.cumsum(np.bincount(began, minlength=ended.max()) - np.bincount(ended)[:-1])
        total = machine.token_s(proposer, k) * float(row_rounds.read.sum())
        shapes = np.bincount(running)
        total += sum(count * machine.seconds(proposer, k, n, 0.0) for n, count in enumerate(shapes.tolist()) if count)
        if proposer == "draft":
            tokens, forwards = float(scenario.input[self._new].sum()), len(np.unique(began[self._running :]))
            total += machine.prefill_s(tokens, forwards)
        last = ended[row_rounds.one_left == 1] - 1
        plain = np.bincount(last, minlength=len(running)) == running  # rounds in which every row has one token left
        for n in running[plain].tolist():
            total -= machine.seconds(proposer, k, n, 0.0) - machine.seconds("none", 0, n, 0.0)
        return float(total)

    def _starts(self, rounds: list[int]) -> list[int]:
        """Takes rounds [R] and returns [R]: the round in which each row gets a slot."""
        scenario = self._worker.scenario
        slots, at_once = scenario.slots, admission_batch(scenario.slots)
        busy, now = rounds[: self._running], 0
        began = [0] * self._running
        heapify(busy)  # the rounds in which slots become free
        for index, count in enumerate(self._arrivals()):
            while index and len(busy) > scenario.refill * slots:
                now = max(now, heappop(busy))
            left = count
            while left:
                most = slots - min(left, at_once)
                while len(busy) > most or (busy and busy[0] <= now):
                    now = max(now, heappop(busy))
                new = min(left, slots - len(busy))
                for duration in rounds[len(began) : len(began) + new]:
                    heappush(busy, now + duration)
                began += [now] * new
                left -= new
        return began

    def _arrivals(self) -> list[int]:
        """Returns the rows that wait at the start, and those of each shard that arrives later."""
        shards = self._worker.scenario.shard[self._new]
        if self._worker.scenario.refill >= 1:  # rows always wait
            return [len(shards)]
        return [self._arrived, *np.unique(shards[self._arrived :], return_counts=True)[1].tolist()]

    def _followed(self, choice: RoundChoice) -> _RowRounds:
        """Returns the exact rounds of every row, from the scenario's random draws."""
        if not choice[1]:
            return self._expected(choice)
        following = self._worker.draws.following(*choice)
        rounds, one_left = np.zeros(len(self._at), dtype=np.int64), np.zeros(len(self._at), dtype=np.int64)
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
                one_left[ended] = end[over] - at[over] == 1
                who, end, passed, reached = who[going], end[going], passed[going], reached[going]
            at = reached
            if not len(at):
                break
        return _RowRounds(rounds, read + rounds * self._read, one_left)

    def _expected(self, choice: RoundChoice) -> _RowRounds:
        """Returns the expected rounds of every row; exact for K = 0."""
        left = self._end - self._at
        rounds = np.ceil(left / self._tokens(choice)).astype(np.int64)
        read = rounds * (self._at + self._read + 0.5 * (left - left / rounds))
        return _RowRounds(rounds, read, np.zeros(len(left), dtype=np.int64))

    def _tokens(self, choice: RoundChoice) -> npt.NDArray[np.float64]:
        """Returns the expected tokens of a round, [R]."""
        scenario, (proposer, k) = self._worker.scenario, choice
        if not k:
            return np.ones(len(self._rows))
        accepted = np.cumprod(scenario.accepts[proposer][:, :k], axis=1).sum(axis=1)
        return np.asarray(1 + scenario.coverage[proposer] * accepted)[scenario.kind[self._rows]]
