"""Tests of the thread on which a worker builds its engine."""

import threading
from pathlib import Path

from support.fake_workers import fake_parts, make_job, worker_config

from specpipe.pipeline.worker.config import WorkerConfig, WorkerParts
from specpipe.pipeline.worker.engine_host import EngineHost
from specpipe.telemetry.timeline_sampler import TimelineSampler


def test_thread_that_built_the_engine_has_ended(tmp_path: Path) -> None:
    """OpenMP keeps threads for every thread that has computed; those beside the engine's slow its rounds down."""
    built_on: list[threading.Thread] = []

    def build(config: WorkerConfig) -> WorkerParts:
        built_on.append(threading.current_thread())
        return fake_parts(config)

    host = EngineHost(worker_config(make_job(tmp_path), build_parts=build), TimelineSampler(worker="", epoch=0))
    try:
        assert built_on[0] is not threading.current_thread() and not built_on[0].is_alive()
    finally:
        host.close()
