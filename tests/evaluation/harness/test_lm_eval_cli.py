"""Flags of lm-eval: recorded ones, those that must be equal at replay, refused ones."""

import importlib
import tomllib
from pathlib import Path
from typing import Any

import pytest

from specpipe.errors import JobError
from specpipe.evaluation.harness.lm_eval_cli import MODELS, parse_flags, register_models
from specpipe.evaluation.harness.replay import check_flags

ROOT = Path(__file__).parents[3]
BASE = ["--tasks", "a,b", "--num_fewshot", "5", "--limit", "40"]


def recorded() -> dict[str, Any]:
    return dict(parse_flags(BASE).prompts)


def test_recorded_flags_include_the_defaults() -> None:
    found = recorded()
    assert found["tasks"] == ["a", "b"]
    assert (found["num_fewshot"], found["limit"], found["seed"]) == (5, 40.0, [0, 1234, 1234, 1234])


@pytest.mark.parametrize(
    "flags",
    [
        ["--seed", "7"],
        ["--gen_kwargs", "temperature=0.5,do_sample=True"],
        ["--num_fewshot", "4"],
        ["--apply_chat_template"],
        ["--system_instruction", "Be brief."],
        ["--tasks", "a"],
        ["--limit", "41"],
        ["--limit", "0.5"],
    ],
)
def test_a_flag_that_changes_prompts_is_refused_at_replay(flags: list[str]) -> None:
    now = parse_flags(flags, recorded=recorded()).prompts
    with pytest.raises(JobError, match=f"{flags[0]} was .* and is") as refused:
        check_flags(recorded(), now)
    assert "record again" in str(refused.value)


def test_samples_select_other_documents_and_are_refused() -> None:
    before = parse_flags(["--tasks", "a"]).prompts
    now = parse_flags(["--samples", '{"a": [1, 2]}'], recorded=before).prompts
    with pytest.raises(JobError, match=r"--samples was None and is \{'a': \[1, 2\]\}"):
        check_flags(before, now)


@pytest.mark.parametrize("flags", [[], ["--limit", "40"], ["--limit", "7"], BASE])
def test_the_same_flags_and_a_smaller_limit_are_fine(flags: list[str]) -> None:
    check_flags(recorded(), parse_flags(flags, recorded=recorded()).prompts)


def test_a_limit_is_a_prefix_of_no_limit() -> None:
    before = parse_flags(["--tasks", "a"]).prompts
    check_flags(before, parse_flags(["--limit", "3"], recorded=before).prompts)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--cache_requests", "true"], "reuse the prompts of an earlier evaluation"),
        (["--use_cache", "db"], "bypasses its cache for sampled requests"),
        (["--model", "hf"], "specpipe sets it"),
        (["--model_args", "pretrained=x"], "specpipe sets it"),
        (["--output_path", "x"], "--out"),
    ],
)
def test_flags_that_specpipe_sets_are_refused(flags: list[str], why: str) -> None:
    with pytest.raises(JobError, match=f"{flags[0]} is refused: .*{why}"):
        parse_flags([*BASE, *flags])


def test_a_cache_in_a_configuration_file_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "flags.yaml").write_text("tasks: [a]\nuse_cache: db\n")
    with pytest.raises(JobError, match="--use_cache is refused"):
        parse_flags(["--config", str(tmp_path / "flags.yaml")])
    with pytest.raises(JobError, match="--config is refused at replay"):
        parse_flags(["--config", str(tmp_path / "flags.yaml")], recorded=recorded())


def test_flags_that_change_no_prompt_pass() -> None:
    found = parse_flags(["--write_out"], recorded=recorded())
    check_flags(recorded(), found.prompts)
    assert found.others == {"write_out": True}


def test_no_task_is_an_error() -> None:
    with pytest.raises(JobError, match="expected --tasks"):
        parse_flags([])


@pytest.mark.parametrize("flags", [["--tusks", "a"], ["--tasks", "a", "--num_fewshot", "many"]])
def test_flags_that_lm_eval_rejects_are_errors(flags: list[str]) -> None:
    with pytest.raises(JobError, match=r"lm-eval rejects these flags: .+"):
        parse_flags(flags)


def test_a_relative_include_path_means_the_same_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_flags([*BASE, "--include_path", "tasks"]).prompts["include_path"] == str(tmp_path / "tasks")


def test_registered_models_are_the_declared_entry_points() -> None:
    from lm_eval.api.registry import model_registry

    register_models()
    register_models()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["lm_eval.models"] == MODELS
    assert all(name in model_registry for name in MODELS)
    for target in MODELS.values():
        module, name = target.split(":")
        assert hasattr(importlib.import_module(module), name)
