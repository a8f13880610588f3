"""Evidence from engine steps, summed between two reports."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from specpipe.core import AcceptanceCounts, Completion, CostPoint, Evidence, PrefillPoint, ProposerName, StepReport
from specpipe.speculation.estimates.prefill_cost import size_octave

POINTS = 64
"""Largest number of cost points in one Evidence; the rest stays for the next one."""
_OCTAVE = 4  # row buckets per doubling
_OUTLIER = 1.3  # times the typical seconds from which a round is clipped
_UP, _DOWN = 0.1, 0.5  # steps of the typical seconds towards a longer and a shorter round


class RoundShape(NamedTuple):
    """Class of rounds with about the same cost."""

    proposer: ProposerName
    k: int
    bucket: int
    """Quarter octave of the rows."""

    @staticmethod
    @lru_cache(maxsize=4096)  # called for every round
    def of(proposer: ProposerName, k: int, running: int) -> RoundShape:
        """Returns the shape of a round with this many rows."""
        return RoundShape(proposer, k, round(_OCTAVE * math.log2(running)))


class TypicalRounds:
    """Typical seconds by round shape. A round that takes far longer was delayed by something other than its K."""

    def __init__(self) -> None:
        self._seconds: dict[RoundShape, float] = {}

    def clip(self, shape: RoundShape, seconds: float) -> float:
        """Returns the seconds of a round, limited to _OUTLIER times the typical ones.

        A lasting slowdown becomes typical within some rounds. Returns 0 for the first round of a shape: it includes
        compilation and allocations.
        """
        typical = self._seconds.get(shape)
        if typical is None:
            self._seconds[shape] = seconds
            return 0.0
        seconds = min(seconds, _OUTLIER * typical)
        self._seconds[shape] = typical + (seconds - typical) * (_DOWN if seconds < typical else _UP)
        return seconds


@dataclass(slots=True)
class RoundSum:
    """Sums over rounds of one shape."""

    rounds: int = 0
    seconds: float = 0.0
    running: int = 0
    context: float = 0.0

    def add(self, seconds: float, running: int, context: float) -> None:
        """Adds one round."""
        self.rounds += 1
        self.seconds += seconds
        self.running += running
        self.context += context

    def __add__(self, other: RoundSum) -> RoundSum:
        """Returns the sum over the rounds of both."""
        return RoundSum(
            rounds=self.rounds + other.rounds,
            seconds=self.seconds + other.seconds,
            running=self.running + other.running,
            context=self.context + other.context,
        )

    def point(self, shape: RoundShape) -> CostPoint:
        """Returns the rounds as one cost point with mean rows and context."""
        return CostPoint(
            proposer=shape.proposer,
            k=shape.k,
            running=round(self.running / self.rounds),
            context=self.context / self.rounds,
            rounds=self.rounds,
            seconds=self.seconds,
        )


class EvidenceLog:
    """Sums steps between two calls of `take`. One owner, no lock; the size is bounded by the number of round shapes."""

    def __init__(self) -> None:
        self._typical = TypicalRounds()
        self._costs: dict[RoundShape, RoundSum] = {}
        self._clear()

    def _clear(self) -> None:
        """Resets all sums except those of costs that did not fit into the last Evidence."""
        self._verified: dict[ProposerName, AcceptanceCounts] = {}
        self._rounds: dict[ProposerName, int] = {}
        self._row_rounds: dict[ProposerName, int] = {}
        self._rows = self._input_tokens = self._output_tokens = 0
        self._prefills: dict[int, PrefillPoint] = {}
        """By octave of tokens."""
        self._running, self._behind, self._left = 0, 0.0, 0.0

    def add(self, step: StepReport) -> None:
        """Adds one engine step."""
        if step.k:
            self._add_drafts(step)
        if step.running and step.round_s > 0:
            self._add_cost(step)
        if step.running:
            self._running, self._behind, self._left = step.running, step.draft_behind, step.left
        if step.draft_prefill_tokens and step.draft_prefill_s > 0:
            self._add_prefill(step)
        for completion in step.completions:
            self._add_row(completion)

    def _add_drafts(self, step: StepReport) -> None:
        who = step.proposer
        for part in step.shards.values():
            self._verified[who] = self._verified.get(who, AcceptanceCounts()) + part.verified
        self._rounds[who] = self._rounds.get(who, 0) + 1
        self._row_rounds[who] = self._row_rounds.get(who, 0) + step.speculating

    def _add_cost(self, step: StepReport) -> None:
        shape = RoundShape.of(step.proposer, step.k, step.running)
        if not (seconds := self._typical.clip(shape, step.round_s)):
            return
        self._costs.setdefault(shape, RoundSum()).add(seconds, step.running, step.context)

    def _add_prefill(self, step: StepReport) -> None:
        """Adds the draft prefill of a step, which is one forward."""
        point = PrefillPoint(forwards=1, tokens=step.draft_prefill_tokens, seconds=step.draft_prefill_s)
        size = size_octave(point.tokens)
        self._prefills[size] = self._prefills[size] + point if size in self._prefills else point

    def _add_row(self, completion: Completion) -> None:
        if completion.finish_reason == "error":
            return
        self._rows += 1
        self._input_tokens += len(completion.request.prompt_token_ids)
        self._output_tokens += len(completion.token_ids)

    def take(self) -> Evidence:
        """Returns and clears the sums; costs of at most POINTS shapes, those with most rounds."""
        shapes = sorted(self._costs, key=lambda shape: -self._costs[shape].rounds)[:POINTS]
        evidence = Evidence(
            verified=self._verified,
            rounds=self._rounds,
            row_rounds=self._row_rounds,
            costs=tuple(self._costs.pop(shape).point(shape) for shape in shapes),
            rows=self._rows,
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            draft_prefills=tuple(self._prefills.values()),
            running=self._running,
            draft_behind=self._behind,
            left=self._left,
        )
        self._clear()
        return evidence
