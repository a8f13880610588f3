"""Tests of memory: it depends on the rows in flight, not on the dataset (1.2 GB of prompts, a million rows)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

_ROWS, _BYTES = 240_000, 5_000

_RUN = """
from dataclasses import dataclass
from pathlib import Path

from support.fake_engine import FakeEngine
from support.byte_encoder import Encoded
from support.fake_workers import InProcessBackend, make_job
from support.peak_memory import peak_mib

from specpipe.pipeline.worker.build import make_builder
from specpipe.pipeline.worker.config import WorkerParts
from specpipe.pipeline.run.run import execute


class FewTokens:
    bos_token_id = None

    def encode(self, prompt):
        return Encoded(prompt, tuple(prompt[:16].encode()))


def build_parts(config):
    builder = make_builder(config.job, FewTokens(), max_model_len=200, vocab_size=1000)
    return WorkerParts(engine=FakeEngine(config.job.engine_config(200)), builder=builder, facts={})


def run(out, *overrides):
    settings = ("workers.slots=64", "workers.shard_tokens=1000000", "sampling.max_new_tokens=1", f"output.path={out}")
    job = make_job(Path("."), "output.keep_columns=[tag]", *settings, *overrides)
    summary = execute(job, backend=InProcessBackend(build_parts=build_parts)).summary
    return summary["completed"], peak_mib()


print(*run("few", "data.limit=20000"), *run("all"))
"""


def write_prompts(path: Path) -> None:
    letters = np.random.default_rng(0).integers(97, 123, size=4_000_000, dtype=np.uint8).tobytes().decode()
    schema = pa.schema([("prompt", pa.string()), ("tag", pa.string())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for first in range(0, _ROWS, 10_000):
            starts = [(first + i) * 13 % (len(letters) - _BYTES) for i in range(10_000)]
            prompts = [letters[at : at + _BYTES] for at in starts]
            writer.write_table(pa.table({"prompt": prompts, "tag": ["t"] * 10_000}, schema=schema))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_dataset(tmp_path: Path) -> None:
    write_prompts(tmp_path / "rows.parquet")
    assert os.path.getsize(tmp_path / "rows.parquet") > 1.1e9
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    few, few_mib, every, all_mib = map(int, done.stdout.split())
    assert (few, every) == (20_000, _ROWS)
    assert all_mib - few_mib < 120


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", [(), ("scores",)], ids=["generated", "scored"])
def test_million_rows_need_no_more_memory_than_ten_thousand(tmp_path: Path, kind: tuple[str, ...]) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "support.million", str(tmp_path), "1000000", *kind],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=1100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    samples = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert samples[-1][0] == 1_000_000
    first, *later = [sample for sample in samples if sample[0] >= 10_000]
    print(f"rows, driver's and worker's MiB: {first}, {samples[len(samples) // 2]}, {samples[-1]}")
    assert first[0] < 100_000
    for process in (1, 2):
        assert max(sample[process] for sample in later) < 1.1 * first[process]
