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
        self._costs: dict[tuple[ProposerName, int, int], Array] = {}
        """Rounds, and sums of their reciprocal seconds, rows and contexts; by proposer, K and bits of the rows."""
        self._verified: dict[ProposerName, AcceptanceCounts] = {}
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
        self._running, self._behind = step.running, step.draft_behind
        if step.k:
            self._verified[step.proposer] = _counts(step) + self._verified.get(step.proposer, AcceptanceCounts())
        if step.round_s > 0:
            shape = step.proposer, step.k, step.running.bit_length()
            sums = np.array((1.0, 1 / step.round_s, step.running, step.context))
            self._costs[shape] = self._costs.get(shape, 0.0) + sums

    def take(self) -> Evidence:
        """Returns and clears the sums."""
        evidence = Evidence(
            verified=self._verified,
            costs=tuple(
                CostPoint(
                    proposer=proposer,
                    k=k,
                    running=round(running / rounds),
                    context=context / rounds,
                    rounds=round(rounds),
                    # The harmonic mean gives little weight to a few slow rounds, as a busy machine has them.
                    seconds=rounds**2 / rate,
                )
                for (proposer, k, _), (rounds, rate, running, context) in (
                    (shape, sums.tolist()) for shape, sums in self._costs.items()
                )
            ),
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
