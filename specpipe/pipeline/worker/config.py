"""Configuration of the workers of a start, and the parts that each worker builds from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specpipe.core import DeviceName, KVScaleTable, Profile
from specpipe.data import RequestBuilder
from specpipe.job import JobSpec
from specpipe.pipeline.prepare import PreparedJob
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.worker.engine_protocol import EngineProtocol


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerParts:
    """The engine of a worker and the builder of its requests."""

    engine: EngineProtocol
    builder: RequestBuilder
    facts: Mapping[str, Any]
    """device, dtype, kv_dtype, model_load_s, weights, on a GPU memory_gib."""
    profile: Profile = field(default_factory=Profile)
    """Round times measured before the first row; empty for policies that use none, or where measuring failed."""
    kv_scales: KVScaleTable = field(default_factory=dict)
    """Scales of the engine's KV pages in 8 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerConfig:
    """Configuration that all workers of a start share; picklable."""

    prepared: PreparedJob
    folder: RunFolder
    run_id: str
    epoch: int
    """Number of the start. A worker publishes only while its epoch is the folder's latest."""
    probe: str
    """Content of the probe file, by which a worker recognises the driver's output folder."""
    device: DeviceName
    threads: int
    """CPU threads of torch."""
    timeline_interval_s: int = 1
    kv_scales: KVScaleTable = field(default_factory=dict)
    """Scales of KV pages in 8 bits that the run has; others are measured."""
    answers: str = ""
    """Index of the earlier answers that rows follow, local or a URI; "" where they follow none."""
    build_parts: Callable[[WorkerConfig], WorkerParts] | None = None
    """Builds the worker's parts; None for `build.build_parts`."""

    @property
    def job(self) -> JobSpec:
        """The job, with the settings of this worker."""
        return self.prepared.job

    @property
    def stall_s(self) -> float:
        """Seconds after which an engine step counts as hung."""
        return self.job.workers.stall_seconds

    def with_engine_limits(self, *, slots: int, prefill_budget: int) -> WorkerConfig:
        """Returns the configuration with other limits of the engine. They are tuning and change no token."""
        workers = self.job.workers.model_copy(update={"slots": slots, "prefill_budget": prefill_budget})
        job = self.job.model_copy(update={"workers": workers})
        return dataclasses.replace(self, prepared=dataclasses.replace(self.prepared, job=job))
