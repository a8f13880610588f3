"""The mixed job as a run through real Ray, one worker a device: `python -m support.mixed_job FOLDER [WORKERS …]`, in a
process that sees the GPUs. Prints tokens, seconds and throughput of each run, and its share of linear.
With `--few-shot`: the job of that name, whose prompts begin alike, and the prompt tokens that were computed.

Workers make the models' weights on their device, at random, warm up and wait for each other, so that a run's seconds
hold no start. Each has the same rows: as many, and as long, whatever their number.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from support.ray_workers import RayWorkers

from specpipe.benchmark.bench_config import SHARED_WORKS, EngineBench, SharedWork
from specpipe.benchmark.shared_work import shared_requests
from specpipe.benchmark.synthetic_engine import build_synthetic_engine, random_requests, run_requests
from specpipe.core import SamplingParams
from specpipe.job import parse_job
from specpipe.models.source import resolve
from specpipe.models.tokenizer import PromptEncoder, load_tokenizer
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.worker.build import make_builder
from specpipe.pipeline.worker.config import WorkerConfig, WorkerParts

ROWS, SHORTEST, LONGEST = 768, 32, 511
_PATIENCE_S = 120.0
H200 = EngineBench(batches=(256,), ks=(0,), max_model_len=1088)


@dataclasses.dataclass(frozen=True)
class RandomPair:
    """Builds a worker's parts."""

    bench: EngineBench
    workers: int
    meeting: Path
    """Folder in which workers leave a file when they are ready."""

    def __call__(self, config: WorkerConfig) -> WorkerParts:
        began = time.perf_counter()
        engine = build_synthetic_engine(self.bench)
        sampling, vocab = SamplingParams(), engine.target.vocab_size
        engine.prepare(sampling, self.bench.choices)
        few = [(length, 8) for length in np.linspace(1, self.bench.max_model_len // 2, engine.config.slots, dtype=int)]
        run_requests(engine, random_requests(few, vocab), 0)
        self._meet(config.probe)
        tokenizer = load_tokenizer(resolve("builtin:tiny", "target"))
        encoder = PromptEncoder(tokenizer, system_prompt=None, template_kwargs={}, name="random")
        builder = make_builder(config.job, encoder, max_model_len=engine.config.max_model_len, vocab_size=vocab)
        facts = {"device": str(engine.target.device), "model_load_s": time.perf_counter() - began}
        return WorkerParts(engine=engine, builder=builder, facts=facts)

    def _meet(self, name: str) -> None:
        limit = time.monotonic() + _PATIENCE_S
        (self.meeting / f"{name}-{time.monotonic_ns()}").touch()
        while len(list(self.meeting.iterdir())) < self.workers:
            assert time.monotonic() < limit, "the other workers are not ready"
            time.sleep(0.02)


def write_few_shot(path: Path, workers: int, work: SharedWork, vocab: int) -> None:
    """The job's rows for every worker; all prompts of all workers begin alike."""
    rows = shared_requests(dataclasses.replace(work, prompts=work.prompts * workers), vocab, seed=0)
    prompts = [list(row.prompt_token_ids) for row in rows]
    pq.write_table(pa.table({"prompt_token_ids": prompts, "max_new_tokens": [work.new_tokens] * len(rows)}), path)


def write_rows(path: Path, workers: int, rows: int, shortest: int, longest: int, vocab: int) -> None:
    """The same lengths for every worker, other tokens."""
    lengths = np.random.default_rng(0).integers(shortest, longest + 1, (rows, 2))
    random = np.random.default_rng(1)
    many = np.concatenate([lengths] * workers)
    prompts = [random.integers(0, vocab, length).tolist() for length in many[:, 0]]
    pq.write_table(pa.table({"prompt_token_ids": prompts, "max_new_tokens": many[:, 1]}), path)


def measure(
    folder: Path,
    workers: int,
    bench: EngineBench = H200,
    *,
    rows: int = ROWS,
    shortest: int = SHORTEST,
    longest: int = LONGEST,
    vocab: int = 128256,
    few_shot: SharedWork | None = None,
) -> dict[str, Any]:
    """One run without speculation, of `rows` rows a worker or of a job whose prompts begin alike. → its summary.json"""
    place = folder / f"{workers}-workers"
    (place / "ready").mkdir(parents=True)
    if few_shot is None:
        write_rows(place / "rows.parquet", workers, rows, shortest, longest, vocab)
    else:
        write_few_shot(place / "rows.parquet", workers, few_shot, vocab)
    values = {
        "model": {"target": "builtin:tiny", "device": bench.device, "max_model_len": bench.max_model_len},
        "data": {"path": str(place / "rows.parquet")},
        "sampling": {"temperature": 0, "ignore_eos": True, "max_new_tokens": (shortest + longest) // 2},
        "speculation": {"policy": "off"},
        "workers": {"count": workers, "slots": max(bench.batches), "cpus_per_worker": 1},
        "output": {"path": str(place / "out")},
    }
    backend = RayWorkers(RandomPair(bench, workers, place / "ready"))
    result = execute(parse_job(values, source="mixed job"), backend=backend)
    assert result.state == "complete", result.state
    return dict(result.summary)


def main() -> None:
    few_shot = "--few-shot" in sys.argv
    folder, *numbers = [argument for argument in sys.argv[1:] if argument != "--few-shot"]
    counts = [int(number) for number in numbers] or [1]
    alone = 0.0
    for workers in counts:
        if few_shot:
            work = SHARED_WORKS["few-shot"]
            bench = dataclasses.replace(H200, max_model_len=work.prompt_tokens + work.new_tokens)
            found = measure(Path(folder), workers, bench, few_shot=work)
        else:
            found = measure(Path(folder), workers)
        each = found["output_throughput"] / workers
        alone = alone or each
        print(
            f"{workers} workers: {found['total_output_tokens']:,} tokens in {found['duration_s']:.2f} s, "
            f"{found['output_throughput']:,.0f} tok/s, {each / alone:.3f} of the first run's for each worker; "
            f"{found['total_input_tokens'] - found['total_cached_tokens']:,} prompt tokens computed",
            flush=True,
        )


if __name__ == "__main__":
    main()
