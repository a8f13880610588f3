"""Messages between the driver and its workers, and the interfaces through which they are sent.

A worker is a Ray actor in a run and may be a plain object in a test; both sides of every message are picklable.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from specpipe.core import Evidence, KVScaleTable, Profile, Shard, ShardReport, SpeculationPlan
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.telemetry.timeline_interval import TimelineInterval


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardOrder:
    """An order to run one shard under one plan."""

    shard: Shard
    plan: SpeculationPlan
    attempt: int
    """Number of this attempt, from 1."""
    priors: PolicyInputs | None = None
    """Estimates of the whole run, used until the worker has its own."""
    failed_only: bool = False
    """Run again only the rows of the published part that have an error, and replace the part."""
    kv_scales: KVScaleTable = field(default_factory=dict)
    """The run's scales of KV pages in 8 bits; empty without such pages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerInfo:
    """The answer of a worker that is ready for shards."""

    facts: Mapping[str, Any]
    """device, dtype, kv_dtype, host, pid, model_load_s, weights (number format and size by role), warm_up_s."""
    profile: Profile = field(default_factory=Profile)
    kv_scales: KVScaleTable = field(default_factory=dict)
    """Scales of its KV pages in 8 bits: those of the run or, in a run without, its own."""

    @property
    def hardware(self) -> str:
        """Key under which round costs are shared. It includes the host for CPUs, which differ between machines."""
        device, dtype = self.facts.get("device", ""), self.facts.get("dtype", "")
        where = f" on {self.facts.get('host', '')}" if str(device).startswith("cpu") else ""
        return f"{device}{where}, {dtype}"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerStatus:
    """The state of a worker, requested about once a second."""

    running: int
    """Rows with a slot."""
    waiting: int
    """Rows without a slot."""
    k: int
    """Draft tokens per row in the latest round."""
    rows_done: int
    input_tokens: int
    """Prompt tokens of those rows."""
    output_tokens: int
    """Generated and scored tokens."""
    drafts: int
    accepted_tokens: int
    in_step_s: float
    """Duration of the current engine step in seconds so far; 0.0 while idle. It keeps growing when a device hangs."""
    samples: tuple[TimelineInterval, ...]
    evidence: Evidence = field(default_factory=Evidence)
    """Measurements for the policy since the last status or report."""
    notes: tuple[str, ...] = ()
    """Messages for the driver's log since the last status, such as a halved batch or the stacks of a hanging step."""


class EngineGauges(NamedTuple):
    """The state of an engine. Field names are metric names without their prefix."""

    queue_depth: float
    """Queue depth that the current plan was made for, in rows."""
    running_rows: int
    waiting_rows: int
    slots: int
    kv_pages_used: int
    kv_pages: int
    step_seconds: float
    """Duration of the current step so far; 0.0 while idle."""


class WorkerHandle(Protocol):
    """Remote handle of a worker. A failed future holds a SpecpipeError; EngineError means that the worker is gone."""

    @property
    def name(self) -> str:
        """Name of the worker, unique in a run."""

    def placed(self) -> Future[None]:
        """Completes when the cluster has given the worker its resources."""

    def start(self, warm_up: ShardOrder | None) -> Future[WorkerInfo]:
        """Checks the output folder, loads the models and runs the first rows of `warm_up` without publishing them."""

    def run_shard(self, order: ShardOrder) -> Future[ShardReport]:
        """Runs a shard and publishes its part."""

    def status(self, after: int, final: bool) -> Future[WorkerStatus]:
        """Returns counters and the timeline intervals after Unix second `after`; `final` adds the unfinished one."""

    def stop(self) -> None:
        """Ends the worker at once. Never raises."""


class Pool(Protocol):
    """A source of workers."""

    def spawn(self, name: str) -> WorkerHandle:
        """Requests a new worker and returns its handle without waiting."""
