"""Tests of a GPU that runs out of memory during prefill and graph capture: no row is lost."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from support.fake_workers import InProcessBackend, outputs

from specpipe.engine.engine import Engine
from specpipe.job import JobSpec, parse_job
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.verify import verify
from specpipe.pipeline.worker.build import build_parts
from specpipe.pipeline.worker.config import WorkerConfig, WorkerParts

ROWS, SLOTS = 96, 64  # KV memory of all slots is most of what the engine takes: half of it leaves room


def make_job(folder: Path, out: str, device: str) -> JobSpec:
    prompts = [f"What is {i} plus {i % 7}? " * 16 for i in range(ROWS)]  # a prefill of them needs more than crumbs
    pq.write_table(pa.table({"prompt": prompts}), folder / "rows.parquet")
    values = {
        "model": {"target": "builtin:tiny", "draft": "builtin:tiny", "device": device, "dtype": "float32"},
        "data": {"path": str(folder / "rows.parquet")},
        "sampling": {"temperature": 0, "max_new_tokens": 24},
        "speculation": {"policy": "fixed", "num_speculative_tokens": 2},
        "workers": {"slots": SLOTS, "shard_tokens": 2_000},
        "output": {"path": str(folder / out)},
    }
    return parse_job(values, source="test")


@pytest.fixture
def no_room_left() -> Iterator[Callable[[], None]]:
    """Once it is called, torch gets no more memory than it has, and what it has free is taken; in the end there is
    as much as before."""
    taken: list[torch.Tensor] = []

    def limit() -> None:
        if taken:
            return
        gc.collect()
        torch.cuda.empty_cache()
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / whole)
        with contextlib.suppress(torch.OutOfMemoryError):
            while True:
                taken.append(torch.empty(2 << 20, dtype=torch.uint8, device="cuda"))

    yield limit
    taken.clear()
    torch.cuda.set_per_process_memory_fraction(1.0)


def before_captures(
    limit: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> Callable[[WorkerConfig], WorkerParts]:
    prepare = Engine.prepare

    def limited(engine: Engine, *arguments: Any, **options: Any) -> None:
        limit()
        prepare(engine, *arguments, **options)

    monkeypatch.setattr(Engine, "prepare", limited)
    return build_parts


def before_rows(limit: Callable[[], None], _: pytest.MonkeyPatch) -> Callable[[WorkerConfig], WorkerParts]:
    def limited(config: WorkerConfig) -> WorkerParts:
        parts = build_parts(config)
        limit()
        return parts

    return limited


@pytest.mark.gpu
@pytest.mark.parametrize("when", [before_captures, before_rows])
def test_gpu_out_of_memory_continues_with_fewer_rows(
    tmp_path: Path,
    no_room_left: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    when: Callable[..., Callable[[WorkerConfig], WorkerParts]],
) -> None:
    roomy = InProcessBackend(build_parts=build_parts, device="cuda")
    assert execute(make_job(tmp_path, "roomy", "cuda"), backend=roomy).exit_code == 0
    assert "out of memory" not in caplog.text
    del roomy
    tight = InProcessBackend(build_parts=when(no_room_left, monkeypatch), device="cuda")
    result = execute(make_job(tmp_path, "out", "cuda"), backend=tight)
    assert (result.state, result.exit_code) == ("complete", 0)
    assert f"worker-0: out of memory with {SLOTS} slots: the worker continues with {SLOTS // 2}" in caplog.text
    assert verify(str(tmp_path / "out")).complete
    pairs = zip(outputs(tmp_path / "out").to_pylist(), outputs(tmp_path / "roomy").to_pylist(), strict=True)
    flipped = sum(tight["generated_token_ids"] != roomy["generated_token_ids"] for tight, roomy in pairs)
    assert flipped <= ROWS // 48  # other batches round otherwise: a near-tie may flip
