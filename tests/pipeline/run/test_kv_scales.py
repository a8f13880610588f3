"""Scales of KV pages in 8 bits: one set for a run, in its manifest, whatever each worker measures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.fake_workers import InProcessBackend, fake_parts, make_job

from specpipe.core import KVScaleTable, LayerScales
from specpipe.errors import OutputError
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.manifest import require_manifest
from specpipe.pipeline.worker.build import build_parts
from specpipe.pipeline.worker.config import WorkerConfig, WorkerParts


def table_of(*exponents: int, model: str = "target fake 0") -> KVScaleTable:
    return {model: tuple(LayerScales((2.0**e, 0.3), (2.0**-e, 7e-5)) for e in exponents)}


class Engines:
    """Builds fake engines; the nth that has no scales yet measures the nth of these."""

    def __init__(self, *measured: KVScaleTable) -> None:
        self.measured = list(measured)
        self.built: list[KVScaleTable] = []

    def __call__(self, config: WorkerConfig) -> WorkerParts:
        scales = config.kv_scales or self.measured.pop(0)
        self.built.append(scales)
        return replace(fake_parts(config), kv_scales=scales)


def test_the_first_worker_decides_and_the_manifest_keeps_its_scales(tmp_path: Path) -> None:
    job = make_job(tmp_path, "model.kv_dtype=fp8")
    first, second = table_of(3, -4), table_of(3, -5)
    engines = Engines(first, second)
    backend = InProcessBackend(engines, workers=2)
    assert execute(job, backend=backend).state == "complete"
    manifest = require_manifest(RunFolder.at(job.output.path))
    assert manifest.kv_scales in (first, second)
    used = [worker.worker._host.kv_scales for worker in backend.spawned if worker.worker._host._finished_rows]
    assert used and all(scales == manifest.kv_scales for scales in used)
    run_id = json.loads((tmp_path / "out" / "manifest.json").read_text())["run_id"]
    assert run_id == manifest.run_id == replace(manifest, kv_scales={}).run_id


def test_a_resumed_run_uses_the_manifests_scales(tmp_path: Path) -> None:
    job = make_job(tmp_path, "model.kv_dtype=fp8")
    engines = Engines(table_of(1, 2))
    execute(job, backend=InProcessBackend(engines))
    for part in sorted((tmp_path / "out").glob("**/part-*.parquet"))[1:]:
        part.unlink()
    again = Engines()
    assert execute(job, backend=InProcessBackend(again)).state == "complete"
    assert again.built == [table_of(1, 2)]
    with pytest.raises(OutputError, match=r'model\.kv_dtype was "fp8" and is "auto"'):
        execute(make_job(tmp_path), backend=InProcessBackend())


def test_a_worker_with_other_scales_builds_its_engine_again(tmp_path: Path) -> None:
    job = make_job(tmp_path, "model.kv_dtype=fp8")
    extended = {**table_of(5), **table_of(6, model="draft other 1")}
    engines = Engines(table_of(1))
    backend = InProcessBackend(engines)
    execute(job, backend=backend)
    worker = backend.spawned[0].worker
    worker._host.use_kv_scales(extended)
    assert engines.built == [table_of(1), extended]
    worker._host.use_kv_scales({**extended, "draft another 2": ()})
    assert len(engines.built) == 2, "scales of other models change nothing"
    worker.close()


def tokens(folder: Path) -> list[list[int]]:
    parts = sorted(folder.glob("**/part-*.parquet"))
    return [row for part in parts for row in pq.read_table(part, columns=["generated_token_ids"]).column(0).to_pylist()]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_real_models_keep_tokens_over_workers_and_starts(tmp_path: Path) -> None:
    """builtin:tiny in 8 bits, in fp32: another K and a start that lost its parts give the same tokens."""

    def run(name: str, *overrides: str, parts: Callable[[WorkerConfig], WorkerParts] = build_parts) -> Path:
        common = (
            "model.target=builtin:tiny",
            "model.draft=builtin:tiny",
            "model.dtype=float32",
            "model.device=cpu",
            "model.kv_dtype=fp8",
            "sampling.max_new_tokens=24",
            "workers.shard_tokens=200",
        )
        job = make_job(tmp_path, *common, f"output.path={tmp_path / name}", *overrides)
        assert execute(job, backend=InProcessBackend(parts)).state == "complete"
        return tmp_path / name

    drafted = run("a", "speculation.num_speculative_tokens=3")
    scales = require_manifest(RunFolder.at(str(drafted))).kv_scales
    assert [key.split()[0] for key in scales] == ["target", "draft"]
    expected = tokens(drafted)
    assert tokens(run("b", "speculation.policy=off", "workers.prefix_sharing=false", "workers.slots=5")) == expected
    for part in sorted(drafted.glob("**/part-*.parquet"))[::2]:
        part.unlink()
    assert tokens(run("a", "speculation.num_speculative_tokens=3")) == expected
    assert require_manifest(RunFolder.at(str(drafted))).kv_scales == scales
    next(iter(sorted(drafted.glob("**/part-*.parquet")))).unlink()
    assert tokens(run("a", "model.quantize_draft=fp8")) == expected
    again = require_manifest(RunFolder.at(str(drafted))).kv_scales
    assert len(again) == 3 and again.items() >= scales.items(), "scales of the rounded draft are measured"
