"""Runs ROWS rows on a Ray worker with the fake engine: `python -m support.million FOLDER ROWS [scores]`.

With `scores` every row has three continuations to score.

Prints, once a second as JSON lines, the rows done and the resident memory of driver and worker (MiB).
"""

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from support.fake_workers import make_job
from support.faults import FaultyBackend

from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.run.run import Viewer, execute


def write_rows(path: Path, rows: int, *, scores: bool) -> None:
    schema = pa.schema([("prompt", pa.string())])
    if scores:
        schema = schema.append(pa.field("continuations", pa.list_(pa.string())))
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, rows, 10_000):
            prompts = [f"What comes after {i}?" for i in range(first, min(rows, first + 10_000))]
            columns = {"prompt": prompts, "continuations": [["one", "two", "more"]] * len(prompts)}
            writer.write_table(pa.table({name: columns[name] for name in schema.names}, schema=schema))


def resident_mib(pid: int) -> float:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    folder, rows = Path(sys.argv[1]), int(sys.argv[2])
    write_rows(folder / "rows.parquet", rows, scores="scores" in sys.argv)
    backend = FaultyBackend(folder, step_s=0.0)

    def measure(progress: Progress) -> None:
        if backend.pids and progress.done_rows:
            print(
                json.dumps([progress.done_rows, resident_mib(os.getpid()), resident_mib(backend.pids[0])]), flush=True
            )

    settings = ("workers.slots=256", "workers.shard_tokens=16000", "sampling.max_new_tokens=1")
    result = execute(make_job(folder, *settings), backend=backend, viewer=Viewer(progress=measure))
    sys.exit(result.exit_code)
