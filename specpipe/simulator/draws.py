"""Random draws of a simulated run: acceptance by row and position, so that all policies meet the same text.

Shapes: R rows of the scenario, L tokens of its longest output.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specpipe.core import ProposerName
from specpipe.simulator.scenarios import Scenario

Ints = npt.NDArray[np.int64]
NO_DRAFT = -1


class Draws:
    """Draws of a scenario, the same for every run. A position is row * stride + tokens generated."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.stride = int(scenario.output.max()) + 1
        self.tokens = [[0] * count for count in range(self.stride)]
        """Generated tokens of a row by their number, shared by all rows."""
        rng = np.random.default_rng(scenario.seed)
        shape = len(scenario.output), self.stride - 1 + scenario.max_k
        self._accepted = rng.random(shape, dtype=np.float32)
        """[R, L + max K] uniform draws: a draft token is accepted if its draw is below the probability."""
        self._found = rng.random(shape, dtype=np.float32) if "ngram" in scenario.proposers else None
        """[R, L + max K] uniform draws: an n-gram is found if its draw is below the coverage."""
        self._runs: dict[ProposerName, Ints] = {}

    def runs(self, proposer: ProposerName) -> Ints:
        """Returns [R * stride]: draft tokens accepted from a position on, at most max K; NO_DRAFT without a draft."""
        if proposer not in self._runs:
            chance = self._scenario.accepts[proposer][self._scenario.kind]
            run = np.zeros((len(chance), self.stride), dtype=np.int64)
            going = np.ones(run.shape, dtype=bool)
            for i in range(self._scenario.max_k):
                going &= self._accepted[:, i : i + self.stride] < chance[:, i : i + 1]
                run += going
            if proposer == "ngram" and self._found is not None:
                coverage = self._scenario.coverage[proposer][self._scenario.kind]
                run[self._found[:, : self.stride] >= coverage[:, None]] = NO_DRAFT
            self._runs[proposer] = run.ravel()
        return self._runs[proposer]
