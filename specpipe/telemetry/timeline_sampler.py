"""Timeline of one worker: sums engine steps into intervals."""

from __future__ import annotations

from collections import Counter, deque

from specpipe.core import SpeculationPlan, StepReport
from specpipe.telemetry.timeline_interval import TimelineInterval

_KEPT = 3600  # intervals that a worker keeps for a driver that reads them late


class _OpenInterval:
    """Sums of the open interval."""

    def __init__(self, second: int) -> None:
        self.second = second
        self.seconds = self.row_seconds = 0.0
        self.rounds = self.row_rounds = self.k_rows = 0
        self.drafts = self.draft_tokens = self.accepted = self.followed = self.output = 0
        self.waiting = self.slots = 0
        self.queue_depth = self.expected = 0.0
        self.proposers: Counter[str] = Counter()
        self.reason = ""

    def add(self, step: StepReport, plan: SpeculationPlan | None, queue_depth: float) -> None:
        """Adds a step that ended in this interval."""
        self.seconds += step.seconds
        self.row_seconds += step.seconds * step.running
        self.rounds += step.running > 0
        self.row_rounds += step.running
        self.k_rows += step.k * step.speculating
        for part in step.shards.values():
            self.drafts += part.verified.drafts
            self.draft_tokens += part.verified.draft_tokens
            self.accepted += part.verified.accepted_tokens
            self.followed += sum(
                counts.accepted_tokens for name, counts in part.by_source.items() if name in ("reference", "corpus")
            )
            self.output += part.emitted_tokens
        self.waiting, self.slots, self.queue_depth = step.waiting, step.slots, queue_depth
        if step.k:
            self.proposers[step.proposer] += step.speculating
        if plan is not None:
            self.expected += step.seconds * plan.expected_tokens_per_s(step.running)
            self.reason = plan.reason

    def close(self, *, epoch: int, worker: str, interval_s: int) -> TimelineInterval:
        """Returns the finished interval."""
        return TimelineInterval(
            second=self.second,
            interval_s=interval_s,
            epoch=epoch,
            worker=worker,
            queue_depth=self.queue_depth,
            slots=self.slots,
            occupancy=self.row_seconds / self.seconds if self.seconds else 0.0,
            waiting=self.waiting,
            k=self.k_rows / self.row_rounds if self.row_rounds else 0.0,
            rounds=self.rounds,
            drafts=self.drafts,
            draft_tokens=self.draft_tokens,
            accepted_tokens=self.accepted,
            followed_tokens=self.followed,
            acceptance_rate=self.accepted / self.draft_tokens if self.draft_tokens else 0.0,
            acceptance_length=1.0 + (self.accepted / self.drafts if self.drafts else 0.0),
            output_tokens=self.output,
            tokens_per_s=self.output / interval_s,
            expected_tokens_per_s=self.expected / self.seconds if self.seconds else 0.0,
            proposer=max(self.proposers, key=self.proposers.__getitem__, default="none"),
            plan_reason=self.reason,
        )


class TimelineSampler:
    """Sums the steps of one worker into intervals. Not thread-safe: the caller holds a lock."""

    def __init__(self, *, worker: str, epoch: int, interval_s: int = 1) -> None:
        self._worker, self._epoch, self._interval_s = worker, epoch, interval_s
        self._closed: deque[TimelineInterval] = deque(maxlen=_KEPT)
        self._open: _OpenInterval | None = None

    def add(self, step: StepReport, *, queue_depth: float, now: float, plan: SpeculationPlan | None = None) -> None:
        """Adds a step that ended at `now` (Unix seconds). `plan`: the plan in force during the step."""
        second = int(now) // self._interval_s * self._interval_s
        if self._open is None or self._open.second != second:
            self._close()
            self._open = _OpenInterval(second)
        self._open.add(step, plan, queue_depth)

    def since(self, second: int, *, now: float) -> list[TimelineInterval]:
        """Returns the finished intervals that began after `second` (Unix seconds)."""
        if self._open is not None and self._open.second + self._interval_s <= now:
            self._close()
        return [interval for interval in self._closed if interval.second > second]

    def _close(self) -> None:
        if self._open is not None:
            interval = self._open.close(epoch=self._epoch, worker=self._worker, interval_s=self._interval_s)
            self._closed.append(interval)
            self._open = None
