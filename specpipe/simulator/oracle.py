"""What a simulated run is compared with: choices of one who knows what rounds take and what is accepted."""

from __future__ import annotations

import numpy as np

from specpipe.arrays import Array
from specpipe.core import ProposerName
from specpipe.simulator.scenarios import Scenario
from specpipe.simulator.simulated_worker import SimulatedWorker

RoundChoice = tuple[ProposerName, int]
CHOOSE_AGAIN = 16
"""Rounds after which the oracle looks again, as it does where the number of rows has changed by more than CHANGED."""
CHANGED = 1 / 16


class Oracle:
    """Knows what rounds take and what each row accepts: the best K of every round, and when catching up pays."""

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
        """At the end, going on from `start`, or `within_s` where that is less: the better of one who leaves the draft
        off until what it brings pays for catching up, and one who does not wait for that."""
        patient, parting = self._finish(start.fork(), patient=True, within_s=within_s)
        best = min(patient, within_s)
        return best if parting is None else min(best, self._finish(parting, patient=False, within_s=best)[0])

    def _finish(
        self, worker: SimulatedWorker, *, patient: bool, within_s: float
    ) -> tuple[float, SimulatedWorker | None]:
        """→ seconds at the end, or some beyond `within_s` where it would be later, and the state in which patience
        first made a difference."""
        parting: SimulatedWorker | None = None
        rows, until = 0, 0
        choice: RoundChoice = ("none", 0)

        def holds(running: int) -> bool:
            return abs(running - rows) <= CHANGED * rows

        while worker.seconds <= within_s and worker.admit():
            if worker.rounds >= until or not holds(len(worker.rows)):
                rows, until = len(worker.rows), worker.rounds + CHOOSE_AGAIN
                patiently, at_once = self._choices(worker)
                if parting is None and patiently != at_once:
                    parting = worker.fork()
                choice = patiently if patient else at_once
            worker.play(*choice, until - worker.rounds, holds=holds)
        return worker.seconds, parting

    def _choices(self, worker: SimulatedWorker) -> tuple[RoundChoice, RoundChoice]:
        """→ with patience, and without."""
        scenario, rows = self._scenario, worker.rows
        n, machine = len(rows), scenario.machine
        kinds = np.bincount(scenario.kind[rows], minlength=len(scenario.coverage["draft"])) / n
        left = worker.left + max(0.0, worker.queue_depth - n) * self._output
        catching_up = machine.prefill_s(float(worker.behind.sum()), 1.0) / left
        patient, at_once = [], []
        for who, table in self._tokens.items():
            seconds = self._seconds(who, n, worker.context) / (n * (kinds @ table))
            at_once.append(_least(who, seconds))
            if who == "draft":
                seconds[1:] += catching_up
            patient.append(_least(who, seconds))
        return min(patient)[1], min(at_once)[1]

    def _seconds(self, who: ProposerName, rows: int, context: float) -> Array:
        """→ [max K + 1]."""
        machine, ks = self._scenario.machine, range(self._scenario.max_k + 1)
        if (who, rows) not in self._known:
            bare = [machine.seconds(who, k, rows, 0.0) for k in ks]
            of_context = [machine.seconds(who, k, rows, 1.0) for k in ks]
            self._known[who, rows] = np.array([bare, np.subtract(of_context, bare)])
        bare, of_context = self._known[who, rows]
        return np.asarray(bare + of_context * context)


def _least(who: ProposerName, seconds: Array) -> tuple[float, RoundChoice]:
    k = int(seconds.argmin())
    return float(seconds[k]), (who, k)
