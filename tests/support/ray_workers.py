"""A backend of Ray workers whose parts a test builds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager

from specpipe.job import JobSpec
from specpipe.pipeline.cluster.backend import RayBackend
from specpipe.pipeline.cluster.placement import Placement
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.messages import Pool
from specpipe.pipeline.worker.config import WorkerConfig, WorkerParts


class RayWorkers:
    def __init__(self, build_parts: Callable[[WorkerConfig], WorkerParts]) -> None:
        """`build_parts` runs in the worker and must be picklable."""
        self._ray, self._build_parts = RayBackend(), build_parts

    @property
    def waits_for(self) -> str:
        return self._ray.waits_for

    def connect(self, job: JobSpec) -> AbstractContextManager[Placement]:
        return self._ray.connect(job)

    def pool(self, config: WorkerConfig, placement: Placement) -> Pool:
        return self._ray.pool(dataclasses.replace(config, build_parts=self._build_parts), placement)

    def watcher(self, config: WorkerConfig) -> Callable[[Progress], None]:
        return self._ray.watcher(config)
