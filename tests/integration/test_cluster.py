"""Jobs submitted from outside to a cluster of two nodes on this machine."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from support.fake_workers import outputs, wait_for
from support.ray_cluster import RayCluster

from specpipe.evaluation.schedule.eval_history import read_history
from specpipe.telemetry.metrics import METRICS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
# Counters that stay at 0 while nothing goes wrong.
FAILURE_COUNTERS = {f"ray_specpipe_{name}_total" for name in ("shard_retries", "worker_losses", "preemptions")}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with RayCluster.started() as started:
        yield started


def job_folder(folder: Path, rows: int = 8, **output: object) -> Path:
    """Returns a working directory for `ray job submit` with a job file; both nodes can read the data."""
    sent = folder / "sent"
    sent.mkdir()
    prompts = [f"What is {i} plus {i % 7}?" for i in range(rows)]
    pq.write_table(pa.table({"prompt": prompts}), folder / "rows.parquet")
    job = {
        "model": {"target": "builtin:tiny", "draft": "builtin:tiny"},
        "data": {"path": str(folder / "rows.parquet")},
        "sampling": {"max_new_tokens": 200, "ignore_eos": True},
        "speculation": {"policy": "fixed"},
        "workers": {"count": 2, "cpus_per_worker": 1, "slots": 2, "shard_tokens": 500},
        "output": output,
    }
    (sent / "job.yaml").write_text(yaml.safe_dump(job))
    return sent


def run(*changes: str) -> list[str]:
    """Returns the submitted command."""
    command = ["--", "python", "-m", "specpipe", "run", "job.yaml"]
    return command + [part for change in changes for part in ("--set", change)]


def test_submitted_job_runs_and_reports_its_exit_code(cluster: RayCluster, tmp_path: Path) -> None:
    sent = job_folder(tmp_path, path=str(tmp_path / "out"))
    done = cluster.submit("--working-dir", sent, *run("sampling.max_new_tokens=20"))
    assert done.returncode == 0 and "complete" in done.stdout, done.stdout + done.stderr
    table = outputs(tmp_path / "out")
    assert table.num_rows == 8 and set(table["error"].to_pylist()) == {""}
    again = cluster.submit("--working-dir", sent, *run("sampling.max_new_tokens=30"))
    assert again.returncode == 1 and "failed with exit code 2" in again.stdout + again.stderr
    assert "holds the run of another job" in again.stdout
    assert "Traceback" not in again.stdout


@pytest.mark.parametrize("change", ["output.path=runs/nightly", "data.path=job.yaml"])
def test_paths_in_the_temporary_working_directory_are_refused(cluster: RayCluster, tmp_path: Path, change: str) -> None:
    sent = job_folder(tmp_path, path=str(tmp_path / "out"))
    refused = cluster.submit("--working-dir", sent, *run(change))
    assert refused.returncode == 1 and "failed with exit code 2" in refused.stdout + refused.stderr
    assert f"{change.partition('=')[0]} is " in refused.stdout and "Ray deletes it. Expected an" in refused.stdout
    assert not (tmp_path / "out").exists()


def exported(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
        return page.read().decode()


def test_live_run_exports_metrics_and_refuses_a_second_start(cluster: RayCluster, tmp_path: Path) -> None:
    sent = job_folder(tmp_path, rows=400, path=str(tmp_path / "out"))
    live = cluster.start_submit("--submission-id", "live", "--working-dir", sent, *run())
    names = {metric.exported for metric in METRICS} - FAILURE_COUNTERS

    def all_there() -> bool:
        assert live.poll() is None, live.communicate()
        time.sleep(1)
        pages = [exported(port) for port in cluster.metrics]
        workers = [set(re.findall(r'^ray_specpipe_rounds_total\{.*worker="(worker-\d)"', page, re.M)) for page in pages]
        on_each_node = sorted(map(sorted, workers)) == [["worker-0"], ["worker-1"]]
        series = re.findall(r"^(ray_specpipe_\w+?)(?:_bucket|_count|_sum)?\{(.*)\}", "\n".join(pages), re.M)
        return on_each_node and names <= {name for name, labels in series if 'run="job-' in labels}

    wait_for(all_there, 200)
    second = cluster.submit("--working-dir", sent, *run())
    assert second.returncode == 1 and "failed with exit code 2" in second.stdout + second.stderr
    assert "is being written by a live run" in second.stdout
    assert cluster.ray("job", "stop", "--address", cluster.dashboard, "live").returncode == 0
    live.communicate(timeout=120)
    assert live.returncode == 0  # Ray's: only FAILED is 1. docs/operations.md warns of it
    assert len(list((tmp_path / "out/outputs").glob("part-*.parquet"))) < 200


def test_logs_of_a_cluster_are_json(cluster: RayCluster, tmp_path: Path) -> None:
    sent = job_folder(tmp_path, path=str(tmp_path / "out"))
    done = cluster.submit("--working-dir", sent, *run("sampling.max_new_tokens=5"), "--log-json")
    assert done.returncode == 0
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"time"')]
    assert records[-1].items() >= {"state": "complete", "exit_code": 0, "total_rows": 8}.items()
    said = [line for path in cluster.logs.glob("worker-*.err") for line in path.read_text().splitlines()]
    published = [json.loads(line) for line in said if '"published outputs/' in line]
    mine = [record for record in published if record["run"] == f"job-{records[-1]['run_id'][:8]}"]
    assert {record["shard"] for record in mine} == set(range(records[-1]["total_shards"]))
    assert {record["worker"] for record in mine} <= {"worker-0", "worker-1"}


def test_client_without_the_token_gets_a_clear_error(cluster: RayCluster, tmp_path: Path) -> None:
    sent = job_folder(tmp_path, path=str(tmp_path / "out"))
    command = [sys.executable, "-m", "specpipe", "run", str(sent / "job.yaml")]
    env = cluster.env | {"RAY_ADDRESS": f"127.0.0.1:{cluster.gcs}", "RAY_AUTH_TOKEN": "another"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1 and "RAY_AUTH_MODE, the token" in done.stderr
    assert "Traceback" not in done.stderr


def test_nightly_evaluation_runs_as_submitted(cluster: RayCluster, tmp_path: Path) -> None:
    nightly = yaml.safe_load((ROOT / "infra/schedule/nightly.yaml").read_text(encoding="utf-8"))
    tiny = yaml.safe_load((ROOT / "jobs/eval-tiny.yaml").read_text(encoding="utf-8"))
    place = str(tmp_path / "runs")
    nightly["eval"] = tiny["eval"] | {"history": nightly["eval"]["history"].replace("/shared/runs", place)}
    nightly["eval"]["flags"] |= {"limit": 6, "include_path": str(ROOT / "jobs/tasks")}
    nightly |= {"model": tiny["model"], "output": {"path": nightly["output"]["path"].replace("/shared/runs", place)}}
    (tmp_path / "nightly.yaml").write_text(yaml.safe_dump(nightly))
    for _ in range(2):  # the second start finds everything done
        done = cluster.submit("--", "specpipe", "eval", "run", str(tmp_path / "nightly.yaml"))
        assert done.returncode == 0, done.stdout + done.stderr
    history = read_history(f"{place}/eval-history.parquet")
    assert set(history["job"].to_pylist()) == {"nightly"} and set(history["n"].to_pylist()) == {6}
    (folder,) = {Path(path) for path in history["folder"].to_pylist()}
    assert folder.parent == tmp_path / "runs" and (folder / "certificate.md").exists()
