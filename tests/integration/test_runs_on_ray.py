"""Real Ray, real models, real files."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from support.fake_workers import InProcessBackend, outputs
from support.ray_workers import RayWorkers

from specpipe.job import load_job
from specpipe.pipeline.cluster.placement import Placement
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.messages import Pool, ShardOrder, WorkerHandle, WorkerInfo
from specpipe.pipeline.run.run import Viewer, execute
from specpipe.pipeline.worker.build import build_parts
from specpipe.pipeline.worker.config import WorkerConfig

pytestmark = pytest.mark.usefixtures("ray_session")
WriteJob = Callable[..., Path]


def tokens(folder: Path) -> list[list[int]]:
    table = outputs(folder)
    assert table["request_id"].to_pylist() == [str(i) for i in range(table.num_rows)]
    assert set(table["error"].to_pylist()) == {""}
    return table["generated_token_ids"].to_pylist()


def test_two_workers_with_speculation_write_what_one_without_it_writes(write_job: WriteJob, tmp_path: Path) -> None:
    path = write_job(workers={"count": 2})
    result = execute(load_job(path))
    assert (result.state, result.exit_code) == ("complete", 0)
    summary = result.summary
    assert summary["spec_decode_acceptance_length"] > 1.5  # the draft is a noisy copy of the target
    assert summary["total_output_tokens"] == sum(map(len, tokens(tmp_path / "out")))
    assert sum(worker["shards"] for worker in summary["workers"].values()) == summary["total_shards"]
    plain = [f"output.path={tmp_path / 'plain'}", "speculation.policy=off", "workers.slots=7"]
    here = InProcessBackend(build_parts=build_parts)
    again = execute(load_job(path, [*plain, "workers.shard_tokens=400"]), backend=here)
    assert again.summary["spec_decode_num_drafts"] == 0
    assert tokens(tmp_path / "plain") == tokens(tmp_path / "out")


class Recording(RayWorkers):
    """Remembers which process each one is."""

    def __init__(self) -> None:
        super().__init__(build_parts)
        self.pids: list[int] = []

    def pool(self, config: WorkerConfig, placement: Placement) -> Pool:
        pool = super().pool(config, placement)
        spawn = pool.spawn

        def recorded(name: str) -> WorkerHandle:
            handle = spawn(name)
            start = handle.start

            def started(warm_up: ShardOrder | None) -> Future[WorkerInfo]:
                future = start(warm_up)
                future.add_done_callback(lambda done: self.pids.append(done.result().facts["pid"]))
                return future

            handle.start = started  # type: ignore[method-assign]
            return handle

        pool.spawn = recorded  # type: ignore[method-assign]
        return pool


@pytest.mark.slow
def test_a_killed_worker_process_costs_no_row(write_job: WriteJob, tmp_path: Path) -> None:
    backend = Recording()
    killed: list[int] = []

    def kill_one(progress: Progress) -> None:
        if progress.published_shards and not killed:
            killed.append(backend.pids[0])
            os.kill(killed[0], signal.SIGKILL)

    path = write_job(sampling={"max_new_tokens": 120})
    result = execute(load_job(path), viewer=Viewer(progress=kill_one), backend=backend)
    assert killed
    assert (result.state, len(backend.pids)) == ("complete", 2)
    assert set(result.summary["workers"]) == {"worker-0", "worker-0.2"}
    tokens(tmp_path / "out")
