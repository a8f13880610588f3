"""What a simulated run is compared with: choices of one who knows what rounds take and what is accepted."""

from __future__ import annotations

import numpy as np

from specpipe.benchmark.policy_scenarios import Array, Scenario
from specpipe.benchmark.policy_worker import SimulatedWorker
from specpipe.core import ProposerName

Choice = tuple[ProposerName, int]


class Oracle:
    """Knows what rounds take and what each row accepts: the best K of every round, and when catching up pays."""

    def __init__(self, scenario: Scenario, *, patient: bool = True) -> None:
        """`patient`: leaves the draft off until what it brings pays for catching up."""
        self._scenario, self._patient = scenario, patient
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

    def __call__(self, worker: SimulatedWorker) -> Choice:
        scenario, rows = self._scenario, worker.rows
        n, machine = len(rows), scenario.machine
        kinds = np.bincount(scenario.kind[rows], minlength=len(scenario.coverage["draft"])) / n
        left = worker.left + max(0.0, worker.queue_depth - n) * self._output
        best: tuple[float, ProposerName, int] = (np.inf, "none", 0)
        for who, table in self._tokens.items():
            seconds = self._seconds(who, n, worker.context) / (n * (kinds @ table))
            if who == "draft" and self._patient:
                seconds[1:] += float(worker.behind.sum()) * machine.draft_prefill / left
            k = int(np.argmin(seconds))
            best = min(best, (float(seconds[k]), who, k))
        return best[1], best[2]

    def _seconds(self, who: ProposerName, rows: int, context: float) -> Array:
        """→ [max K + 1]."""
        machine, ks = self._scenario.machine, range(self._scenario.max_k + 1)
        if (who, rows) not in self._known:
            bare = [machine.seconds(who, k, rows, 0.0) for k in ks]
            of_context = [machine.seconds(who, k, rows, 1.0) for k in ks]
            self._known[who, rows] = np.array([bare, np.subtract(of_context, bare)])
        bare, of_context = self._known[who, rows]
        return np.asarray(bare + of_context * context)
