"""Evidence from engine steps, summed between two reports."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from specpipe.core import AcceptanceCounts, CostPoint, Evidence, ProposerName, StepReport


class RoundShape(NamedTuple):
    """Class of rounds that are summed."""

    proposer: ProposerName
    k: int
    octave: int
    """Bits of the number of rows."""


class RoundSum(NamedTuple):
    """Sums over rounds of one shape."""

    rounds: int = 0
    rate: float = 0.0
    """Reciprocal seconds. Their mean gives little weight to a few slow rounds, as a busy machine has them."""
    running: int = 0
    context: float = 0.0

    def plus(self, seconds: float, running: int, context: float) -> RoundSum:
        """Returns the sums with one more round."""
        return RoundSum(self.rounds + 1, self.rate + 1 / seconds, self.running + running, self.context + context)

    def point(self, shape: RoundShape) -> CostPoint:
        """Returns the rounds as one cost point with mean rows and context."""
        rounds = self.rounds
        return CostPoint(
            proposer=shape.proposer,
            k=shape.k,
            running=round(self.running / rounds),
            context=self.context / rounds,
            rounds=rounds,
            seconds=rounds * rounds / self.rate,
        )


def _of_whole_rounds(counts: AcceptanceCounts, k: int) -> AcceptanceCounts:
    """Returns the counts as if every draft had K tokens, of which those that it lacks are rejected.

    Rows of several sources have drafts of different lengths: those that reach a late position are not like the others.
    """
    accepted = (*counts.accepted_per_position, *[0] * k)[:k]
    reached = (counts.drafts, *accepted[:-1])
    return replace(counts, reached_per_position=reached, accepted_per_position=accepted)


class EvidenceLog:
    """Sums steps between two calls of `take`. One owner, no lock; the size is bounded by the number of round shapes.

    The first round of a shape is left out: it includes compilation and allocations.
    """

    def __init__(self) -> None:
        self._seen: set[RoundShape] = set()
        self._clear()

    def _clear(self) -> None:
        self._costs: dict[RoundShape, RoundSum] = {}
        self._verified: dict[ProposerName, AcceptanceCounts] = {}
        self._rounds: dict[ProposerName, int] = {}
        self._row_rounds: dict[ProposerName, int] = {}
        self._rows = self._input_tokens = self._output_tokens = 0
        self._running, self._behind, self._left = 0, 0.0, 0.0

    def add(self, step: StepReport) -> None:
        """Adds one engine step."""
        if step.running:
            self._running, self._behind, self._left = step.running, step.draft_behind, step.left
        self._output_tokens += sum(part.emitted_tokens for part in step.shards.values())
        if step.running and step.k:
            who = step.proposer
            counts = sum((part.verified for part in step.shards.values()), AcceptanceCounts())
            if who in ("replay", "joined"):
                counts = _of_whole_rounds(counts, step.k)
            self._verified[who] = counts + self._verified.get(who, AcceptanceCounts())
            self._rounds[who] = self._rounds.get(who, 0) + 1
            self._row_rounds[who] = self._row_rounds.get(who, 0) + step.speculating
        if step.running and step.round_s > 0:
            shape = RoundShape(step.proposer, step.k, step.running.bit_length())
            if shape in self._seen:
                known = self._costs.get(shape, RoundSum())
                self._costs[shape] = known.plus(step.round_s, step.running, step.context)
            self._seen.add(shape)
        for completion in step.completions:
            if completion.finish_reason not in ("scored", "error"):
                self._rows += 1
                self._input_tokens += len(completion.request.prompt_token_ids)

    def take(self) -> Evidence:
        """Returns and clears the sums."""
        evidence = Evidence(
            verified=self._verified,
            rounds=self._rounds,
            row_rounds=self._row_rounds,
            costs=tuple(known.point(shape) for shape, known in self._costs.items()),
            rows=self._rows,
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            running=self._running,
            draft_behind=self._behind,
            left=self._left,
        )
        self._clear()
        return evidence
