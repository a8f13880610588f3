"""Totals of an engine since its start, updated after every step. They feed the Prometheus metrics."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections import Counter, defaultdict

from specpipe.core import AcceptanceCounts, Completion, DraftSource, StepReport
from specpipe.telemetry.metrics import ROUND_SECONDS


class EngineTotals:
    """Sums over engine steps. Not thread-safe: the caller holds a lock."""

    def __init__(self) -> None:
        self.finished: Counter[str] = Counter()
        """Rows that ended, by finish_reason."""
        self.input_tokens = 0
        """Prompt tokens of those rows."""
        self.output_tokens = 0
        """Generated tokens of all rows, unfinished ones included."""
        self.scored_tokens = 0
        """Scored tokens of all rows, unfinished ones included."""
        self.preemptions = 0
        self.rounds = 0
        self.k = 0
        """K of the latest round."""
        self.by_source: dict[DraftSource, AcceptanceCounts] = {}
        self.phases: defaultdict[str, float] = defaultdict(float)
        """Seconds by phase."""
        self.round_buckets = [0] * (len(ROUND_SECONDS) + 1)
        """Rounds by seconds without prefill: bucket i counts up to ROUND_SECONDS[i], the last one longer rounds."""

    @property
    def rows(self) -> int:
        """Rows that ended."""
        return sum(self.finished.values())

    @property
    def verified(self) -> AcceptanceCounts:
        """Acceptance of all drafts."""
        return sum(self.by_source.values(), AcceptanceCounts())

    def add(self, step: StepReport) -> None:
        """Adds a step and its completions."""
        self.k = step.k
        for part in step.shards.values():
            self.output_tokens += part.emitted_tokens
            self.scored_tokens += part.scored_tokens
            self.preemptions += part.preemptions
            for source, counts in part.by_source.items():
                self.by_source[source] = self.by_source.get(source, AcceptanceCounts()) + counts
        for phase, seconds in step.phases.items():
            self.phases[phase] += seconds
        if step.running:
            self.rounds += 1
            round_s = step.seconds - step.phases.get("prefill", 0.0)
            self.round_buckets[bisect_left(ROUND_SECONDS, round_s)] += 1
        for completion in step.completions:
            self.add_completion(completion)

    def add_completion(self, completion: Completion) -> None:
        """Adds a finished row."""
        self.finished[completion.finish_reason] += 1
        self.input_tokens += len(completion.request.prompt_token_ids)

    def copy(self) -> EngineTotals:
        """Returns an independent copy."""
        twin = copy.copy(self)
        twin.finished, twin.phases = self.finished.copy(), self.phases.copy()
        twin.by_source = self.by_source.copy()
        twin.round_buckets = self.round_buckets.copy()
        return twin
