"""Evidence of simulated rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from specpipe.core import AcceptanceCounts, Evidence, PrefillPoint, ProposerName
from specpipe.simulator.draws import Draws, Ints
from specpipe.simulator.scenarios import Scenario
from specpipe.simulator.segment import Segment
from specpipe.speculation.estimates.evidence_log import RoundShape, RoundSum
from specpipe.speculation.estimates.prefill_cost import size_octave


class RoundLog:
    """Sums simulated rounds into evidence, as a worker does with real ones."""

    def __init__(self, scenario: Scenario, draws: Draws) -> None:
        self._scenario, self._draws = scenario, draws
        self._drafts: dict[ProposerName, Ints] = {}
        """[max K + 2, max K + 2] row rounds by drafts + 1 and by tokens generated."""
        self._rounds: Counter[ProposerName] = Counter()
        """Rounds with K > 0."""
        self._row_rounds: Counter[ProposerName] = Counter()
        """Rows in rounds with K > 0, summed over rounds."""
        self._costs: dict[RoundShape, RoundSum] = {}
        self._rows = self._input_tokens = self._output_tokens = self._running = 0
        self._prefills: dict[int, PrefillPoint] = {}
        """By octave of tokens."""

    def add(self, segment: Segment, seconds: Sequence[float], prefills: Sequence[PrefillPoint] = ()) -> None:
        """Adds a segment. seconds [m]: as measured, 0 for rounds to ignore; prefills: of the draft model."""
        running, scenario, ended = segment.running.tolist(), self._scenario, segment.ended
        if segment.k:
            self._drafts[segment.proposer] = self._drafts.get(segment.proposer, 0) + self._counted(segment)
            self._rounds[segment.proposer] += segment.rounds
            self._row_rounds[segment.proposer] += sum(running)
        for took, rows, context in zip(seconds, running, segment.context.tolist(), strict=True):
            if took:
                shape = RoundShape.of(segment.proposer, segment.k, rows)
                self._costs.setdefault(shape, RoundSum()).add(took, rows, context)
        self._add_prefills(prefills)
        self._running = running[-1]
        if len(ended):
            self._rows += len(ended)
            self._input_tokens += int(scenario.input[ended].sum())
            self._output_tokens += int(scenario.output[ended].sum())

    def _add_prefills(self, prefills: Iterable[PrefillPoint]) -> None:
        for point in prefills:
            size = size_octave(point.tokens / point.forwards)
            self._prefills[size] = point + self._prefills[size] if size in self._prefills else point

    def _counted(self, segment: Segment) -> Ints:
        """Returns [max K + 2, max K + 2] row rounds by drafts + 1 and by tokens generated."""
        paths, size = segment.paths, self._scenario.max_k + 2
        most = np.minimum(paths.left, segment.k + 1)
        if segment.lacks_draft is not None:
            most[:, segment.lacks_draft] = 1
        if segment.proposer != "draft":
            most[~self._draws.found(segment.proposer, paths.at[:-1]) & (most > 0)] = 1
        kinds = most * size + np.diff(paths.at, axis=0)
        return np.bincount(kinds.ravel(), minlength=size**2).reshape(size, size)

    def merge(self, later: RoundLog) -> None:
        """Adds the rounds of a later log."""
        for who, counted in later._drafts.items():
            self._drafts[who] = self._drafts.get(who, 0) + counted
        self._rounds += later._rounds
        self._row_rounds += later._row_rounds
        for shape, cost in later._costs.items():
            self._costs[shape] = self._costs[shape] + cost if shape in self._costs else cost
        self._add_prefills(later._prefills.values())
        self._running = later._running or self._running
        self._rows += later._rows
        self._input_tokens += later._input_tokens
        self._output_tokens += later._output_tokens

    def evidence(self, behind: float = 0.0, left: float = 0.0) -> Evidence:
        """Returns all rounds as evidence. behind, left: mean tokens of running rows, as in `Evidence`."""
        return Evidence(
            verified={who: _counts(counted) for who, counted in self._drafts.items()},
            rounds=dict(self._rounds),
            row_rounds=dict(self._row_rounds),
            costs=tuple(cost.point(shape) for shape, cost in self._costs.items()),
            rows=self._rows,
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            draft_prefills=tuple(self._prefills.values()),
            running=self._running,
            draft_behind=behind,
            left=left,
        )


def _counts(counted: Ints) -> AcceptanceCounts:
    """Returns the counts that an engine would report for these row rounds."""
    by_drafts = counted[1:, 1:]  # [drafts, accepted]
    each = np.arange(len(by_drafts))
    at_least = (
        by_drafts[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
    )  # row rounds with at least so many drafts and accepted tokens
    proposed = at_least[1:, 0]
    widest = int(np.count_nonzero(proposed))
    return AcceptanceCounts(
        drafts=int(at_least[1, 0]),
        draft_tokens=int(proposed.sum()),
        accepted_tokens=int(by_drafts.sum(axis=0) @ each),
        proposed_per_position=tuple(proposed[:widest].tolist()),
        reached_per_position=tuple(at_least[each[1:], each[:-1]][:widest].tolist()),
        accepted_per_position=tuple(at_least[each[1:], each[1:]][:widest].tolist()),
    )
