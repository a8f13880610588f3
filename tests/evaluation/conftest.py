"""Runs of the embedded pair in this process. Runs write no report page, which takes half of a small run's time."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partialmethod
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
RunTiny = Callable[..., RunResult]


@pytest.fixture(scope="session")
def problem_chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of ROWS held-out word problems as chats."""
    path = tmp_path_factory.mktemp("problems") / "problems.parquet"
    chats = [[{"role": "user", "content": problem.question}] for problem in problems("heldout", ROWS)]
    pq.write_table(pa.table({"messages": chats, "id": [f"p{i}" for i in range(ROWS)]}), path)
    return path


@pytest.fixture(scope="session")
def run_in(problem_chats: Path) -> RunTiny:
    """run_in(folder, "name", "key=value", …, section={…}): a run of builtin:tiny into folder/name."""

    def run(folder: Path, name: str, *overrides: str, **sections: dict[str, Any]) -> RunResult:
        job: dict[str, Any] = {
            "name": name,
            "model": {"target": "builtin:tiny", "draft": "builtin:tiny", "device": "cpu"},
            "data": {"path": str(problem_chats)},
            "sampling": {"max_new_tokens": 112},
            "speculation": {"policy": "fixed"},
            "workers": {"slots": 8, "shard_tokens": 800},
            "output": {"path": str(folder / name)},
        }
        for section, values in sections.items():
            job[section] = job[section] | values
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("specpipe.pipeline.run.run.write_report", lambda *_: None)
            return execute(parse_job(job, overrides, source="test"), backend=InProcessBackend(build_parts=build_parts))

    return run


@pytest.fixture
def tiny_run(run_in: RunTiny, tmp_path: Path) -> RunTiny:
    """tiny_run("name", "key=value", …, section={…}): a run of builtin:tiny into tmp_path/name."""
    return lambda name, *overrides, **sections: run_in(tmp_path, name, *overrides, **sections)


@pytest.fixture(scope="session")
def synthetic_run(run_in: RunTiny, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a synthetic run."""
    folder = tmp_path_factory.mktemp("synthetic")
    synthetic = {"method": "synthetic", "synthetic_acceptance_length": 2.0}
    run_in(folder, "fake", "sampling.max_new_tokens=2", speculation=synthetic)
    return str(folder / "fake")


@pytest.fixture
def among_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Working directory: the repository, where lm-eval finds the tasks in jobs/tasks."""
    monkeypatch.chdir(Path(__file__).parents[2])
    warnings.simplefilter("ignore")  # of lm-eval and its libraries


@pytest.fixture
def only_our_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares lm-eval the search of its own tasks, which takes seconds."""
    from lm_eval.tasks import TaskManager

    monkeypatch.setattr(TaskManager, "__init__", partialmethod(TaskManager.__init__, include_defaults=False))


@pytest.fixture
def accept_everything(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """accept_everything(): breaks verification, so that every draft token is accepted."""
    real = specpipe.engine.rounds.round.rejection_sample

    def broken(logits: Any, drafts: Any, *rest: Any, **options: Any) -> Any:
        options |= {"method": "synthetic", "synthetic_rates": torch.ones(drafts.shape[1])}
        return real(logits, drafts, *rest, **options)

    return lambda: monkeypatch.setattr(specpipe.engine.rounds.round, "rejection_sample", broken)
