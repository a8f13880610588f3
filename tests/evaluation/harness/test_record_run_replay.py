"""Recording, running and replaying with lm-eval. Its index of tasks takes ten seconds, so the default test skips it."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.fake_workers import InProcessBackend, outputs

from specpipe.errors import JobError, OutputError
from specpipe.evaluation.harness.recording import read_recording, record
from specpipe.evaluation.harness.replay import replay
from specpipe.evaluation.schedule.eval_history import read_history
from specpipe.evaluation.schedule.eval_job import load_eval_job
from specpipe.evaluation.schedule.run_evaluation import run_evaluation
from specpipe.job import JobSpec
from specpipe.pipeline.run.run import RunResult, execute
from specpipe.pipeline.worker.build import build_parts

pytestmark = pytest.mark.usefixtures("among_the_tasks")
ROOT = Path(__file__).parents[3]
TASK = ["--tasks", "tiny_word_problems", "--include_path", "jobs/tasks", "--apply_chat_template"]


def recorded(tmp_path: Path, *flags: str, task: Sequence[str] = TASK) -> str:
    out = str(tmp_path / "requests.parquet")
    record([*task, *flags], out, target="builtin:tiny")
    return out


def results(folder: str) -> dict[str, Any]:
    [file] = Path(folder).glob("results_*.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def samples_of(folder: str, task: str) -> list[dict[str, Any]]:
    [file] = Path(folder).glob(f"samples_{task}_*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.usefixtures("only_our_tasks")
def test_recorded_requests_are_run_and_replayed_with_scores(tiny_run: Callable[..., RunResult], tmp_path: Path) -> None:
    every_kind = ["--tasks", "tiny_all", "--include_path", "jobs/tasks", "--apply_chat_template"]
    path = recorded(tmp_path, "--limit", "2", task=every_kind)
    rows = pq.read_table(path).to_pylist()
    assert [row["doc_id"] for row in rows] == [0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 1]
    assert rows[0]["prompt"].startswith("<|im_start|>user\n") and rows[0]["max_tokens"] == 112
    tiny_run("spec", data={"path": path})

    scored = replay(str(tmp_path / "spec"))

    assert "tiny_word_problems" in scored.tables
    written = results(scored.folder)
    assert written["results"]["tiny_word_problems"]["exact_match,strict-match"] == 1.0
    assert written["model_name"] == "spec"  # without a name lm-eval generates one
    found = outputs(tmp_path / "spec").to_pylist()
    texts = [s for s in samples_of(scored.folder, "tiny_word_problems") if s["filter"] == "strict-match"]
    assert [sample["resps"][0][0] for sample in texts] == [row["generated_text"] for row in found[:2]]
    logprobs = [row["scores"][0]["logprob"] for row in found[2:]]
    choices = [float(answer[0][0]) for s in samples_of(scored.folder, "tiny_choices") for answer in s["resps"]]
    whole = [float(s["resps"][0][0]) for s in samples_of(scored.folder, "tiny_solutions")]
    assert choices + whole == logprobs and len(choices) == 8
    assert written["results"]["tiny_solutions"]["bits_per_byte,none"] > 0
    with pytest.raises(JobError, match="--seed was"):
        replay(str(tmp_path / "spec"), ["--seed", "3"])


@pytest.mark.slow
def test_an_unknown_task_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"lm-eval (failed|ended).*no_such_task"):
        record(["--tasks", "no_such_task"], str(tmp_path / "none.parquet"), target="builtin:tiny")
    assert not (tmp_path / "none.parquet").exists()


@pytest.mark.slow
def test_a_smaller_limit_is_replayed(tiny_run: Callable[..., RunResult], tmp_path: Path) -> None:
    tiny_run("run", data={"path": recorded(tmp_path, "--limit", "6")})
    fewer = replay(str(tmp_path / "run"), ["--limit", "2"], out=str(tmp_path / "fewer"))
    assert results(fewer.folder)["n-samples"]["tiny_word_problems"]["effective"] == 2


@pytest.mark.slow
def test_few_shot_system_prompts_and_several_tasks_at_once(tmp_path: Path) -> None:
    text = (ROOT / "jobs/tasks/tiny_word_problems.yaml").read_text().replace("word_problems.score", "w.score")
    (tmp_path / "w.py").write_text((ROOT / "jobs/tasks/word_problems.py").read_text())
    for name in ("one", "two"):
        changed = text.replace("task: tiny_word_problems", f"task: {name}").replace("num_fewshot: 0\n", "")
        (tmp_path / f"{name}.yaml").write_text(changed)
    (tmp_path / "both.yaml").write_text("group: both\ntask: [one, two]\n")
    flags = ["--include_path", str(tmp_path), "--apply_chat_template", "--limit", "3"]
    flags += ["--num_fewshot", "2", "--system_instruction", "Answer with steps."]

    rows = pq.read_table(recorded(tmp_path, *flags, task=["--tasks", "both"])).to_pylist()

    assert [row["task"] for row in rows] == ["one"] * 3 + ["two"] * 3
    assert all(row["prompt"].startswith("<|im_start|>system\nAnswer with steps.<|im_end|>") for row in rows)
    assert all(row["prompt"].count("<|im_start|>user") == 3 for row in rows)
    ids = [row["request_id"] for row in rows]
    assert len(set(ids)) == 6  # the same prompts in both tasks: lines apart by their occurrence
    assert read_recording(str(tmp_path / "requests.parquet")).flags["num_fewshot"] == 2


@pytest.mark.slow
def test_repeats_are_scored_each(tiny_run: Callable[..., RunResult], tmp_path: Path) -> None:
    text = (ROOT / "jobs/tasks/tiny_word_problems.yaml").read_text()
    (tmp_path / "word_problems.py").write_text((ROOT / "jobs/tasks/word_problems.py").read_text())
    (tmp_path / "sampled.yaml").write_text(
        text.replace("task: tiny_word_problems", "task: sampled\nrepeats: 3").replace(
            "do_sample: false", "do_sample: true\n  temperature: 1.5"
        )
    )
    flags = ["--include_path", str(tmp_path), "--limit", "4", "--apply_chat_template"]
    path = recorded(tmp_path, *flags, task=["--tasks", "sampled"])
    assert [row["doc_id"] for row in pq.read_table(path).to_pylist()] == [i for i in range(4) for _ in range(3)]
    tiny_run("run", data={"path": path})
    scored = replay(str(tmp_path / "run"))
    [file] = Path(scored.folder).glob("samples_sampled_*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(len(row["resps"][0]) == 3 for row in rows)
    assert any(len(set(row["resps"][0])) > 1 for row in rows)


@pytest.mark.slow
def test_a_repeated_evaluation_skips_its_completed_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [f"output.path={tmp_path}/out", "model.device=cpu"]
    job = load_eval_job("jobs/eval-tiny.yaml", overrides, limit=4)
    section = job.evaluation.model_copy(update={"history": str(tmp_path / "history.parquet")})
    job = dataclasses.replace(job, evaluation=section)
    lines: list[str] = []

    def here(spec: JobSpec) -> RunResult:
        return execute(spec, backend=InProcessBackend(build_parts=build_parts))

    first = run_evaluation(job, here, lines.append)
    assert first.exit_code == 0 and first.comparison is not None and not first.comparison.differs
    assert sum(line.startswith("lm-eval") for line in lines) == 3
    for name in ("comparison.json", "comparison.html", "certificate.md", "requests.parquet"):
        assert (tmp_path / "out" / name).exists()
    lines.clear()
    run_evaluation(job, here, lines.append)
    assert not any(line.startswith("lm-eval") for line in lines)
    assert read_history(str(tmp_path / "history.parquet")).num_rows == 2  # one for each filter, not doubled
    other = load_eval_job("jobs/eval-tiny.yaml", overrides, limit=5)
    with pytest.raises(OutputError, match="has other flags"):
        run_evaluation(other, here, lines.append)
