"""Evidence from engine steps, summed between two reports."""

from __future__ import annotations

from collections import Counter
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

    def plus(self, step: StepReport) -> RoundSum:
        """Returns the sums with one more round."""
        return RoundSum(
            self.rounds + 1, self.rate + 1 / step.round_s, self.running + step.running, self.context + step.context
        )

    def point(self, shape: RoundShape) -> CostPoint:
        """Returns the rounds as one cost point with mean rows and context."""
        return CostPoint(
            proposer=shape.proposer,
            k=shape.k,
            running=round(self.running / self.rounds),
            context=self.context / self.rounds,
            rounds=self.rounds,
            seconds=self.rounds**2 / self.rate,
        )


def _of_whole_rounds(counts: AcceptanceCounts, k: int) -> AcceptanceCounts:
    """Returns the counts as if every draft had K tokens, of which those that it lacks are rejected.

    Rows of several sources have drafts of different lengths: those that reach a late position are not like the others.
    """
    accepted = (*counts.accepted_per_position, *[0] * k)[:k]
    reached = (counts.drafts, *accepted[:-1])
    return replace(counts, reached_per_position=reached, accepted_per_position=accepted)


class EvidenceLog:
    """Sums steps between two calls of `take`. One owner, no lock; the size is bounded by the number of round shapes."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._costs: dict[RoundShape, RoundSum] = {}
        self._verified: dict[ProposerName, AcceptanceCounts] = {}
        self._rounds: Counter[ProposerName] = Counter()
        self._row_rounds: Counter[ProposerName] = Counter()
        self._rows = self._input_tokens = self._output_tokens = self._prefill_tokens = self._running = 0
        self._prefill_s = self._behind = 0.0

    def add(self, step: StepReport) -> None:
        """Adds one engine step."""
        self._output_tokens += sum(part.emitted_tokens for part in step.shards.values())
        self._prefill_tokens += step.draft_prefill_tokens
        self._prefill_s += step.draft_prefill_s
        for completion in step.completions:
            if completion.finish_reason not in ("scored", "error"):
                self._rows += 1
                self._input_tokens += len(completion.request.prompt_token_ids)
        if not step.running:
            return
        self._running, self._behind, who = step.running, step.draft_behind, step.proposer
        if step.k:
            counts = sum((part.verified for part in step.shards.values()), AcceptanceCounts())
            if who in ("replay", "joined"):
                counts = _of_whole_rounds(counts, step.k)
            self._verified[who] = counts + self._verified.get(who, AcceptanceCounts())
            self._rounds[who] += 1
            self._row_rounds[who] += step.speculating
        if step.round_s > 0:
            shape = RoundShape(who, step.k, step.running.bit_length())
            self._costs[shape] = self._costs.get(shape, RoundSum()).plus(step)

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
            draft_prefill_tokens=self._prefill_tokens,
            draft_prefill_s=self._prefill_s,
            running=self._running,
            draft_behind=self._behind,
        )
        self._clear()
        return evidence
