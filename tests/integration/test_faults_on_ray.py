"""Real Ray workers are killed, hang and run out of memory; every row comes out once, and the same. Slow."""

import logging
from pathlib import Path

import pytest
from support.fake_workers import InProcessBackend, make_job, outputs
from support.faults import FaultyBackend

from specpipe.core import Shard
from specpipe.job import JobSpec
from specpipe.pipeline.cluster.placement import Placement
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.failures import StaleRunError
from specpipe.pipeline.messages import Pool, ShardOrder
from specpipe.pipeline.run.run import Viewer, execute
from specpipe.pipeline.store.verify import verify
from specpipe.pipeline.worker.config import WorkerConfig
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.policies.fixed import Fixed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]
FAULTS = ("kill", "exit", "cuda", "oom", "hang", "stop")


def job_of(folder: Path, *overrides: str, rows: int = 160) -> JobSpec:
    settings = ("workers.stall_seconds=1.5", "workers.max_attempts=9", "workers.cpus_per_worker=0.5")
    return make_job(folder, *settings, *overrides, rows=rows)


def check(folder: Path, rows: int) -> None:
    """Asserts that the run is complete and holds the tokens of a run without faults."""
    found = verify(str(folder / "out"))
    assert found.complete, "\n".join(map(str, found.findings))
    execute(job_of(folder, f"output.path={folder / 'calm'}"), backend=InProcessBackend())
    got, expected = outputs(folder / "out"), outputs(folder / "calm")
    assert got["request_id"].to_pylist() == [str(i) for i in range(rows)]
    assert got["generated_token_ids"] == expected["generated_token_ids"]


def run_with(folder: Path, faults: tuple[str, ...], *overrides: str, rows: int = 160) -> FaultyBackend:
    """Runs the job once; fault n, from 0, is injected once more than 2n shards are published."""
    backend, given = FaultyBackend(folder), []

    def inject(progress: Progress) -> None:
        if len(given) < len(faults) and progress.published_shards > 2 * len(given):
            given.append(faults[len(given)])
            backend.order(given[-1])

    result = execute(job_of(folder, *overrides, rows=rows), backend=backend, viewer=Viewer(progress=inject))
    assert (result.state, result.exit_code) == ("complete", 0)
    assert backend.struck == len(faults), f"only {given} were given"
    return backend


FAULT_LOGS = {
    "kill": ("process died",),
    "cuda": ("illegal memory access",),
    "oom": ("out of memory with 3 slots",),
    "hang": ("has taken", "in strike"),
}
"""Words of the driver's log by fault; the stack of a worker that hangs names the function."""


def test_several_faults_in_one_run_lose_no_row(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = 60 * len(FAULT_LOGS)
    with caplog.at_level(logging.WARNING):
        run_with(tmp_path, tuple(FAULT_LOGS), "workers.count=2", rows=rows)
    check(tmp_path, rows)
    for words in FAULT_LOGS.values():
        assert all(word in caplog.text for word in words)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_of_each_kind_loses_no_row(tmp_path: Path, fault: str, workers: int) -> None:
    run_with(tmp_path, (fault,), f"workers.count={workers}")
    check(tmp_path, 160)


@pytest.mark.parametrize("fault", FAULTS[:4])
def test_repeated_faults_of_one_kind_lose_no_row(tmp_path: Path, fault: str) -> None:
    run_with(tmp_path, (fault,) * (2 if fault == "oom" else 5), "workers.count=2", "workers.slots=8", rows=320)
    check(tmp_path, 320)


class Zombies(FaultyBackend):
    """Keeps the pool of a start: a worker that outlives its driver."""

    made: Pool

    def pool(self, config: WorkerConfig, placement: Placement) -> Pool:
        self.made = super().pool(config, placement)
        return self.made


def test_worker_of_an_earlier_start_publishes_nothing(tmp_path: Path) -> None:
    backend = Zombies(tmp_path)
    job = job_of(tmp_path)
    execute(job, backend=backend)
    zombie = backend.made.spawn("zombie")
    zombie.start(None).result(60)
    part = tmp_path / "out/outputs/part-00000.parquet"
    part.unlink()
    shard = Shard(index=0, file=str(tmp_path / "rows.parquet"), start=0, stop=4, first_row=0)
    plan = Fixed().plan(PolicyInputs(slots=3, queue_depth=1.0, acceptance={}))
    execute(job, backend=FaultyBackend(tmp_path))  # start 2 makes the part anew
    made = part.read_bytes()
    part.unlink()
    with pytest.raises(StaleRunError, match="now belongs to start 2 of this run; start 1 stops"):
        zombie.run_shard(ShardOrder(shard=shard, plan=plan, attempt=1)).result(60)
    assert not part.exists()
    part.write_bytes(made)
    zombie.stop()
    check(tmp_path, 160)
