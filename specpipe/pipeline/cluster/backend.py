"""Backends: where the workers of a run are placed and run. Ray in a run, the test process in most tests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from specpipe.job import JobSpec
from specpipe.pipeline.cluster.metrics_export import Exporter, run_values
from specpipe.pipeline.cluster.placement import Placement
from specpipe.pipeline.cluster.ray_cluster import connected, ray_start
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.messages import Pool
from specpipe.pipeline.worker.config import WorkerConfig
from specpipe.telemetry.metrics import run_label


class Backend(Protocol):
    """A place for workers."""

    @property
    def waits_for(self) -> str:
        """The step that `connect` waits for, such as "starting Ray"; "" if it returns at once."""

    def connect(self, job: JobSpec) -> AbstractContextManager[Placement]:
        """Provides resources for the job while the block lasts. Raises MachineError when there are not enough."""

    def pool(self, config: WorkerConfig, placement: Placement) -> Pool:
        """Returns the pool that spawns the workers of a start."""

    def watcher(self, config: WorkerConfig) -> Callable[[Progress], None]:
        """Returns a callback that receives the run's progress beside the user's display."""


@dataclass(frozen=True, slots=True)
class RayBackend:
    """Workers as Ray actors."""

    verbose: bool = False
    """Show the logs of workers and Ray."""
    json_logs: bool = False
    """Workers log JSON, into Ray's log files only: when shown here, Ray puts a prefix before each line."""

    @property
    def waits_for(self) -> str:
        """Ray's start on this machine, or the cluster that RAY_ADDRESS names."""
        return ray_start()

    def connect(self, job: JobSpec) -> AbstractContextManager[Placement]:
        """Connects to Ray while the block lasts; see `ray_cluster.connected`."""
        return connected(job, verbose=self.verbose and not self.json_logs)

    def pool(self, config: WorkerConfig, placement: Placement) -> Pool:
        """Returns a pool of Ray actors."""
        from specpipe.pipeline.cluster.ray_pool import RayPool

        return RayPool(config, gpus=placement.gpus, cpus=placement.cpus, json_logs=self.json_logs)

    def watcher(self, config: WorkerConfig) -> Callable[[Progress], None]:
        """Returns a callback that exports the run's metrics on Ray's Prometheus endpoint."""
        exporter = Exporter(run=run_label(config.job.name, config.run_id))
        return lambda progress: exporter.export(run_values(progress))
