"""The doctor names what would stop a run, with its mend, and leaves nothing behind."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.small_models import make_small_model

from specpipe.data.locations import locate
from specpipe.doctor import Finding, examine, for_machine, host
from specpipe.job import JobSpec, parse_job


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_small_model("llama", folder / "target", seed=0)
    make_small_model("llama", folder / "other", seed=1, vocab_size=300)
    return folder


@pytest.fixture
def job(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, object]]:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    pq.write_table(pa.table({"prompt": ["Hello", "", "there"]}), tmp_path / "rows.parquet")
    target = str(models / "target")
    return {
        "model": {"target": target, "draft": target, "device": "cpu"},
        "data": {"path": str(tmp_path / "rows.parquet")},
        "output": {"path": str(tmp_path / "runs" / "a")},
    }


def spec(job: dict[str, dict[str, object]], *overrides: str) -> JobSpec:
    return parse_job(job, overrides, source="test")


def findings(job: JobSpec | None) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(job)}


def test_a_job_that_can_run_has_no_problem_and_nothing_is_written(
    job: dict[str, dict[str, object]], tmp_path: Path
) -> None:
    found = findings(spec(job))
    assert {finding.status for name, finding in found.items() if name not in ("dataset", "prompts", "bytecode")} == {
        "ok"
    }
    assert "share a vocabulary" in found["models"].found and "3 rows" in found["plan"].found
    assert sorted(os.listdir(tmp_path)) == ["rows.parquet"]


def test_plain_prompts_for_a_model_of_chats_are_a_note(job: dict[str, dict[str, object]]) -> None:
    note = findings(spec(job))["prompts"]
    assert note.status == "note" and "data.system_prompt" in note.mend
    assert "prompts" not in findings(spec(job, "data.system_prompt=Be brief."))


def test_without_a_job_the_machine_alone_is_looked_at() -> None:
    assert set(findings(None)) == {"Python", "torch", "GPUs", "Triton", "Ray", "disk"}


def test_bad_rows_among_the_first_are_a_note_and_nothing_but_bad_rows_a_problem(
    job: dict[str, dict[str, object]], tmp_path: Path
) -> None:
    some = findings(spec(job))["dataset"]
    assert some.status == "note" and "1 of the first 3 rows cannot be run" in some.found and "row 1" in some.found
    pq.write_table(pa.table({"prompt": ["", ""]}), tmp_path / "rows.parquet")
    assert findings(spec(job))["dataset"].status == "problem"


@pytest.mark.parametrize(
    ("override", "name", "words"),
    [
        ("model.target=./nowhere", "target", "folder ./nowhere does not exist"),
        ("model.draft=builtin:huge", "draft", "there is no model builtin:huge"),
        ("model.max_model_len=9999", "models", "set model.max_model_len to 512 or less"),
        ("data.path=nowhere.parquet", "plan", "is not there"),
        ("data.prompt=question", "plan", "data.prompt is 'question', but"),
        ("output.path=/dev/null", "output folder", "is not a folder"),
    ],
)
def test_what_would_stop_a_run_is_a_problem(
    job: dict[str, dict[str, object]], override: str, name: str, words: str
) -> None:
    finding = findings(spec(job, override))[name]
    assert finding.status == "problem" and words in finding.found


def test_a_draft_of_another_vocabulary_is_found_without_loading_weights(
    job: dict[str, dict[str, object]], models: Path
) -> None:
    found = findings(spec(job, f"model.draft={models / 'other'}"))["models"]
    assert found.status == "problem" and "vocabularies differ" in found.found


def test_a_folder_of_something_else_and_one_that_may_not_be_written_are_problems(
    job: dict[str, dict[str, object]], tmp_path: Path
) -> None:
    found = findings(spec(job, f"output.path={tmp_path}"))["output folder"]
    assert found.status == "problem" and "no specpipe run's" in found.found
    inside = findings(spec(job, f"output.path={tmp_path}/rows.parquet/a"))["output folder"]
    assert inside.status == "problem"


def test_an_object_store_is_written_to_and_left_as_it_was(job: dict[str, dict[str, object]]) -> None:
    store = locate("mock:///doctor").filesystem
    store.create_dir("doctor")
    found = findings(spec(job, "output.path=mock:///doctor"))["output folder"]
    assert (found.status, store.get_file_info(pa.fs.FileSelector("doctor"))) == ("ok", [])


def test_a_cluster_that_does_not_answer_and_a_folder_that_it_may_not_see(
    job: dict[str, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"ray://127.0.0.1:{server.getsockname()[1]}")
        found = findings(spec(job))
        assert found["Ray"].status == "ok"
        assert (
            found["output folder"].status == "note" and "storage that all machines share" in found["output folder"].mend
        )
    closed = findings(spec(job))["Ray"]
    assert closed.status == "problem" and "unset RAY_ADDRESS" in closed.mend


@pytest.mark.parametrize(
    ("gpu", "dtype", "status", "words"),
    [
        (host.Gpu(0, "H200", 100 << 30, 140 << 30, (9, 0)), "auto", "ok", ""),
        (host.Gpu(1, "T4", 14 << 30, 15 << 30, (7, 5)), "auto", "problem", "model.dtype: float16"),
        (host.Gpu(1, "T4", 14 << 30, 15 << 30, (7, 5)), "float16", "ok", ""),
        (host.Gpu(0, "H200", 10 << 30, 140 << 30, (9, 0)), "auto", "note", "nvidia-smi"),
    ],
)
def test_gpus_that_are_too_old_or_taken_are_named(gpu: host.Gpu, dtype: str, status: str, words: str) -> None:
    finding = for_machine.one_gpu(gpu, dtype)
    assert finding.status == status and words in finding.mend and gpu.name in finding.found


def test_a_python_that_compiles_its_libraries_at_every_start_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))  # where nothing is kept yet
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    [note] = for_machine.bytecode()
    assert note.status == "note" and "PYTHONDONTWRITEBYTECODE" in note.mend
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # the next start keeps it
    monkeypatch.setattr(os, "access", lambda *_: True)
    assert not list(for_machine.bytecode())


def test_gpus_that_torch_cannot_use_are_a_problem_with_a_mend() -> None:
    import torch

    if torch.cuda.is_available():
        assert host.torch_problem(1) is None
        return
    assert host.torch_problem(0) is None
    wrong = host.torch_problem(2)
    assert wrong is not None and "2 GPU(s) are here" in wrong.found and wrong.mend


def test_memory_is_compared_with_what_is_free(
    job: dict[str, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = findings(spec(job))["memory"]
    assert needs.status == "ok"
    monkeypatch.setattr(host, "free_memory", lambda device: 1 << 20)
    note = findings(spec(job))["memory"]
    monkeypatch.setattr(host, "free_memory", lambda device: 1 << 10)
    problem = findings(spec(job))["memory"]
    assert (note.status, problem.status) == ("note", "problem")


def test_free_memory_and_mounts_are_those_of_this_machine(tmp_path: Path) -> None:
    assert 0 < host.free_memory("cpu") <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert host.mount_type(Path("/proc/self")) == "proc"
    assert host.mount_type(tmp_path / "not" / "there") not in ("", "unknown", "proc")


@pytest.mark.gpu
def test_on_a_gpu_machine_a_kernel_is_compiled_and_run() -> None:
    found = findings(None)
    assert found["torch"].status == "ok" and "CUDA" in found["torch"].found
    assert "compute capability" in found["GPUs"].found
    assert (found["Triton"].status, found["Triton"].found) == ("ok", "compiles and runs a kernel")
