"""Oracle of the simulator: chooses K from the true costs and acceptance probabilities."""

from __future__ import annotations

import numpy as np

from specpipe.arrays import Array
from specpipe.core import ProposerName
from specpipe.simulator.scenarios import Scenario
from specpipe.simulator.simulated_worker import SimulatedWorker

RoundChoice = tuple[ProposerName, int]
"""Proposer and K."""
CHOOSE_AGAIN = 16
"""Rounds between two choices."""
CHANGED = 1 / 16
"""Relative change of the running rows that causes a new choice at once."""


class Oracle:
    """Best K of every round and best time to catch up, from the scenario's true values."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._tokens = {
            who: np.concatenate(
                [
                    np.ones((len(scenario.coverage[who]), 1)),
                    1 + scenario.coverage[who][:, None] * np.cumsum(np.cumprod(scenario.accepts[who], axis=1), axis=1),
                ],
                axis=1,
            )
            for who in scenario.proposers
        }

        self._known: dict[tuple[ProposerName, int], Array] = {}
        self._output = float(scenario.output.mean())

    def seconds(self, start: SimulatedWorker, *, within_s: float) -> float:
        """Returns the seconds at the end of a run that continues from `start`, at most `within_s`.

        It is the better of two runs: one activates the draft model once its savings exceed the cost of catching up, the
        other ignores that cost.
        """
        seconds, fork = self._finish(start.fork(), charge_catch_up=True, within_s=within_s)
        best = min(seconds, within_s)
        return best if fork is None else min(best, self._finish(fork, charge_catch_up=False, within_s=best)[0])

    def _finish(
        self, worker: SimulatedWorker, *, charge_catch_up: bool, within_s: float
    ) -> tuple[float, SimulatedWorker | None]:
        """Runs to the end, or until `within_s` is exceeded.

        Returns the seconds and the first state in which the cost of catching up changed the choice.
        """
        fork: SimulatedWorker | None = None
        rows, until = 0, 0
        choice: RoundChoice = ("none", 0)

        def same_k(running: int) -> bool:
            return abs(running - rows) <= CHANGED * rows

        while worker.seconds <= within_s and worker.admit():
            if worker.rounds >= until or not same_k(len(worker.rows)):
                rows, until = len(worker.rows), worker.rounds + CHOOSE_AGAIN
                charged, free = self._choices(worker)
                if fork is None and charged != free:
                    fork = worker.fork()
                choice = charged if charge_catch_up else free
            worker.play(*choice, until - worker.rounds, same_k=same_k)
        return worker.seconds, fork

    def _choices(self, worker: SimulatedWorker) -> tuple[RoundChoice, RoundChoice]:
        """Returns the best choice with the cost of catching up charged, and without."""
        scenario, rows = self._scenario, worker.rows
        n, machine = len(rows), scenario.machine
        kinds = np.bincount(scenario.kind[rows], minlength=len(scenario.coverage["draft"])) / n
        left = worker.left + max(0.0, worker.queue_depth - n) * self._output
        catching_up = machine.prefill_s(float(worker.behind.sum()), 1.0) / left
        charged, free = [], []
        for who, table in self._tokens.items():
            seconds = self._seconds(who, n, worker.context) / (n * (kinds @ table))
            free.append(_least(who, seconds))
            if who == "draft":
                seconds[1:] += catching_up
            charged.append(_least(who, seconds))
        return min(charged)[1], min(free)[1]

    def _seconds(self, who: ProposerName, rows: int, context: float) -> Array:
        """Returns the seconds of a round by K, [max K + 1]."""
        machine, ks = self._scenario.machine, range(self._scenario.max_k + 1)
        if (who, rows) not in self._known:
            bare = [machine.seconds(who, k, rows, 0.0) for k in ks]
            of_context = [machine.seconds(who, k, rows, 1.0) for k in ks]
            self._known[who, rows] = np.array([bare, np.subtract(of_context, bare)])
        bare, of_context = self._known[who, rows]
        return np.asarray(bare + of_context * context)


def _least(who: ProposerName, seconds: Array) -> tuple[float, RoundChoice]:
    """Returns the least of the seconds [max K + 1] and its choice."""
    k = int(seconds.argmin())
    return float(seconds[k]), (who, k)
