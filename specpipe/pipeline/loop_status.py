"""A worker's engine as others see it: the driver, and Prometheus."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from specpipe.core import Evidence
from specpipe.telemetry.timeline import Sample


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopStatus:
    """A worker at a glance."""

    running: int
    waiting: int
    k: int
    """Of the latest round."""
    rows_done: int
    output_tokens: int
    drafts: int
    accepted_tokens: int
    in_step_s: float
    """Seconds that the present engine step has taken so far; 0.0 while idle. Grows without end when a device hangs."""
    samples: tuple[Sample, ...]
    evidence: Evidence = field(default_factory=Evidence)
    """For the policy: what rounds have shown since the last status or report."""
    notes: tuple[str, ...] = ()
    """What the driver should log, since the last time: a batch that was halved, the stacks of a step that hangs."""


class EngineGauges(NamedTuple):
    """An engine as of now; the names of its metrics."""

    queue_depth: float
    """Of the ruling plan."""
    running_rows: int
    waiting_rows: int
    slots: int
    kv_pages_used: int
    kv_pages: int
    step_seconds: float
    """That the present step has taken so far; 0.0 while idle."""
