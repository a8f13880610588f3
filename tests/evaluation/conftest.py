"""Runs of the embedded pair in this process, on recordings that need no lm-eval."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from support.fake_workers import InProcessBackend

import specpipe.engine.rounds.round
from jobs.tiny_pair.problems import problems
from specpipe.job import parse_job
from specpipe.pipeline.run.run import RunResult, execute
from specpipe.pipeline.worker.build import build_parts

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"

ROWS = 8


@pytest.fixture
def tiny_run(tmp_path: Path) -> Callable[..., RunResult]:
    """tiny_run("name", "key=value", …): a run of builtin:tiny on ROWS held-out problems into tmp_path/name."""
    data = tmp_path / "problems.parquet"
    chats = [[{"role": "user", "content": problem.question}] for problem in problems("heldout", ROWS)]
    pq.write_table(pa.table({"messages": chats, "id": [f"p{i}" for i in range(ROWS)]}), data)

    def run(name: str, *overrides: str, **sections: dict[str, Any]) -> RunResult:
        job: dict[str, Any] = {
            "name": name,
            "model": {"target": "builtin:tiny", "draft": "builtin:tiny", "device": "cpu"},
            "data": {"path": str(data)},
            "sampling": {"max_new_tokens": 112},
            "speculation": {"policy": "fixed"},
            "workers": {"slots": 8, "shard_tokens": 800},
            "output": {"path": str(tmp_path / name)},
        }
        for section, values in sections.items():
            job[section] = job[section] | values
        return execute(parse_job(job, overrides, source="test"), backend=InProcessBackend(build_parts=build_parts))

    return run


@pytest.fixture
def among_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory is the repository, whose tasks lm-eval is to find."""
    monkeypatch.chdir(Path(__file__).parents[2])
    warnings.simplefilter("ignore")  # lm-eval's and its libraries' own


@pytest.fixture
def accept_everything(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """accept_everything(): from now on verification is broken: every draft token passes, whatever the target says."""
    real = specpipe.engine.rounds.round.rejection_sample

    def broken(logits: Any, drafts: Any, *rest: Any, **options: Any) -> Any:
        options |= {"method": "synthetic", "synthetic_rates": torch.ones(drafts.shape[1])}
        return real(logits, drafts, *rest, **options)

    return lambda: monkeypatch.setattr(specpipe.engine.rounds.round, "rejection_sample", broken)
