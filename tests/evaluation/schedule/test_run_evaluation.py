"""Evaluations from a job file: what runs are compared, and what is found. Slow."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.fake_workers import InProcessBackend

from specpipe.evaluation.compare.compare_paths import compare_paths
from specpipe.evaluation.compare.comparison import Comparison
from specpipe.evaluation.schedule.eval_job import load_eval_job
from specpipe.evaluation.schedule.run_evaluation import run_evaluation
from specpipe.job import JobSpec
from specpipe.models.tiny import TARGET
from specpipe.pipeline.run.run import RunResult, execute
from specpipe.pipeline.worker.build import build_parts

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("among_the_tasks", "only_our_tasks")]


def evaluate(folder: Path, name: str, baseline: str, *, limit: int, tasks: str, format: str = "") -> Comparison:
    """Runs the evaluation of builtin:tiny into folder/name.

    baseline: the value of eval.baseline. format: further keys of `model`.
    """
    (folder / f"{name}.yaml").write_text(
        f"eval: {{tasks: [{tasks}], flags: {{include_path: jobs/tasks, apply_chat_template: true}},\n"
        f"  history: none, baseline: {baseline}}}\n"
        f"model: {{target: 'builtin:tiny', draft: 'builtin:tiny', device: cpu, {format}}}\n"
        f"speculation: {{policy: fixed}}\nworkers: {{slots: 8}}\noutput: {{path: '{folder}/{name}'}}\n"
    )

    def here(spec: JobSpec) -> RunResult:
        return execute(spec, backend=InProcessBackend(build_parts=build_parts))

    comparison = run_evaluation(
        load_eval_job(str(folder / f"{name}.yaml"), limit=limit), here, lambda _: None
    ).comparison
    assert comparison is not None
    return comparison


def another_model(folder: Path) -> Path:
    """The draft as a target, with a tokenizer and chat template of its own."""
    shutil.copytree(TARGET.parent / "draft", folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TARGET / file, folder / file)
    return folder


def test_weights_in_8_bits_are_compared_with_the_same_model_in_bf16(tmp_path: Path) -> None:
    """The certificate of a quantised target: paired differences, changed best choices, perplexities."""
    tasks = "tiny_choices, tiny_solutions"
    comparison = evaluate(
        tmp_path, "out", "{model.quantize: none}", limit=30, tasks=tasks, format="dtype: bfloat16, quantize: fp8"
    )

    assert comparison.texts is not None and comparison.texts.scores == 150
    found = {m.metric: m for m in comparison.metrics}
    assert set(found) == {"acc", "acc_norm", "word_perplexity", "byte_perplexity", "bits_per_byte"}
    assert comparison.texts.same_scores < 150 and 0 < comparison.texts.largest_difference < 20
    assert found["byte_perplexity"].mean_a != found["byte_perplexity"].mean_b
    text = (tmp_path / "out/certificate.md").read_text()
    assert (
        text.startswith("### One model in two number formats")
        and "log-probabilities are the same up to rounding" in text
    )
    assert "| model.quantize | none | fp8 |" in text and "model.dtype" not in text
    assert "| model.target_format | — | FP8 by channel, at load |" in text
    again = compare_paths(f"{tmp_path}/out/baseline", f"{tmp_path}/out/baseline")
    assert again.verdict.startswith("identical: ") and again.verdict.endswith("150 log-probabilities up to rounding")


def test_two_models_are_compared_document_by_document(tmp_path: Path) -> None:
    other = another_model(tmp_path / "other")
    tasks = "tiny_word_problems, tiny_choices"
    comparison = evaluate(tmp_path, "out", f"{{model.target: '{other}'}}", limit=12, tasks=tasks)

    assert comparison.differs and comparison.texts is None, "token ids of two models are not compared"
    assert (comparison.only_a, comparison.only_b) == (0, 0)
    found = {(m.task, m.filter, m.metric): m for m in comparison.metrics}
    answers = found["tiny_word_problems", "strict-match", "exact_match"]
    assert (answers.n, answers.finding) == (12, "different") and answers.mean_a < 0.3 < 0.9 < answers.mean_b
    assert found["tiny_choices", "none", "acc"].n == 12
    for task in ("tiny_word_problems", "tiny_choices"):
        flips = [flip for flip in comparison.flips if flip.task == task]
        assert flips and all(flip.answers_a != flip.answers_b and flip.prompt for flip in flips)
    page = (tmp_path / "out/comparison.html").read_text()
    assert str(other) in page and "builtin:tiny" in page
    assert (tmp_path / "out/certificate.md").read_text().startswith("### Two models")


def test_a_run_that_exists_is_the_baseline_of_another_job(tmp_path: Path) -> None:
    tasks = "tiny_word_problems, tiny_choices"
    first = evaluate(tmp_path, "first", "{speculation.policy: 'off'}", limit=4, tasks=tasks)
    files = sorted((tmp_path / "first/candidate/outputs").iterdir())
    before = [file.stat().st_mtime_ns for file in files]
    second = evaluate(tmp_path, "second", f"'{tmp_path}/first/candidate'", limit=4, tasks=tasks)

    assert not (tmp_path / "second/baseline").exists() and [file.stat().st_mtime_ns for file in files] == before
    for comparison in (first, second):
        assert comparison.verdict.startswith("identical: all 4 outputs"), comparison.verdict
        assert comparison.texts is not None and comparison.texts.same_scores == comparison.texts.scores == 16


def test_second_night_follows_the_first_without_being_told(tmp_path: Path) -> None:
    """The target is the same: the candidate's answers are those of the night before, in long rounds."""
    (tmp_path / "nightly.yaml").write_text(
        "eval: {tasks: [tiny_word_problems], flags: {include_path: jobs/tasks, apply_chat_template: true},\n"
        f"  history: '{tmp_path}/history.parquet', baseline: {{model.quantize: none, speculation.policy: 'off'}}}}\n"
        "model: {target: 'builtin:tiny', draft: 'builtin:tiny', device: cpu, quantize: fp8}\n"
        f"workers: {{slots: 8}}\noutput: {{path: '{tmp_path}/{{name}}-1'}}\n"
    )
    lines: list[str] = []
    lengths = []
    for night in (1, 2):
        job = load_eval_job(str(tmp_path / "nightly.yaml"), [f"output.path={tmp_path}/{{name}}-{night}"], limit=8)
        result = run_evaluation(
            job, lambda spec: execute(spec, backend=InProcessBackend(build_parts=build_parts)), lines.append
        )
        assert result.exit_code in (0, 1) and result.comparison is not None
        lengths.append(result.comparison.b.measured["spec_decode_acceptance_length"])
    followed = [line for line in lines if "follows the answers of" in line]
    first, second = f"{tmp_path}/nightly-1", f"{tmp_path}/nightly-2"
    assert followed[0] == f"candidate follows the answers of {first}/baseline"
    assert followed[1] == f"candidate follows the answers of {first}/candidate, {second}/baseline"
    assert min(lengths) > 8
    compared = compare_paths(f"{first}/candidate", f"{second}/candidate")
    assert compared.verdict.startswith("identical")
