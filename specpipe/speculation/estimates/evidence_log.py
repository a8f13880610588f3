"""Evidence from engine steps, summed between two reports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specpipe.arrays import Array
from specpipe.core import AcceptanceCounts, CostPoint, Evidence, ProposerName, StepReport


class EvidenceLog:
    """Sums steps between two calls of `take`. One owner, no lock; the size is bounded by the number of round shapes."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._sums = Evidence()
        """All but `verified` and `costs`."""
        self._verified: dict[ProposerName, AcceptanceCounts] = {}
        self._costs: dict[tuple[ProposerName, int, int], Array] = {}
        """Rounds, and sums of their reciprocal seconds, rows and contexts; by proposer, K and bits of the rows."""

    def add(self, step: StepReport) -> None:
        """Adds one engine step."""
        before = self._sums
        ended = [row.request for row in step.completions if row.finish_reason not in ("scored", "error")]
        self._sums = Evidence(
            rows=before.rows + len(ended),
            input_tokens=before.input_tokens + sum(len(request.prompt_token_ids) for request in ended),
            output_tokens=before.output_tokens + sum(part.emitted_tokens for part in step.shards.values()),
            draft_prefill_tokens=before.draft_prefill_tokens + step.draft_prefill_tokens,
            draft_prefill_s=before.draft_prefill_s + step.draft_prefill_s,
            running=step.running or before.running,
            draft_behind=step.draft_behind if step.running else before.draft_behind,
        )
        if step.running and step.k:
            self._verified[step.proposer] = _counts(step) + self._verified.get(step.proposer, AcceptanceCounts())
        if step.running and step.round_s > 0:
            shape = step.proposer, step.k, step.running.bit_length()
            sums = np.array((1.0, 1 / step.round_s, step.running, step.context))
            self._costs[shape] = self._costs.get(shape, 0.0) + sums

    def take(self) -> Evidence:
        """Returns and clears the sums."""
        points = (_point(proposer, k, *sums.tolist()) for (proposer, k, _), sums in self._costs.items())
        evidence = replace(self._sums, verified=self._verified, costs=tuple(points))
        self._clear()
        return evidence


def _point(proposer: ProposerName, k: int, rounds: float, rate: float, running: float, context: float) -> CostPoint:
    """Returns rounds of one shape as one cost point with mean rows and context."""
    return CostPoint(
        proposer=proposer,
        k=k,
        running=round(running / rounds),
        context=context / rounds,
        rounds=round(rounds),
        seconds=rounds**2 / rate,  # the harmonic mean gives little weight to a few slow rounds, as on a busy machine
    )


def _counts(step: StepReport) -> AcceptanceCounts:
    """Returns the acceptance of a round with K > 0. Drafts that are looked up count as if all had K tokens.

    A row without a match, and tokens that a draft lacks, count as rejected: rows that reach a late position are not
    like the others. With the draft model, a row lacks a draft only while it is being caught up.
    """
    counts = sum((part.verified for part in step.shards.values()), AcceptanceCounts())
    if step.proposer == "draft":
        return counts
    accepted = (*counts.accepted_per_position, *[0] * step.k)[: step.k]
    reached = (max(step.speculating, counts.drafts), *accepted[:-1])
    return replace(counts, reached_per_position=reached, accepted_per_position=accepted)
