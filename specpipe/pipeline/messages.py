"""What the driver says to a worker, and what it hears back. A worker may be a Ray actor or a fake in a test."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from specpipe.core import Evidence, Profile, Shard, ShardReport, SpeculationPlan
from specpipe.speculation.observer import Priors
from specpipe.telemetry.timeline_interval import TimelineInterval


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardOrder:
    """Run this shard, under this plan."""

    shard: Shard
    plan: SpeculationPlan
    attempt: int
    """1 for the first."""
    priors: Priors = field(default_factory=Priors)
    """What the run has learnt so far: the worker leans on it until it has seen enough itself."""
    failed_only: bool = False
    """Run the rows of the published part that have an error, and publish the part anew with what became of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerInfo:
    """What a worker says once it is ready."""

    facts: Mapping[str, Any]
    """device, dtype, host, pid, model_load_s, warm_up_s."""
    profile: Profile = field(default_factory=Profile)

    @property
    def hardware(self) -> str:
        """Workers of the same have the same costs. CPUs of different machines are told apart by their host."""
        device, dtype = self.facts.get("device", ""), self.facts.get("dtype", "")
        where = f" on {self.facts.get('host', '')}" if str(device).startswith("cpu") else ""
        return f"{device}{where}, {dtype}"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerStatus:
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
    samples: tuple[TimelineInterval, ...]
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


class WorkerHandle(Protocol):
    """A worker from afar. Every future that fails does so with a SpecpipeError; EngineError says that it is gone."""

    @property
    def name(self) -> str: ...

    def placed(self) -> Future[None]:
        """Done when the worker has a place to run in; until then it waits for room."""

    def start(self, warm_up: ShardOrder | None) -> Future[WorkerInfo]:
        """Check the output folder, load the models, run the first rows of `warm_up` and throw them away."""

    def run_shard(self, order: ShardOrder) -> Future[ShardReport]: ...

    def status(self, after: int, final: bool) -> Future[WorkerStatus]:
        """Counters, and the timeline since Unix second `after`; `final`: with the interval that is not over."""

    def stop(self) -> None:
        """End it now, whatever it is doing. Never raises."""


class Pool(Protocol):
    """Where workers come from."""

    def spawn(self, name: str) -> WorkerHandle: ...
