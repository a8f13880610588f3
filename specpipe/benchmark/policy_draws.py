"""What is accepted in a simulated run: drawn once for every row and position, so that two policies meet the same text.

Shapes: n rows that run, m rounds, R rows of the scenario, L tokens of its longest output.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from specpipe.benchmark.policy_scenarios import Scenario
from specpipe.core import ProposerName

Ints = npt.NDArray[np.int64]
_NOTHING_FOUND = -1


class Draws:
    """Of a scenario, shared by every worker that plays it. A place is row * L + tokens generated."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.length = int(scenario.output.max())
        rng = np.random.default_rng(scenario.seed)
        shape = (len(scenario.output), self.length + scenario.max_k)
        self._accepted = rng.random(shape, dtype=np.float32)
        """A draft at this position is accepted where it is below the probability."""
        self._found = rng.random(shape, dtype=np.float32)
        """An n-gram is found here where it is below the coverage."""
        self._runs: dict[ProposerName, npt.NDArray[np.int8]] = {}
        self._emitted: dict[tuple[ProposerName, int], npt.NDArray[np.int8]] = {}

    @cached_property
    def _room(self) -> npt.NDArray[np.int16]:
        """[R, L]: drafts that can still be used."""
        left = self._scenario.output[:, None] - np.arange(1, self.length + 1)
        return np.asarray(np.maximum(left, 0), dtype=np.int16)

    def runs(self, proposer: ProposerName) -> npt.NDArray[np.int8]:
        """[R * L]: how many drafts in a row are accepted from this place on; -1 where there is no draft."""
        if proposer not in self._runs:
            chance = self._scenario.accepts[proposer][self._scenario.kind]
            run = np.zeros((len(chance), self.length), dtype=np.int8)
            going = np.ones(run.shape, dtype=bool)
            for i in range(self._scenario.max_k):
                going &= self._accepted[:, i : i + self.length] < chance[:, i : i + 1]
                run += going
            if proposer != "draft":
                coverage = self._scenario.coverage[proposer][self._scenario.kind]
                run[self._found[:, : self.length] >= coverage[:, None]] = _NOTHING_FOUND
            self._runs[proposer] = run.ravel()
        return self._runs[proposer]

    def offered(self, proposer: ProposerName, k: int, places: Ints) -> Ints:
        """Drafts of a row's round at each place, where the draft is not behind."""
        room = np.minimum(self._room.ravel()[places], k)
        return np.asarray(np.where(self.runs(proposer)[places] == _NOTHING_FOUND, 0, room), dtype=np.int64)

    def emitted(self, proposer: ProposerName, k: int) -> npt.NDArray[np.int8]:
        """[R * L]: tokens that a round of k drafts yields at this place, where the draft is not behind."""
        if (proposer, k) not in self._emitted:
            run = self.runs(proposer).reshape(self._room.shape)
            self._emitted[proposer, k] = (1 + np.clip(np.minimum(run, k), 0, self._room)).astype(np.int8).ravel()
        return self._emitted[proposer, k]
