"""Tests of runs in this process: real driver, workers and folder, engines without a model."""

import json
import os
import signal
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.fake_pool import driver_config
from support.fake_workers import InProcessBackend, fake_parts, make_job, outputs, write_rows

from specpipe.errors import OutputError
from specpipe.pipeline.driver.config import DriverConfig
from specpipe.pipeline.run.inspection import inspect_run
from specpipe.pipeline.run.run import Viewer, execute
from specpipe.pipeline.store.verify import verify
from specpipe.pipeline.worker.config import WorkerConfig, WorkerParts
from specpipe.telemetry.shard_record import shard_schema
from specpipe.telemetry.timeline_interval import timeline_schema


def test_run_publishes_every_row_and_all_telemetry(tmp_path: Path) -> None:
    result = execute(make_job(tmp_path, "output.keep_columns=[tag]"), backend=InProcessBackend(workers=2))
    assert (result.state, result.exit_code) == ("complete", 0)
    table = outputs(tmp_path / "out")
    assert table["request_id"].to_pylist() == [str(i) for i in range(24)]
    assert table["tag"].to_pylist() == [f"t{i}" for i in range(24)]
    shards = pq.read_table(tmp_path / "out/telemetry/shards.parquet")
    assert shards.schema.equals(shard_schema())
    assert sum(shards["rows"].to_pylist()) == 24
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary == dict(result.summary)
    assert summary["total_output_tokens"] == sum(map(len, table["generated_token_ids"].to_pylist()))
    assert summary["spec_decode_accepted_tokens"] == sum(table["accepted_tokens"].to_pylist())
    timeline = pq.read_table(tmp_path / "out/telemetry/timeline-00001.parquet")
    assert timeline.schema.equals(timeline_schema())
    assert sum(timeline["output_tokens"].to_pylist()) == summary["total_output_tokens"]
    assert summary["peak_output_throughput"] > 0


def test_samples_of_a_prompt_are_adjacent_and_reproducible(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 11, r4=None)
    job = make_job(tmp_path, "sampling.n=3", "output.keep_columns=[tag]", "output.max_failed_rows=3")
    result = execute(job, backend=InProcessBackend())
    assert (result.exit_code, result.summary["total_rows"], result.summary["failed"]) == (0, 33, 3)
    table = outputs(tmp_path / "out")
    assert table["sample"].to_pylist() == [0, 1, 2] * 11
    assert table["tag"].to_pylist() == [f"t{i}" for i in range(11) for _ in range(3)]
    assert len(set(table["seed"].to_pylist())) == 33
    assert execute(job, backend=InProcessBackend()).state == "already complete"

    execute(make_job(tmp_path, f"output.path={tmp_path}/once"), backend=InProcessBackend())
    assert (
        outputs(tmp_path / "once")["generated_token_ids"].to_pylist() == table["generated_token_ids"][::3].to_pylist()
    )


def test_complete_run_starts_no_worker(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    execute(job, backend=InProcessBackend())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.parquet")}
    backend = InProcessBackend()
    result = execute(job, backend=backend)
    assert (result.state, result.exit_code, backend.spawned) == ("already complete", 0, [])
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.parquet")} == before


def test_only_missing_and_damaged_parts_run_again(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    execute(job, backend=InProcessBackend())
    whole = outputs(tmp_path / "out")
    parts = sorted((tmp_path / "out/outputs").glob("*.parquet"))
    parts[0].unlink()
    parts[2].write_bytes(parts[2].read_bytes()[:-200])
    (tmp_path / "out/outputs/.attempt-1-part-00000.parquet").write_bytes(b"what a crash left")
    kept = parts[1].stat().st_mtime_ns
    # Tuning may change: other slots, other K, other shard size.
    again = make_job(tmp_path, "workers.slots=5", "speculation.policy=off", "workers.shard_tokens=500")
    result = execute(again, backend=InProcessBackend())
    assert (result.state, result.summary["starts"]) == ("complete", 2)
    assert parts[1].stat().st_mtime_ns == kept
    assert outputs(tmp_path / "out")["generated_token_ids"] == whole["generated_token_ids"]
    assert sorted(path.name for path in (tmp_path / "out/outputs").iterdir()) == [part.name for part in parts]
    attempts = pq.read_table(tmp_path / "out/telemetry/shards.parquet")["epoch"].to_pylist()
    assert [i for i, epoch in enumerate(attempts) if epoch == 2] == [0, 2]


def test_changed_sampling_is_refused_and_changes_no_file(tmp_path: Path) -> None:
    execute(make_job(tmp_path), backend=InProcessBackend())
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    with pytest.raises(OutputError, match=r"sampling\.temperature was 0\.0 and is 0\.7"):
        execute(make_job(tmp_path, "sampling.temperature=0.7"), backend=InProcessBackend())
    after = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {path: data for path, data in after.items() if path.name != "lock"} == {
        path: data for path, data in before.items() if path.name != "lock"
    }


def test_changed_input_is_refused_by_name(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    execute(job, backend=InProcessBackend())
    write_rows(tmp_path / "rows.parquet", 25)
    with pytest.raises(OutputError, match=r"rows\.parquet has changed \(size .*rows 24 → 25"):
        execute(job, backend=InProcessBackend())


def test_interrupted_run_resumes_without_losing_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = partial(driver_config, slots=3, poll_s=0.02)
    monkeypatch.setattr(DriverConfig, "from_job", lambda job, workers: quick(workers=workers))
    job = make_job(tmp_path, rows=60)
    sent = []

    def interrupt(progress) -> None:
        if progress.workers and not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    slow = InProcessBackend(build_parts=partial(fake_parts, step_s=0.01), waits_for="starting something")
    lines: list[str] = []
    result = execute(job, backend=slow, viewer=Viewer(announce=lines.append, progress=interrupt))
    assert lines == [f"job: 60 rows → {tmp_path / 'out'}", "starting something"]
    assert (result.state, result.exit_code) == ("interrupted", 130)
    assert 0 < result.summary["published_shards"] < result.summary["total_shards"]
    assert inspect_run(str(tmp_path / "out"))["state"] == "incomplete"
    again = execute(job, backend=InProcessBackend())
    assert (again.state, again.summary["starts"]) == ("complete", 2)
    assert outputs(tmp_path / "out")["request_id"].to_pylist() == [str(i) for i in range(60)]


def test_dead_worker_loses_no_row(tmp_path: Path) -> None:
    built: list[int] = []

    def build_parts(config: WorkerConfig) -> WorkerParts:
        built.append(1)
        return fake_parts(config, fail_at_step=9 if len(built) == 1 else None)

    backend = InProcessBackend(build_parts=build_parts)
    result = execute(make_job(tmp_path), backend=backend)
    assert (result.state, len(backend.spawned)) == ("complete", 2)
    assert outputs(tmp_path / "out")["request_id"].to_pylist() == [str(i) for i in range(24)]


def test_failing_shard_gives_exit_code_3_and_is_retried_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job(tmp_path)
    blocked = tmp_path / "out/outputs/part-00001.parquet"
    blocked.mkdir(parents=True)
    (tmp_path / "out/.specpipe").mkdir()
    result = execute(job, backend=InProcessBackend(logs="/tmp/ray/logs"))
    assert (result.state, result.exit_code) == ("incomplete", 3)
    assert "logs of the workers are in /tmp/ray/logs" in caplog.messages[-1]
    assert "IsADirectoryError" in result.summary["failed_shards"]["1"]
    assert inspect_run(str(tmp_path / "out"))["failed_shards"].keys() == {"1"}
    blocked.rmdir()
    caplog.clear()
    assert execute(job, backend=InProcessBackend(logs="/tmp/ray/logs")).exit_code == 0
    assert not caplog.messages


@pytest.mark.parametrize(("allowed", "code"), [(0, 3), (1, 3), (2, 0)])
def test_max_failed_rows_decides_the_exit_code(tmp_path: Path, allowed: int, code: int) -> None:
    write_rows(tmp_path / "rows.parquet", 8, r2=None, r7="BAD")
    job = make_job(tmp_path, f"output.max_failed_rows={allowed}")
    result = execute(job, backend=InProcessBackend())
    assert (result.state, result.summary["failed"], result.exit_code) == ("complete", 2, code)
    assert execute(job, backend=InProcessBackend()).exit_code == code


def test_synthetic_runs_are_marked_in_every_file(tmp_path: Path) -> None:
    job = make_job(tmp_path, "speculation.method=synthetic", "speculation.synthetic_rates=[0.9, 0.5, 0.1]")
    result = execute(job, backend=InProcessBackend())
    assert result.summary["synthetic"] is True
    assert json.loads((tmp_path / "out/manifest.json").read_text())["synthetic"] is True
    assert set(pq.read_table(tmp_path / "out/telemetry/shards.parquet")["synthetic"].to_pylist()) == {True}


def test_warm_up_rows_are_not_counted(tmp_path: Path) -> None:
    result = execute(make_job(tmp_path, "data.warmup_rows=3"), backend=InProcessBackend())
    assert (result.summary["completed"], result.summary["total_output_tokens"]) == (24, 240)


def test_queue_threshold_disables_speculation_above_the_limit(tmp_path: Path) -> None:
    engines = []

    def build_parts(config: WorkerConfig) -> WorkerParts:
        parts = fake_parts(config)
        engines.append(parts.engine)
        return parts

    job = make_job(tmp_path, "speculation.policy=queue_threshold", "speculation.max_running=2")
    execute(job, backend=InProcessBackend(build_parts=build_parts))
    seen = set(engines[0].seen_ks)
    assert {(running, k) for running, k in seen if running <= 2} <= {(1, 3), (2, 3)}
    assert {(running, k) for running, k in seen if running > 2} == {(3, 0)}


def test_queue_threshold_for_new_rows_drafts_for_the_first_alone(tmp_path: Path) -> None:
    engines = []

    def build_parts(config: WorkerConfig) -> WorkerParts:
        parts = fake_parts(config)
        engines.append(parts.engine)
        return parts

    options = ("speculation.policy=queue_threshold", "speculation.max_running=2", "speculation.applies_to=new")
    summary = execute(make_job(tmp_path, *options), backend=InProcessBackend(build_parts=build_parts)).summary
    execute(make_job(tmp_path, "speculation.policy=off", f"output.path={tmp_path}/off"), backend=InProcessBackend())

    table = outputs(tmp_path / "out")
    drafts, accepted = (table[name].to_pylist() for name in ("draft_tokens", "accepted_tokens"))
    starts = [engines[0].starts[str(row)] for row in range(24)]
    assert set(starts) >= {1, 2, 3}
    assert [count > 0 for count in drafts] == [running <= 2 for running in starts]
    assert table["generated_token_ids"] == outputs(tmp_path / "off")["generated_token_ids"]
    assert (summary["spec_decode_draft_tokens"], summary["spec_decode_accepted_tokens"]) == (sum(drafts), sum(accepted))
    assert summary["k_histogram"]["0"] == 10 * starts.count(3), "a row without drafts takes a round for each token"
    assert sum(summary["k_histogram"].values()) + sum(accepted) == 240
    assert "for rows that start while at most 2 run" in summary["plan_reason"]


def test_first_published_part_of_a_backed_up_shard_stays(tmp_path: Path) -> None:
    built: list[int] = []

    def build_parts(config: WorkerConfig) -> WorkerParts:
        built.append(1)
        return fake_parts(config, step_s=0.05 if len(built) == 1 else 0.001)

    job = make_job(tmp_path, rows=8)
    execute(make_job(tmp_path, f"output.path={tmp_path / 'calm'}"), backend=InProcessBackend())
    backend = InProcessBackend(build_parts=build_parts, workers=2)
    with pytest.MonkeyPatch.context() as patch:
        quick = partial(driver_config, slots=3, backup_s=0.05, poll_s=0.02)
        patch.setattr(DriverConfig, "from_job", lambda job, workers: quick(workers=workers))
        result = execute(job, backend=backend)
    assert result.state == "complete"
    assert verify(str(tmp_path / "out")).complete  # the telemetry is that of the parts that are there
    assert outputs(tmp_path / "out")["generated_token_ids"] == outputs(tmp_path / "calm")["generated_token_ids"]
