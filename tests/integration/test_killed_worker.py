"""Real engines on two workers: after one is killed, the tokens of every row equal those of an undisturbed run."""

import os
import signal
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from support.fake_workers import outputs
from support.ray_workers import RayWorkers

from specpipe.job import parse_job
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.run.run import RunResult, Viewer, execute
from specpipe.pipeline.store.verify import verify
from specpipe.pipeline.worker.build import build_parts
from specpipe.pipeline.worker.config import WorkerConfig, WorkerParts

pytestmark = pytest.mark.usefixtures("ray_session")


def build_parts_and_note_pid(config: WorkerConfig, *, pids: Path) -> WorkerParts:
    (pids / str(os.getpid())).touch()
    return build_parts(config)


def run_job(
    folder: Path, device: str, rows: int, out: str, *, system_prompt: str = "Answer.", scored: int = 0,
    **workers: object,
) -> tuple[RunResult, int]:  # fmt: skip
    """Runs the job once; its first `scored` rows are scored. With two workers, one is killed after a third of it."""
    pids, killed = folder / f"pids-{out}", []
    pids.mkdir()
    table = pa.table({"prompt": [f"What is {i} plus {i % 7}?" for i in range(rows)]})
    if scored:
        choices = [[f" It is {i + n}." for n in range(4)] if i < scored else None for i in range(rows)]
        table = table.append_column("continuations", pa.array(choices, pa.list_(pa.string())))
    pq.write_table(table, folder / "rows.parquet")
    values = {
        "model": {"target": "builtin:tiny", "draft": "builtin:tiny", "device": device, "dtype": "float32"},
        "data": {"path": str(folder / "rows.parquet"), "system_prompt": system_prompt},
        "sampling": {"temperature": 0, "max_new_tokens": 48, "ignore_eos": True},
        "speculation": {"policy": "fixed"},
        "workers": {"slots": 4, "shard_tokens": 400, "cpus_per_worker": 1, **workers},
        "output": {"path": str(folder / out)},
    }

    def kill(progress: Progress) -> None:
        enough = progress.workers == 2 and progress.published_shards > progress.total_shards / 3
        if enough and not killed:
            killed.append(int(sorted(os.listdir(pids))[0]))
            os.kill(killed[0], signal.SIGKILL)

    watch = Viewer(progress=kill) if workers["count"] == 2 else None
    known = RayWorkers(partial(build_parts_and_note_pid, pids=pids))
    result = execute(parse_job(values, source="test"), backend=known, viewer=watch)
    return result, len(killed)


@pytest.mark.parametrize(
    ("device", "rows"),
    [pytest.param("cpu", 60, marks=pytest.mark.slow), pytest.param("cuda", 1000, marks=pytest.mark.gpu)],
)
def test_tokens_are_the_same_after_one_of_two_workers_is_killed(tmp_path: Path, device: str, rows: int) -> None:
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    quiet, _ = run_job(tmp_path, device, rows, "calm", count=1)
    result, killed = run_job(tmp_path, device, rows, "out", count=2)
    assert (quiet.exit_code, result.exit_code, result.state, killed) == (0, 0, "complete", 1)
    found = verify(str(tmp_path / "out"))
    assert found.complete, "\n".join(map(str, found.findings))
    assert found.verified_rows == rows
    got, expected = outputs(tmp_path / "out"), outputs(tmp_path / "calm")
    assert got["generated_token_ids"] == expected["generated_token_ids"]
    assert max(pq.read_table(tmp_path / "out/telemetry/shards.parquet")["attempt"].to_pylist()) > 1


@pytest.mark.slow
def test_shared_prompts_have_the_tokens_of_unshared_ones_after_a_kill(tmp_path: Path) -> None:
    rows, prompt = 40, "Numbers are given in words and in digits, and every sum is checked twice. " * 12
    run = partial(run_job, tmp_path, "cpu", rows, system_prompt=prompt)
    alone, _ = run("alone", count=1, prefix_sharing=False)
    calm, _ = run("calm", count=1)
    result, killed = run("out", count=2)
    assert (alone.exit_code, calm.exit_code, result.exit_code, killed) == (0, 0, 0, 1)
    found = verify(str(tmp_path / "out"))
    assert found.complete, "\n".join(map(str, found.findings))
    assert found.verified_rows == rows
    got, undisturbed, unshared = (outputs(tmp_path / name) for name in ("out", "calm", "alone"))
    assert got["generated_token_ids"] == undisturbed["generated_token_ids"] == unshared["generated_token_ids"]
    assert sum(map(bool, got["cached_tokens"].to_pylist())) >= rows - 3, "once by each of three workers"
    assert not any(unshared["cached_tokens"].to_pylist())


@pytest.mark.slow
def test_scores_are_the_same_after_one_of_two_workers_is_killed(tmp_path: Path) -> None:
    rows, scored = 240, 200
    run = partial(run_job, tmp_path, "cpu", rows, scored=scored)
    calm, _ = run("calm", count=1)
    result, killed = run("out", count=2)
    assert (calm.exit_code, result.exit_code, result.state, killed) == (0, 0, "complete", 1)
    found = verify(str(tmp_path / "out"))
    assert found.complete and not found.findings, "\n".join(map(str, found.findings))
    assert found.verified_rows == rows
    got, expected = outputs(tmp_path / "out"), outputs(tmp_path / "calm")
    assert got["generated_token_ids"] == expected["generated_token_ids"]
    assert got["finish_reason"].to_pylist() == ["scored"] * scored + ["length"] * (rows - scored)
    for ours, theirs in zip(got["scores"].to_pylist()[:scored], expected["scores"].to_pylist()[:scored], strict=True):
        assert [s["logprob"] for s in ours] == pytest.approx([s["logprob"] for s in theirs], abs=1e-4)
        assert [(s["num_tokens"], s["is_greedy"]) for s in ours] == [(s["num_tokens"], s["is_greedy"]) for s in theirs]
    parts = [pq.read_table(part) for part in sorted((tmp_path / "out/outputs").glob("part-*.parquet"))]
    shards = pq.read_table(tmp_path / "out/telemetry/shards.parquet").to_pylist()
    again = [parts[shard["shard"]] for shard in shards if shard["attempt"] > 1]
    assert any("scored" in part["finish_reason"].to_pylist() for part in again), "a shard with scores was repeated"
