"""Tests of one worker with a real folder and an engine without a model."""

import os
import pickle
import threading
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.fake_engine import token_at
from support.fake_workers import fake_parts, make_job, worker_config, write_rows

from specpipe.core import Shard, SpeculationPlan
from specpipe.data import read_part_footer
from specpipe.errors import OutputError
from specpipe.pipeline.failures import EngineError, ShardError, StaleRunError
from specpipe.pipeline.messages import ShardOrder
from specpipe.pipeline.worker.config import WorkerConfig, WorkerParts
from specpipe.pipeline.worker.worker import CPU_WARM_UP_TOKENS, Worker
from specpipe.telemetry.shard_record import ShardRecord

PLAN = SpeculationPlan(ks=(3,), proposer="draft", queue_depth=12.0, reason="test")


def order(folder: Path, index: int, start: int, stop: int, attempt: int = 1) -> ShardOrder:
    shard = Shard(index=index, file=str(folder / "rows.parquet"), start=start, stop=stop, first_row=start)
    return ShardOrder(shard=shard, plan=PLAN, attempt=attempt)


def started(job, **changes) -> Worker:
    worker = Worker("worker-0", worker_config(job, **changes))
    worker.start(None)
    return worker


def test_part_has_ordered_rows_and_telemetry_in_its_footer(tmp_path: Path) -> None:
    worker = started(make_job(tmp_path, rows=9))
    report = worker.run_shard(order(tmp_path, 1, 2, 9, attempt=2))
    worker.close()
    table = pq.read_table(tmp_path / "out" / report.part)
    assert table["request_id"].to_pylist() == [str(i) for i in range(2, 9)]
    seeds = table["seed"].to_pylist()
    assert table["generated_token_ids"].to_pylist() == [[token_at(seed, i) for i in range(10)] for seed in seeds]
    footer = read_part_footer(str(tmp_path / "out" / report.part))
    assert footer is not None
    record = ShardRecord.from_dict(footer.telemetry)
    assert record == ShardRecord.from_dict(report.telemetry)
    assert (record.rows, record.attempt, record.output_tokens, record.queue_depth) == (7, 2, 70, 12.0)
    assert sum(table["draft_tokens"].to_pylist()) == record.draft_tokens == report.verified.draft_tokens
    assert record.ttft.count == 7


def test_bad_rows_become_error_rows(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 6, r1=None, r4="BAD")
    worker = started(make_job(tmp_path))
    report = worker.run_shard(order(tmp_path, 0, 0, 6))
    status = worker.status(0)
    worker.close()
    table = pq.read_table(tmp_path / "out" / report.part)
    errors = table["error"].to_pylist()
    assert [i for i, error in enumerate(errors) if error] == [1, 4]
    assert "no prompt" in errors[1]
    assert (report.rows, report.failed_rows, status.rows_done) == (6, 2, 6)


def test_concurrent_shards_publish_the_same_parts_as_alone(tmp_path: Path) -> None:
    job = make_job(tmp_path, rows=12)
    worker = started(job)
    orders = [order(tmp_path, i, 4 * i, 4 * i + 4) for i in range(3)]
    threads = [threading.Thread(target=worker.run_shard, args=(one,)) for one in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    together = [pq.read_table(tmp_path / f"out/outputs/part-{i:05d}.parquet") for i in range(3)]
    for one in orders:
        worker.run_shard(one)
    worker.close()
    alone = [pq.read_table(tmp_path / f"out/outputs/part-{i:05d}.parquet") for i in range(3)]
    assert [part["generated_token_ids"] for part in together] == [part["generated_token_ids"] for part in alone]


def test_kept_columns_match_their_rows(tmp_path: Path) -> None:
    import pyarrow as pa

    write_rows(tmp_path / "rows.parquet", 5, r0=None)
    worker = started(make_job(tmp_path), kept=pa.schema([("tag", pa.string())]))
    report = worker.run_shard(order(tmp_path, 0, 0, 5))
    worker.close()
    table = pq.read_table(tmp_path / "out" / report.part)
    assert table["tag"].to_pylist() == [f"t{i}" for i in range(5)]


def test_worker_of_an_older_start_publishes_nothing(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    older = started(job)
    newer = started(job)
    with pytest.raises(StaleRunError, match="now belongs to start 2 of this run; start 1 stops here"):
        older.run_shard(order(tmp_path, 0, 0, 4))
    assert not (tmp_path / "out/outputs").exists()
    newer.run_shard(order(tmp_path, 0, 0, 4))
    older.close()
    newer.close()


def test_worker_without_the_drivers_folder_is_refused(tmp_path: Path) -> None:
    worker = Worker("worker-0", worker_config(make_job(tmp_path), probe="what another machine would have"))
    with pytest.raises(OutputError, match="does not see the driver's output folder"):
        worker.start(None)


def test_changed_input_fails_the_shard(tmp_path: Path) -> None:
    worker = started(make_job(tmp_path))
    write_rows(tmp_path / "rows.parquet", 30)
    with pytest.raises(Exception, match="has changed since the run was planned"):
        worker.run_shard(order(tmp_path, 0, 0, 4))
    worker.close()


def test_unwritable_folder_fails_the_shard(tmp_path: Path) -> None:
    worker = started(make_job(tmp_path))
    (tmp_path / "out/outputs").write_text("a file where the folder should be")
    with pytest.raises(ShardError, match=r"NotADirectoryError|FileExistsError"):
        worker.run_shard(order(tmp_path, 0, 0, 4))
    worker.close()


def test_dead_engine_fails_its_shards_with_a_picklable_error(tmp_path: Path) -> None:
    worker = started(make_job(tmp_path), build_parts=partial(fake_parts, fail_at_step=2))
    for index in (0, 1):
        with pytest.raises(EngineError, match="illegal memory access") as caught:
            worker.run_shard(order(tmp_path, index, 0, 4))
        again = pickle.loads(pickle.dumps(caught.value))
        assert (type(again), str(again)) == (EngineError, str(caught.value))
    assert not (tmp_path / "out/outputs").exists()


def test_warm_up_is_limited_to_the_shard_and_not_counted(tmp_path: Path) -> None:
    job = make_job(tmp_path, "data.warmup_rows=100", rows=4)
    worker = Worker("worker-0", worker_config(job))
    info = worker.start(order(tmp_path, 0, 0, 4))
    status = worker.status(0, final=True)
    worker.close()
    assert (status.rows_done, status.samples) == (0, ())
    assert info.facts["pid"] == os.getpid()
    assert not (tmp_path / "out/outputs").exists()


@pytest.mark.parametrize(("device", "tokens"), [("cpu", CPU_WARM_UP_TOKENS), ("cuda", 10)])
def test_warm_up_rows_are_short_where_nothing_is_compiled(tmp_path: Path, device: str, tokens: int) -> None:
    engines = []

    def build_parts(config: WorkerConfig) -> WorkerParts:
        parts = fake_parts(config)
        engines.append(parts.engine)
        return parts

    job = make_job(tmp_path, "data.warmup_rows=2", rows=4)
    worker = Worker("worker-0", worker_config(job, device=device, build_parts=build_parts))
    worker.start(order(tmp_path, 0, 0, 4))
    worker.close()
    assert [(request.sampling.max_new_tokens, request.warm_up) for request in engines[0].requests] == [
        (tokens, True)
    ] * 2
