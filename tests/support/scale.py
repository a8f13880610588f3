"""Cost of a run with many shards for the driver, printed as JSON: `python -m support.scale drive COUNT POLICY`, or
`scan COUNT FOLDER`.

`drive`: 1,000 workers that only report telemetry, under goodput with round costs. `scan`: reading the ledger of COUNT
parts, which are written to FOLDER first if missing. Run each in a new process: memory is the peak of the process.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import sys
import time
from pathlib import Path

import pyarrow as pa
from support.fake_pool import FakePool, FakeWorker, driver_config, report, shards
from support.peak_memory import peak_mib
from support.shard_records import random_record

from specpipe.core import CostPoint, Evidence, Shard, ShardReport
from specpipe.data import output_schema, publish_part
from specpipe.data.parts.part_file import seal
from specpipe.pipeline.driver.config import Observers
from specpipe.pipeline.driver.driver import Driver
from specpipe.pipeline.messages import ShardOrder
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.ledger import read_ledger
from specpipe.speculation.estimates.run_estimates import RunEstimates
from specpipe.speculation.policies.make_policy import make_policy
from specpipe.telemetry.run_summary import RunFacts, summarise
from specpipe.telemetry.shard_log import ShardLog
from specpipe.telemetry.shard_record import shard_schema

WORKERS = 1000
RUN_ID = "feed" * 4
EVIDENCE = Evidence(
    verified={"draft": random_record(0).verified}, rows=500,
    input_tokens=10_000, output_tokens=100_000,
    costs=tuple(
        CostPoint(proposer="draft" if k else "none", k=k, running=rows, context=300.0, rounds=50, seconds=0.8 + 0.1 * k)
        for k in (0, 3, 4) for rows in (16, 48, 64)
    ),
)  # fmt: skip
_NUMBER = 1_234_567  # stands for the shard's in a part that is copied


class _DiscardingList(list[object]):
    """List for the pool's orders that stores nothing, so that they do not count as the driver's memory."""

    def append(self, item: object) -> None:
        pass


def drive(count: int, policy_name: str) -> dict[str, float]:
    records = [pickle.dumps(random_record(shard).to_dict()) for shard in range(256)]

    def behave(worker: FakeWorker, order: ShardOrder) -> ShardReport:
        shard = order.shard.index
        told = {**pickle.loads(records[shard % 256]), "shard": shard, "tokens_per_s": 1.1 * shard}
        return dataclasses.replace(report(order, worker.name), telemetry=told, evidence=evidence)

    pool, log = FakePool(behave, threads=2), ShardLog()  # two: reports come out of order
    pool.orders = _DiscardingList()
    evidence = EVIDENCE if policy_name == "goodput" else Evidence()
    policy = make_policy(policy_name, k=4, max_running=8, proposers=("draft", "ngram"))
    observers = Observers(published=lambda report: log.add(report.telemetry))
    estimates = RunEstimates(slots=64, proposers=("draft", "ngram"))
    config = driver_config(workers=WORKERS, slots=64)
    driver = Driver(shards(count), pool, policy, config, observers=observers, estimates=estimates)
    began, used = time.perf_counter(), time.process_time()
    driver.run()
    seconds, cpu, before = time.perf_counter() - began, time.process_time() - used, peak_mib()
    facts = RunFacts(
        total_rows=500 * count, total_shards=count, failed_shards={}, starts=1, synthetic=False,
        peak_output_throughput=0.0, workers={}, versions={},
    )  # fmt: skip
    assert summarise(log.table(), facts)["complete"]
    return {"per_s": count / seconds, "per_cpu_s": count / cpu, "running_mib": before, "peak_mib": peak_mib()}


def make_parts(folder: RunFolder, count: int) -> None:
    """Writes complete parts of two rows each: one by publish_part, the others as its bytes with another number."""
    outputs = Path(folder.path) / "outputs"
    columns = {field.name: pa.nulls(2, field.type) for field in output_schema()}
    told = {**random_record(0).to_dict(), "shard": _NUMBER, "rows": 2, "run_id": RUN_ID}
    publish_part(str(outputs / "template"), pa.table(columns), shard_hash="a" * 64, telemetry=told)
    template = (outputs / "template").read_bytes()
    (outputs / "template").unlink()
    for shard in range(count):
        name = folder.part_name(shard)
        part = bytearray(template.replace(str(_NUMBER).encode(), b"%7d" % shard))
        seal(memoryview(part))
        (Path(folder.path) / name).write_bytes(part)


def scan(count: int, path: Path) -> dict[str, float]:
    folder = RunFolder.at(str(path))
    if not path.exists():
        make_parts(folder, count)
    assert len(os.listdir(path / "outputs")) == count
    work = [Shard(index=i, file="rows.jsonl", start=2 * i, stop=2 * i + 2, first_row=2 * i) for i in range(count)]
    before, began, used = peak_mib(), time.perf_counter(), time.process_time()
    log = read_ledger(folder, work, RUN_ID)
    seconds, cpu, after = time.perf_counter() - began, time.process_time() - used, peak_mib()
    assert len(log) == count
    assert log.table().schema.equals(shard_schema())
    return {"seconds": seconds, "cpu_s": cpu, "before_mib": before, "peak_mib": after}


if __name__ == "__main__":
    what, count = sys.argv[1], int(sys.argv[2])
    print(json.dumps(drive(count, sys.argv[3]) if what == "drive" else scan(count, Path(sys.argv[3]))))
