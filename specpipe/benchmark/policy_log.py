"""Evidence of simulated rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specpipe.benchmark.policy_draws import Draws, Ints
from specpipe.benchmark.policy_scenarios import Scenario
from specpipe.benchmark.policy_stretch import Stretch
from specpipe.core import AcceptanceCounts, Evidence, PrefillPoint, ProposerName
from specpipe.speculation.evidence import RoundSum, Shape
from specpipe.speculation.prefill_cost import size_of


class RoundLog:
    """What simulated rounds show to those who measure them."""

    def __init__(self, scenario: Scenario, draws: Draws) -> None:
        self._scenario, self._draws = scenario, draws
        self._played: dict[ProposerName, list[Stretch]] = {}
        """With drafts."""
        self._costs: dict[Shape, RoundSum] = {}
        self._ended = [0, 0, 0]
        self._prefills: dict[int, PrefillPoint] = {}
        """By size."""
        self._running = 0

    def add(self, stretch: Stretch, seconds: Sequence[float], prefills: Sequence[PrefillPoint] = ()) -> None:
        """As measured: `seconds` [m], 0 for those that say nothing, and what the draft caught up."""
        if stretch.k:
            self._played.setdefault(stretch.proposer, []).append(stretch)
        for took, running, context in zip(seconds, stretch.running.tolist(), stretch.context.tolist(), strict=True):
            if took:
                shape = Shape.of(stretch.proposer, stretch.k, running)
                self._costs.setdefault(shape, RoundSum()).add(took, running, context)
        for point in prefills:
            size = size_of(point.tokens)
            self._prefills[size] = point + self._prefills[size] if size in self._prefills else point
        self._running = int(stretch.running[-1])
        if len(ended := stretch.ended):
            scenario = self._scenario
            for i, value in enumerate((len(ended), scenario.input[ended].sum(), scenario.output[ended].sum())):
                self._ended[i] += int(value)

    def evidence(self, behind: float = 0.0) -> Evidence:
        """behind: `Evidence.draft_behind`."""
        return Evidence(
            verified={who: self._counts(who, played) for who, played in self._played.items()},
            rounds={who: sum(stretch.rounds for stretch in played) for who, played in self._played.items()},
            row_rounds={
                who: sum(int(stretch.running.sum()) for stretch in played) for who, played in self._played.items()
            },
            costs=tuple(cost.point(shape) for shape, cost in self._costs.items()),
            rows=self._ended[0],
            input_tokens=self._ended[1],
            output_tokens=self._ended[2],
            draft_prefills=tuple(self._prefills.values()),
            running=self._running,
            draft_behind=behind,
        )

    def _counts(self, proposer: ProposerName, played: list[Stretch]) -> AcceptanceCounts:
        """What the engine would report of these rounds."""
        widest = max(stretch.k for stretch in played)
        by_kind = np.zeros((widest + 1) ** 2, dtype=np.int64)  # rounds of rows by drafts and by how many were accepted
        for stretch in played:
            room, accepted = self._drafts(stretch)
            by_kind += np.bincount(room * (widest + 1) + accepted, minlength=len(by_kind))
        counts = by_kind.reshape(widest + 1, widest + 1)
        drafts, accepts = counts.sum(axis=1), counts.sum(axis=0)
        at_least = counts[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]  # so many drafts, and so many accepted
        position = np.arange(widest)
        return AcceptanceCounts(
            drafts=int(drafts[1:].sum()),
            draft_tokens=int(drafts @ np.arange(widest + 1)),
            accepted_tokens=int(accepts @ np.arange(widest + 1)),
            proposed_per_position=tuple(at_least[1:, 0].tolist()),
            reached_per_position=tuple(at_least[position + 1, position].tolist()),
            accepted_per_position=tuple(at_least[position + 1, position + 1].tolist()),
        )

    def _drafts(self, stretch: Stretch) -> tuple[Ints, Ints]:
        """→ drafts of each row and round, and how many of them were accepted."""
        at, runs = stretch.paths.at, stretch.left > 0
        room = np.minimum(stretch.left - 1, stretch.k)
        if stretch.late is not None:
            room[:, stretch.late] = 0
        if stretch.proposer != "draft":
            room[~self._draws.found(stretch.proposer, at[:-1])] = 0
        return room[runs], (np.diff(at, axis=0) - 1)[runs]
