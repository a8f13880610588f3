"""What is accepted in a simulated run: drawn once for every row and position, so that two policies meet the same text.

Shapes: n rows that run, m rounds, R rows of the scenario, L tokens of its longest output.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from specpipe.core import ProposerName
from specpipe.simulator.scenarios import Scenario

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_NOTHING_FOUND = -1


class Draws:
    """Of a scenario, shared by every worker that plays it. A place is row * stride + tokens generated."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.stride = int(scenario.output.max()) + 1
        self._rng = np.random.default_rng(scenario.seed)
        self._shape = (len(scenario.output), self.stride - 1 + scenario.max_k)
        self._accepted = self._rng.random(self._shape, dtype=np.float32)
        """A draft at this position is accepted where it is below the probability."""
        self._runs: dict[ProposerName, npt.NDArray[np.int8]] = {}
        self._next: dict[tuple[ProposerName, int], Ints] = {}

    @cached_property
    def _found(self) -> npt.NDArray[np.float32]:
        """An n-gram is found here where it is below the coverage."""
        return self._rng.random(self._shape, dtype=np.float32)

    def _run(self, proposer: ProposerName) -> npt.NDArray[np.int8]:
        """[R, stride]: how many drafts in a row are accepted from this place on; -1 where there is no draft."""
        if proposer not in self._runs:
            chance = self._scenario.accepts[proposer][self._scenario.kind]
            run = np.zeros((len(chance), self.stride), dtype=np.int8)
            going = np.ones(run.shape, dtype=bool)
            for i in range(self._scenario.max_k):
                going &= self._accepted[:, i : i + self.stride] < chance[:, i : i + 1]
                run += going
            if proposer != "draft":
                coverage = self._scenario.coverage[proposer][self._scenario.kind]
                run[self._found[:, : self.stride] >= coverage[:, None]] = _NOTHING_FOUND
            self._runs[proposer] = run
        return self._runs[proposer]

    def found(self, proposer: ProposerName, places: Ints) -> Mask:
        """Where there is a draft."""
        return np.asarray(self._run(proposer).ravel()[places] != _NOTHING_FOUND)

    def following(self, proposer: ProposerName, k: int) -> Ints:
        """[R * stride]: the place after a round of k drafts at this place, the draft not behind; at its end a row
        stays."""
        if (proposer, k) not in self._next:
            reached = self._after_one + np.clip(self._run(proposer), 0, k)
            ends = self._after_one[:, :1] + (self._scenario.output[:, None] - 1)
            self._next[proposer, k] = np.minimum(reached, ends, out=reached).ravel()
        return self._next[proposer, k]

    @cached_property
    def _after_one(self) -> Ints:
        """[R, stride]: the place after a token."""
        return np.arange(1, self._shape[0] * self.stride + 1).reshape(-1, self.stride)

    def walk(self, proposer: ProposerName, k: int, places: Ints, ends: Ints, rounds: int) -> Ints:
        """→ [rounds + 1, n]: where rows stand before each round and after the last, the draft never behind."""
        at = np.empty((rounds + 1, len(places)), dtype=np.int64)
        if not k:
            np.add(places, np.arange(rounds + 1)[:, None], out=at)
            return np.minimum(at, ends, out=at)
        table, at[0] = self.following(proposer, k), places
        for i in range(rounds):
            table.take(at[i], out=at[i + 1], mode="clip")
        return at
