"""Where workers run: Ray, or what a test puts in its place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from specpipe.job import JobSpec
from specpipe.pipeline.cluster.metrics_export import Exporter, run_values
from specpipe.pipeline.cluster.placement import Placement
from specpipe.pipeline.cluster.ray_cluster import connected
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.messages import Pool
from specpipe.pipeline.worker.config import WorkerConfig
from specpipe.telemetry.metrics import run_label


class Backend(Protocol):
    """Where workers run."""

    def connect(self, job: JobSpec) -> AbstractContextManager[Placement]:
        """Resources for this job, for as long as the block lasts."""

    def pool(self, config: WorkerConfig, placement: Placement) -> Pool: ...

    def watcher(self, config: WorkerConfig) -> Callable[[Progress], None]:
        """Who is told how the run goes, beside the user."""


@dataclass(frozen=True, slots=True)
class RayBackend:
    """Ray actors."""

    verbose: bool = False
    """Show the workers' and Ray's own logs."""
    json_logs: bool = False
    """Workers log JSON, to Ray's logs alone: shown here, each line would have Ray's words before it."""

    def connect(self, job: JobSpec) -> AbstractContextManager[Placement]:
        return connected(job, verbose=self.verbose and not self.json_logs)

    def pool(self, config: WorkerConfig, placement: Placement) -> Pool:
        from specpipe.pipeline.cluster.ray_pool import RayPool

        return RayPool(config, gpus=placement.gpus, cpus=placement.cpus, json_logs=self.json_logs)

    def watcher(self, config: WorkerConfig) -> Callable[[Progress], None]:
        """Metrics of the run, on Ray's Prometheus endpoint."""
        exporter = Exporter(run=run_label(config.job.name, config.run_id))
        return lambda progress: exporter.show(run_values(progress))
