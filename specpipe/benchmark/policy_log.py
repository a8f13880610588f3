"""Evidence of simulated rounds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specpipe.benchmark.policy_draws import Draws, Ints
from specpipe.benchmark.policy_scenarios import Scenario
from specpipe.benchmark.policy_worker import Stretch
from specpipe.core import AcceptanceCounts, CostPoint, Evidence, ProposerName


class RoundLog:
    """What simulated rounds show to those who measure them."""

    def __init__(self, scenario: Scenario, draws: Draws) -> None:
        self._scenario, self._draws = scenario, draws
        self._played: dict[ProposerName, list[Stretch]] = {}
        """With drafts."""
        self._costs: dict[tuple[ProposerName, int, int], list[float]] = {}
        self._ended = [0, 0, 0]
        self._caught_up = self._running = 0

    def add(self, stretch: Stretch, seconds: npt.NDArray[np.float64]) -> None:
        """`seconds` [m]: as measured; 0 for those that say nothing."""
        if stretch.k:
            self._played.setdefault(stretch.proposer, []).append(stretch)
        if count := int(np.count_nonzero(seconds)):
            cell = self._costs.setdefault((stretch.proposer, stretch.k, stretch.running), [0.0, 0.0, 0.0])
            for i, value in enumerate((count, seconds.sum(), stretch.context[seconds > 0].sum())):
                cell[i] += float(value)
        self._caught_up += stretch.draft_prefill
        self._running = stretch.running
        if len(ended := stretch.ended):
            scenario = self._scenario
            for i, value in enumerate((len(ended), scenario.input[ended].sum(), scenario.output[ended].sum())):
                self._ended[i] += int(value)

    def evidence(self, behind: float = 0.0) -> Evidence:
        """behind: `Evidence.draft_behind`."""
        costs = tuple(
            CostPoint(proposer=who, k=k, running=n, context=context / rounds, rounds=int(rounds), seconds=seconds)
            for (who, k, n), (rounds, seconds, context) in self._costs.items()
        )
        return Evidence(
            verified={who: self._counts(played) for who, played in self._played.items()},
            rounds={who: sum(stretch.rounds for stretch in played) for who, played in self._played.items()},
            row_rounds={
                who: sum(stretch.places[:-1].size for stretch in played) for who, played in self._played.items()
            },
            costs=costs,
            rows=self._ended[0],
            input_tokens=self._ended[1],
            output_tokens=self._ended[2],
            draft_prefill_tokens=self._caught_up,
            draft_prefill_s=self._caught_up * self._scenario.machine.draft_prefill,
            running=self._running,
            draft_behind=behind,
        )

    def _counts(self, played: list[Stretch]) -> AcceptanceCounts:
        """What the engine would report of these rounds."""
        widest = max(stretch.k for stretch in played)
        room = np.concatenate([self._room(stretch).ravel() for stretch in played])
        accepted = np.concatenate([np.diff(stretch.places, axis=0).ravel() for stretch in played]) - 1
        position = np.arange(widest)[:, None]
        offered = room > position
        return AcceptanceCounts(
            drafts=int(np.count_nonzero(room)),
            draft_tokens=int(room.sum()),
            accepted_tokens=int(accepted.sum()),
            proposed_per_position=tuple(offered.sum(axis=1).tolist()),
            reached_per_position=tuple((offered & (accepted >= position)).sum(axis=1).tolist()),
            accepted_per_position=tuple((accepted > position).sum(axis=1).tolist()),
        )

    def _room(self, stretch: Stretch) -> Ints:
        """→ [m, n] drafts of each row."""
        room = self._draws.offered(stretch.proposer, stretch.k, stretch.places[:-1])
        if stretch.late is not None:
            room[:, stretch.late] = 0
        return room
