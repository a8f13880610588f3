"""Tests of --retry-failed: only rows with an error run again."""

from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from support.fake_engine import FakeEngine
from support.fake_workers import InProcessBackend, fake_parts, make_job, outputs, write_rows

from specpipe.core import Request
from specpipe.job import JobSpec
from specpipe.pipeline.run.run import RunResult, execute
from specpipe.pipeline.store.verify import verify
from specpipe.pipeline.worker.config import WorkerConfig, WorkerParts

SICK = {"7", "8", "21"}


class Sick(FakeEngine):
    """Fails the rows named, as a device that computes NaN does; remembers what it was given."""

    def __init__(self, engine: FakeEngine, sick: set[str], seen: list[str]) -> None:
        super().__init__(engine.config)
        self._sick, self._seen = sick, seen

    def submit(self, requests, plan) -> None:
        import dataclasses

        def shown(request: Request) -> Request:
            self._seen.append(request.request_id)
            return dataclasses.replace(request, prompt="BAD") if request.request_id in self._sick else request

        super().submit([shown(request) for request in requests], plan)


def run(job: JobSpec, sick: set[str] = frozenset(), *, retry_failed: bool = False) -> tuple[RunResult, list[str]]:
    seen: list[str] = []

    def build_parts(config: WorkerConfig) -> WorkerParts:
        parts = fake_parts(config)
        return WorkerParts(engine=Sick(parts.engine, sick, seen), builder=parts.builder, facts=parts.facts)

    return execute(job, backend=InProcessBackend(build_parts=build_parts), retry_failed=retry_failed), seen


def test_retry_runs_only_failed_rows_and_completes_the_output(tmp_path: Path) -> None:
    job = make_job(tmp_path, "output.keep_columns=[tag]")
    first, _ = run(job, SICK)
    assert (first.summary["failed"], first.exit_code) == (3, 3)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out/outputs").iterdir()}
    again, seen = run(job, retry_failed=True)
    assert (again.state, again.exit_code, set(seen)) == ("complete", 0, SICK)
    assert again.summary["completed"] == 24
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out/outputs").iterdir()}
    assert sum(after[name] != at for name, at in before.items()) in (2, 3)  # 7 and 8 may share a shard
    sound = make_job(tmp_path, "output.keep_columns=[tag]", f"output.path={tmp_path / 'sound'}")
    run(sound)
    assert outputs(tmp_path / "out").equals(outputs(tmp_path / "sound"))
    assert verify(str(tmp_path / "out")).complete


def test_rows_that_fail_again_keep_their_error(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 24, r2=None)
    job = make_job(tmp_path)
    run(job, SICK)
    whole = outputs(tmp_path / "out")
    again, seen = run(job, SICK - {"8"}, retry_failed=True)
    assert (set(seen), again.summary["failed"]) == (SICK, 3)
    table = outputs(tmp_path / "out")
    failed = [i for i, error in enumerate(table["error"].to_pylist()) if error]
    assert failed == [2, 7, 21]
    sound = [i for i in range(24) if i not in (7, 8, 21)]
    assert table.take(sound).equals(whole.take(sound))
    assert verify(str(tmp_path / "out")).complete


def test_nothing_runs_without_the_option_or_failed_rows(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    run(job, SICK)
    assert run(job)[0].state == "already complete"
    run(job, retry_failed=True)
    result, seen = run(job, retry_failed=True)
    assert (result.state, seen) == ("already complete", [])


def test_missing_shards_run_beside_failed_rows(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    run(job, SICK)
    gone = tmp_path / "out/outputs/part-00000.parquet"
    rows = {str(i) for i in range(pq.read_metadata(gone).num_rows)}
    gone.unlink()
    result, seen = run(job, retry_failed=True)
    assert (result.summary["completed"], set(seen)) == (24, SICK | rows)
    assert verify(str(tmp_path / "out")).complete


def test_damaged_part_runs_all_of_its_rows(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    run(job, {"0"})
    part = tmp_path / "out/outputs/part-00000.parquet"
    rows = pq.read_metadata(part).num_rows
    broken = bytearray(part.read_bytes())
    broken[120] ^= 1
    part.write_bytes(bytes(broken))
    _, seen = run(job, retry_failed=True)
    assert len(seen) == rows
    assert verify(str(tmp_path / "out")).complete


def test_retry_with_dying_workers_loses_no_row(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    run(job, SICK)
    dying = InProcessBackend(build_parts=partial(fake_parts, fail_at_step=1))
    assert execute(job, backend=dying, retry_failed=True).exit_code == 3
    assert verify(str(tmp_path / "out")).verified_rows == 24
    assert run(job, retry_failed=True)[0].summary["completed"] == 24
