"""What an engine has done since it was built: sums, cheap enough to be kept every step."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections import Counter, defaultdict

from specpipe.core import AcceptanceCounts, Completion, StepReport
from specpipe.telemetry.metrics import ROUND_SECONDS


class EngineTotals:
    """Not thread-safe: the caller holds a lock."""

    def __init__(self) -> None:
        self.finished: Counter[str] = Counter()
        """Rows that ended, by finish_reason."""
        self.input_tokens = 0
        """Of those rows."""
        self.output_tokens = 0
        """Of all rows, as they came."""
        self.preemptions = 0
        self.rounds = 0
        self.k = 0
        """Of the latest round."""
        self.verified = AcceptanceCounts()
        self.phases: defaultdict[str, float] = defaultdict(float)
        """Seconds."""
        self.round_buckets = [0] * (len(ROUND_SECONDS) + 1)
        """Rounds by their seconds, prefill excluded: up to ROUND_SECONDS[i]; the last bucket is beyond all."""

    @property
    def rows(self) -> int:
        return sum(self.finished.values())

    def add(self, step: StepReport) -> None:
        """Take in a step, the rows that it ended included."""
        self.k = step.k
        for part in step.shards.values():
            self.output_tokens += part.emitted_tokens
            self.preemptions += part.preemptions
            if part.verified.drafts:
                self.verified += part.verified
        for phase, seconds in step.phases.items():
            self.phases[phase] += seconds
        if step.running:
            self.rounds += 1
            round_s = step.seconds - step.phases.get("prefill", 0.0)
            self.round_buckets[bisect_left(ROUND_SECONDS, round_s)] += 1
        for completion in step.completions:
            self.add_completion(completion)

    def add_completion(self, completion: Completion) -> None:
        """Take in a row's end."""
        self.finished[completion.finish_reason] += 1
        self.input_tokens += len(completion.request.prompt_token_ids)

    def copy(self) -> EngineTotals:
        """As they are now."""
        twin = copy.copy(self)
        twin.finished, twin.phases = self.finished.copy(), self.phases.copy()
        twin.round_buckets = self.round_buckets.copy()
        return twin
