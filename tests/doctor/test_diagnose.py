"""Checks of the doctor: problems, notes and their remedies. Checks leave no files behind."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.small_models import make_small_model

from specpipe.data.locations import locate
from specpipe.doctor import Diagnosis, diagnose, hardware, machine_checks
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


def diagnoses(job: JobSpec | None) -> dict[str, Diagnosis]:
    return {diagnosis.name: diagnosis for diagnosis in diagnose(job)}


def test_runnable_job_has_no_problem_and_writes_no_files(job: dict[str, dict[str, object]], tmp_path: Path) -> None:
    found = diagnoses(spec(job, "speculation.proposer=auto", "speculation.replay=runs/day-*"))
    expected_notes = ("dataset", "prompts", "bytecode")
    assert {item.status for name, item in found.items() if name not in expected_notes} == {"ok"}
    assert "share a vocabulary" in found["models"].found and "3 rows" in found["plan"].found
    assert found["replay"].found == "no earlier answers in runs/day-* yet"
    assert sorted(os.listdir(tmp_path)) == ["rows.parquet"]


def test_plain_prompts_for_a_chat_model_are_a_note(job: dict[str, dict[str, object]]) -> None:
    note = diagnoses(spec(job))["prompts"]
    assert note.status == "note" and "data.system_prompt" in note.remedy
    assert "prompts" not in diagnoses(spec(job, "data.system_prompt=Be brief."))


def test_without_a_job_only_the_machine_is_checked() -> None:
    assert set(diagnoses(None)) == {"Python", "torch", "GPUs", "Triton", "Ray", "disk"}


def test_some_bad_rows_are_a_note_all_bad_a_problem(job: dict[str, dict[str, object]], tmp_path: Path) -> None:
    some = diagnoses(spec(job))["dataset"]
    assert some.status == "note" and "1 of the first 3 rows cannot be run" in some.found and "row 1" in some.found
    pq.write_table(pa.table({"prompt": ["", ""]}), tmp_path / "rows.parquet")
    assert diagnoses(spec(job))["dataset"].status == "problem"


@pytest.mark.parametrize(
    ("override", "name", "words"),
    [
        ("model.target=./nowhere", "target", "folder ./nowhere does not exist"),
        ("model.draft=builtin:huge", "draft", "unknown built-in model builtin:huge"),
        ("model.max_model_len=9999", "models", "set model.max_model_len to 512 or less"),
        ("data.path=nowhere.parquet", "plan", "does not exist"),
        ("data.prompt=question", "plan", "data.prompt is 'question', but"),
        ("output.path=/dev/null", "output folder", "is not a folder"),
    ],
)
def test_wrong_job_settings_are_problems(
    job: dict[str, dict[str, object]], override: str, name: str, words: str
) -> None:
    diagnosis = diagnoses(spec(job, override))[name]
    assert diagnosis.status == "problem" and words in diagnosis.found


def test_draft_with_another_vocabulary_is_a_problem(job: dict[str, dict[str, object]], models: Path) -> None:
    found = diagnoses(spec(job, f"model.draft={models / 'other'}"))["models"]
    assert found.status == "problem" and "vocabularies differ" in found.found


def test_weights_that_do_not_fit_the_configuration_are_a_problem(
    job: dict[str, dict[str, object]], models: Path, tmp_path: Path
) -> None:
    shutil.copytree(models / "target", tmp_path / "changed")
    config = tmp_path / "changed/config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    found = diagnoses(spec(job, f"model.target={tmp_path / 'changed'}"))["models"]
    assert found.status == "problem" and "lacks model.layers.2.input_layernorm.weight" in found.found


def test_foreign_or_unwritable_output_folder_is_a_problem(job: dict[str, dict[str, object]], tmp_path: Path) -> None:
    found = diagnoses(spec(job, f"output.path={tmp_path}"))["output folder"]
    assert found.status == "problem" and "do not belong to a specpipe run" in found.found
    inside = diagnoses(spec(job, f"output.path={tmp_path}/rows.parquet/a"))["output folder"]
    assert inside.status == "problem"


def test_object_store_probe_leaves_no_file(job: dict[str, dict[str, object]]) -> None:
    store = locate("mock:///doctor").filesystem
    store.create_dir("doctor")
    found = diagnoses(spec(job, "output.path=mock:///doctor"))["output folder"]
    assert (found.status, store.get_file_info(pa.fs.FileSelector("doctor"))) == ("ok", [])


def test_closed_ray_address_is_a_problem_and_local_folder_a_note(
    job: dict[str, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"ray://127.0.0.1:{server.getsockname()[1]}")
        found = diagnoses(spec(job))
        assert found["Ray"].status == "ok"
        folder = found["output folder"]
        assert folder.status == "note" and "storage that all machines share" in folder.remedy
    closed = diagnoses(spec(job))["Ray"]
    assert closed.status == "problem" and "unset RAY_ADDRESS" in closed.remedy


@pytest.mark.parametrize(
    ("gpu", "dtype", "status", "words"),
    [
        (hardware.Gpu(0, "H200", 100 << 30, 140 << 30, (9, 0)), "auto", "ok", ""),
        (hardware.Gpu(1, "T4", 14 << 30, 15 << 30, (7, 5)), "auto", "problem", "model.dtype: float16"),
        (hardware.Gpu(1, "T4", 14 << 30, 15 << 30, (7, 5)), "float16", "ok", ""),
        (hardware.Gpu(0, "H200", 10 << 30, 140 << 30, (9, 0)), "auto", "note", "nvidia-smi"),
    ],
)
def test_old_or_occupied_gpus_get_a_remedy(gpu: hardware.Gpu, dtype: str, status: str, words: str) -> None:
    diagnosis = machine_checks.one_gpu(gpu, dtype)
    assert diagnosis.status == status and words in diagnosis.remedy and gpu.name in diagnosis.found


def test_missing_bytecode_cache_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))  # no bytecode there yet
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    [note] = machine_checks.bytecode()
    assert note.status == "note" and "PYTHONDONTWRITEBYTECODE" in note.remedy
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # the next start caches it
    monkeypatch.setattr(os, "access", lambda *_: True)
    assert not list(machine_checks.bytecode())


def test_gpus_unusable_by_torch_get_a_remedy() -> None:
    import torch

    if torch.cuda.is_available():
        assert hardware.torch_problem(1) is None
        return
    assert hardware.torch_problem(0) is None
    wrong = hardware.torch_problem(2)
    assert wrong is not None and "2 GPU(s) are visible" in wrong.found and wrong.remedy


def test_memory_status_depends_on_free_memory(
    job: dict[str, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = diagnoses(spec(job))["memory"]
    assert needs.status == "ok"
    monkeypatch.setattr(hardware, "free_memory", lambda device: 1 << 20)
    note = diagnoses(spec(job))["memory"]
    monkeypatch.setattr(hardware, "free_memory", lambda device: 1 << 10)
    problem = diagnoses(spec(job))["memory"]
    assert (note.status, problem.status) == ("note", "problem")


def test_free_memory_and_mount_type_of_this_machine(tmp_path: Path) -> None:
    assert 0 < hardware.free_memory("cpu") <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert hardware.mount_type(Path("/proc/self")) == "proc"
    assert hardware.mount_type(tmp_path / "not" / "there") not in ("", "unknown", "proc")


@pytest.mark.gpu
def test_kernel_compiles_and_runs_on_a_gpu() -> None:
    found = diagnoses(None)
    assert found["torch"].status == "ok" and "CUDA" in found["torch"].found
    assert "compute capability" in found["GPUs"].found
    assert (found["Triton"].status, found["Triton"].found) == ("ok", "compiles and runs a kernel")
