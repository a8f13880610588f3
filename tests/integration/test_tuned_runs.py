"""Runs under `policy: goodput`: tuning appears in the telemetry and never changes a token."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from support.fake_workers import InProcessBackend, outputs, wait_for
from transformers import AutoConfig, AutoModelForCausalLM

from specpipe.job import load_job
from specpipe.models.tiny import TARGET
from specpipe.pipeline.run.run import RunResult, execute
from specpipe.pipeline.store import cost_cache
from specpipe.pipeline.store.verify import verify
from specpipe.pipeline.worker.build import build_parts

ROOT = Path(__file__).parents[2]
TUNED = ("speculation.policy=goodput", "speculation.num_speculative_tokens=3")


def run_tiny(out: Path, *overrides: str, workers: int = 1, rows: int = 12) -> RunResult:
    """Runs jobs/sharegpt.yaml on builtin:tiny with short rows and several shards."""
    settings = [
        f"data.path={ROOT / 'jobs/data/sharegpt_sample.parquet'}",
        "data.warmup_rows=0",
        f"data.limit={rows}",
        f"output.path={out}",
        "sampling.max_new_tokens=48",
        "workers.slots=3",
        "workers.shard_tokens=400",
        *overrides,
    ]
    job = load_job(ROOT / "jobs/sharegpt.yaml", settings)
    return execute(job, backend=InProcessBackend(build_parts=build_parts, workers=workers))


def tokens(folder: Path) -> list[list[int]]:
    ids: list[list[int]] = outputs(folder)["generated_token_ids"].to_pylist()
    return ids


def shards(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "telemetry/shards.parquet").to_pylist()
    return rows


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the output `out` of a run under goodput, and the cache that it filled."""
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECPIPE_CACHE", str(folder / "cache"))
        patch.setattr(cost_cache, "MIN_ROUNDS", 10)
        assert run_tiny(folder / "out", *TUNED, rows=6).exit_code == 0
    return folder


@pytest.mark.slow
def test_goodput_generates_the_tokens_of_plain_decoding(tuned: Path, tmp_path: Path) -> None:
    run_tiny(tmp_path, "speculation.policy=off", rows=6)
    assert tokens(tuned / "out") == tokens(tmp_path)


@pytest.mark.slow
def test_policies_proposers_and_worker_counts_change_no_token(tmp_path: Path) -> None:
    run_tiny(tmp_path / "off", "speculation.policy=off")
    variants = {
        "goodput": TUNED,
        "auto": (*TUNED, "speculation.proposer=auto"),
        "fixed": ("speculation.policy=fixed", "speculation.num_speculative_tokens=3"),
    }
    for name, settings in variants.items():
        assert run_tiny(tmp_path / name, *settings).state == "complete"
        assert tokens(tmp_path / name) == tokens(tmp_path / "off"), name
    run_tiny(tmp_path / "two", *TUNED, workers=2)
    assert tokens(tmp_path / "two") == tokens(tmp_path / "off")


def test_telemetry_holds_reasons_and_measured_round_costs(tuned: Path) -> None:
    out = tuned / "out"
    records = shards(out)
    assert all(record["plan_reason"].startswith("goodput: ") for record in records)
    assert not any("timed" in record["plan_reason"] for record in records), "the profile came before the first shard"
    (costs,) = json.loads((out / "telemetry/costs.json").read_text()).values()
    assert costs["rounds"] > 10 and min(costs["seconds"].values()) > 0
    (timeline,) = out.glob("telemetry/timeline-*.parquet")
    samples = pq.read_table(timeline).to_pylist()
    assert any(sample["expected_tokens_per_s"] > 0 for sample in samples)
    assert all(sample["plan_reason"] for sample in samples)
    assert not [finding for finding in verify(str(out)).findings if finding.kind != "ok"]


def test_profiled_rounds_are_in_no_output_or_telemetry(tuned: Path) -> None:
    out = tuned / "out"
    summary = json.loads((out / "summary.json").read_text())
    rounds = sum(record["rounds"] for record in shards(out))
    row_rounds = sum(summary["k_histogram"].values())
    assert row_rounds <= 3 * rounds
    assert summary["total_output_tokens"] == sum(map(len, tokens(out)))
    emitted = row_rounds + summary["spec_decode_emitted_accepted_tokens"]
    assert summary["total_output_tokens"] <= emitted


@pytest.mark.slow
def test_cost_cache_is_kept_and_rewritten_when_damaged(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tuned / "cache", tmp_path / "cache")
    monkeypatch.setenv("SPECPIPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cost_cache, "MIN_ROUNDS", 10)
    (kept,) = (tmp_path / "cache/costs").glob("*.json")
    assert json.loads(kept.read_text())["seconds"]
    kept.write_text("{")
    assert run_tiny(tmp_path / "out", *TUNED, rows=3).state == "complete"
    assert json.loads(kept.read_text())["seconds"]


@pytest.fixture
def random_draft(tmp_path: Path) -> Path:
    """builtin:tiny's draft, with random weights."""
    folder, source = tmp_path / "draft", TARGET.with_name("draft")
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source)).save_pretrained(folder)
    for path in TARGET.glob("*token*"):
        shutil.copy(path, folder)
    return folder


@pytest.mark.slow
def test_useless_draft_is_switched_off_and_named_in_the_summary(tmp_path: Path, random_draft: Path) -> None:
    """Its cost is bounded by the rounds that try it and by the seconds of its own steps and prefills."""
    settings = ("model.target=builtin:tiny", f"model.draft={random_draft}", *TUNED, "workers.shard_tokens=3000")
    result = run_tiny(tmp_path / "useless", *settings, rows=64)
    assert result.state == "complete"
    assert "The draft is useless here: the target accepted" in result.summary["useless_draft"]
    rounds = {int(k): count for k, count in result.summary["k_histogram"].items()}
    tried = sum(count for k, count in rounds.items() if k)
    assert 0 < tried < 0.03 * sum(rounds.values())
    records = shards(tmp_path / "useless")
    assert sum(record["draft_s"] for record in records) < 0.02 * sum(record["busy_s"] for record in records)
    run_tiny(tmp_path / "plain", "speculation.policy=off", "workers.shard_tokens=3000", rows=64)
    assert tokens(tmp_path / "useless") == tokens(tmp_path / "plain")


@pytest.mark.slow
def test_killed_tuned_run_is_resumed_with_the_same_tokens(tmp_path: Path) -> None:
    """Through `specpipe run` on Ray, killed with its workers."""
    out = tmp_path / "out"
    job = [
        sys.executable, "-m", "specpipe", "run", str(ROOT / "jobs/sharegpt.yaml"),
        "--set", f"data.path={ROOT / 'jobs/data/sharegpt_sample.parquet'}", "--set", "data.warmup_rows=0",
        "--set", "data.limit=16", "--set", f"output.path={out}", "--set", "sampling.max_new_tokens=48",
        "--set", "workers.slots=3", "--set", "workers.shard_tokens=400", "--set", "speculation.policy=goodput",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    live = subprocess.Popen(job, cwd=tmp_path, env=environment, start_new_session=True)
    try:
        wait_for(lambda: len(list(out.glob("outputs/part-*.parquet"))) >= 2 or live.poll() is not None, 240)
    finally:
        os.killpg(live.pid, signal.SIGKILL)
        live.wait()
    before = len(list(out.glob("outputs/part-*.parquet")))
    done = subprocess.run(job, cwd=tmp_path, env=environment, timeout=240, check=True, capture_output=True, text=True)
    assert "already complete" not in done.stdout
    records = shards(out)
    assert 2 <= before < len(records)
    assert {record["epoch"] for record in records} == {1, 2}
    run_tiny(tmp_path / "off", "speculation.policy=off", rows=16)
    assert tokens(out) == tokens(tmp_path / "off")
