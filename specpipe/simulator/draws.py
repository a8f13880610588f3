"""Random draws of a simulated run: acceptance by row and position, so that all policies meet the same text.

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
_NO_DRAFT = -1


class Draws:
    """Draws of a scenario, shared by its workers. A position is row * stride + tokens generated."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.stride = int(scenario.output.max()) + 1
        self._rng = np.random.default_rng(scenario.seed)
        self._shape = (len(scenario.output), self.stride - 1 + scenario.max_k)
        self._accepted = self._rng.random(self._shape, dtype=np.float32)
        """[R, L + max K] uniform draws: a draft token is accepted if its draw is below the probability."""
        self._runs: dict[ProposerName, npt.NDArray[np.int8]] = {}
        self._next: dict[tuple[ProposerName, int], Ints] = {}

    @cached_property
    def _found(self) -> npt.NDArray[np.float32]:
        """[R, L + max K] uniform draws: an n-gram is found if its draw is below the coverage."""
        return self._rng.random(self._shape, dtype=np.float32)

    def _run(self, proposer: ProposerName) -> npt.NDArray[np.int8]:
        """[R, stride]: consecutive draft tokens accepted from this position on; -1 without a draft."""
        if proposer not in self._runs:
            chance = self._scenario.accepts[proposer][self._scenario.kind]
            run = np.zeros((len(chance), self.stride), dtype=np.int8)
            going = np.ones(run.shape, dtype=bool)
            for i in range(self._scenario.max_k):
                going &= self._accepted[:, i : i + self.stride] < chance[:, i : i + 1]
                run += going
            if proposer != "draft":
                coverage = self._scenario.coverage[proposer][self._scenario.kind]
                run[self._found[:, : self.stride] >= coverage[:, None]] = _NO_DRAFT
            self._runs[proposer] = run
        return self._runs[proposer]

    def found(self, proposer: ProposerName, positions: Ints) -> Mask:
        """Returns a mask of the positions that have a draft."""
        return np.asarray(self._run(proposer).ravel()[positions] != _NO_DRAFT)

    def following(self, proposer: ProposerName, k: int) -> Ints:
        """Returns [R * stride]: the position after a round of k drafts, limited by the end of the row.

        The draft model is not behind.
        """
        if (proposer, k) not in self._next:
            reached = self._after_one + np.clip(self._run(proposer), 0, k)
            ends = self._after_one[:, :1] + (self._scenario.output[:, None] - 1)
            self._next[proposer, k] = np.minimum(reached, ends, out=reached).ravel()
        return self._next[proposer, k]

    @cached_property
    def _after_one(self) -> Ints:
        """[R, stride]: the position after one more token."""
        return np.arange(1, self._shape[0] * self.stride + 1).reshape(-1, self.stride)

    def walk(self, proposer: ProposerName, k: int, positions: Ints, ends: Ints, rounds: int) -> Ints:
        """Returns [rounds + 1, n]: positions before each round and after the last; the draft model is never behind."""
        at = np.empty((rounds + 1, len(positions)), dtype=np.int64)
        if not k:
            np.add(positions, np.arange(rounds + 1)[:, None], out=at)
            return np.minimum(at, ends, out=at)
        table, at[0] = self.following(proposer, k), positions
        for i in range(rounds):
            table.take(at[i], out=at[i + 1], mode="clip")
        return at
