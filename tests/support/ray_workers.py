"""Ray's workers, each put together by a test's own hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager

from specpipe.job import JobSpec
from specpipe.pipeline.assemble import Assembly, WorkerConfig
from specpipe.pipeline.cluster import Placement, RayBackend
from specpipe.pipeline.handles import Pool
from specpipe.pipeline.progress import Progress


class RayWorkers:
    def __init__(self, assemble: Callable[[WorkerConfig], Assembly]) -> None:
        """assemble: runs in the worker, so it can be pickled."""
        self._ray, self._assemble = RayBackend(), assemble

    def connect(self, job: JobSpec) -> AbstractContextManager[Placement]:
        return self._ray.connect(job)

    def pool(self, config: WorkerConfig, placement: Placement) -> Pool:
        return self._ray.pool(dataclasses.replace(config, assemble=self._assemble), placement)

    def watcher(self, config: WorkerConfig) -> Callable[[Progress], None]:
        return self._ray.watcher(config)
