"""A small version of the job that measures scaling: two workers share it, and its seconds exclude the start."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.mixed_job import measure

from specpipe.benchmark.bench_config import EngineBench, SharedWork
from specpipe.pipeline.store.verify import verify

SMALL = EngineBench(
    target="small", draft="small", device="cpu", dtype="float32", batches=(8,), ks=(0,), max_model_len=96
)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_two_workers_share_the_mixed_job(tmp_path: Path) -> None:
    found = measure(tmp_path, 2, SMALL, rows=30, shortest=4, longest=40, vocab=512)
    out = tmp_path / "2-workers/out"
    assert verify(str(out)).complete
    assert found == json.loads((out / "summary.json").read_text())
    lengths = pq.read_table(tmp_path / "2-workers/rows.parquet")["max_new_tokens"].to_pylist()
    assert (found["completed"], found["total_output_tokens"]) == (60, sum(lengths))
    assert lengths[:30] == lengths[30:]
    assert {name for name, worker in found["workers"].items() if worker["rows"]} == {"worker-0", "worker-1"}
    shards = pq.read_table(out / "telemetry/shards.parquet").group_by("worker").aggregate([("started_at", "min")])
    first, last = sorted(shards["started_at_min"].to_pylist())
    assert last - first < 5


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_each_worker_computes_a_common_beginning_once(tmp_path: Path) -> None:
    work = SharedWork(prompts=15, shared_tokens=64, own_tokens=9, new_tokens=6)
    found = measure(tmp_path, 2, SMALL, vocab=512, few_shot=work)
    assert (found["completed"], found["total_input_tokens"]) == (30, 30 * 73)
    assert {name for name, worker in found["workers"].items() if worker["rows"]} == {"worker-0", "worker-1"}
    assert found["total_cached_tokens"] == (30 - 2) * 64
