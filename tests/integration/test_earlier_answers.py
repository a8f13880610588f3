"""Runs of the embedded pair that follow an earlier run: the same tokens, in a fraction of the rounds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.fake_workers import InProcessBackend, outputs

from specpipe.cli.main import main
from specpipe.job import JobSpec, load_job
from specpipe.models.tiny import TARGET
from specpipe.pipeline.run.report_page import report_of
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.verify import verify
from specpipe.pipeline.worker.build import build_parts

ROOT = Path(__file__).parents[2]
TOKENS = 64
SAMPLED = ("sampling.temperature=0.8", "sampling.top_p=0.95", "speculation.method=invariant")


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specpipe.pipeline.run.run.write_report", lambda *_: None)


def make_job(out: Path, *overrides: str) -> JobSpec:
    """Four rows of the sample job."""
    path = ROOT / "jobs/data/sharegpt_sample.parquet"
    base = [f"data.path={path}", "data.warmup_rows=0", "data.limit=4", f"sampling.max_new_tokens={TOKENS}"]
    return load_job(ROOT / "jobs/sharegpt.yaml", [*base, f"output.path={out}", *overrides])


def run(out: Path, *overrides: str) -> dict[str, Any]:
    """Runs the job and returns its summary."""
    result = execute(make_job(out, *overrides), backend=InProcessBackend(build_parts=build_parts))
    assert (result.state, result.exit_code) == ("complete", 0)
    return dict(result.summary)


def follow(out: Path, where: Path | str, *overrides: str, proposer: str = "replay") -> dict[str, Any]:
    return run(out, f"speculation.proposer={proposer}", f"speculation.replay={where}", *overrides)


def tokens(run: Path) -> list[list[int]]:
    found: list[list[int]] = outputs(run)["generated_token_ids"].to_pylist()
    return found


def test_unchanged_model_repeats_its_answers_in_few_rounds(tmp_path: Path) -> None:
    run(tmp_path / "first", "speculation.policy=off")
    summary = follow(tmp_path / "second", tmp_path / "first")
    assert tokens(tmp_path / "second") == tokens(tmp_path / "first")
    assert summary["spec_decode_acceptance_length"] > 12
    assert set(summary["spec_decode_by_source"]) == {"reference"}
    assert summary["total_followed_tokens"] == sum(outputs(tmp_path / "second")["followed_tokens"].to_pylist())
    assert summary["rows_by_followed_share"] == [0] * 9 + [4]
    assert verify(str(tmp_path / "second")).exit_code == 0


@pytest.mark.slow
def test_sampled_answers_are_repeated_with_the_same_seeds(tmp_path: Path) -> None:
    run(tmp_path / "first", *SAMPLED, "sampling.n=2", "speculation.num_speculative_tokens=3")
    summary = follow(tmp_path / "second", tmp_path / "first", *SAMPLED, "sampling.n=2")
    assert tokens(tmp_path / "second") == tokens(tmp_path / "first")
    assert summary["spec_decode_acceptance_length"] > 12


@pytest.mark.slow
@pytest.mark.parametrize("proposer", ["replay", "auto"])
@pytest.mark.parametrize("sampling", [(), SAMPLED], ids=["greedy", "invariant"])
def test_answers_of_another_model_change_no_token(tmp_path: Path, sampling: tuple[str, ...], proposer: str) -> None:
    other = tmp_path / "other"
    shutil.copytree(TARGET.parent / "draft", other)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TARGET / file, other / file)
    run(tmp_path / "old", f"model.target={other}", "speculation.policy=off", *sampling)
    run(tmp_path / "plain", "speculation.policy=off", *sampling)
    goodput = ("speculation.policy=goodput",) if proposer == "auto" else ()
    summary = follow(tmp_path / "new", tmp_path / "old", *sampling, *goodput, proposer=proposer)
    assert tokens(tmp_path / "new") == tokens(tmp_path / "plain") != tokens(tmp_path / "old")
    assert 1 < summary["spec_decode_acceptance_length"] < 16


@pytest.mark.slow
def test_texts_of_every_kind_change_no_token(tmp_path: Path) -> None:
    run(tmp_path / "plain", "speculation.policy=off")
    plain = outputs(tmp_path / "plain")
    answers, names = plain["generated_text"].to_pylist(), plain["request_id"].to_pylist()
    texts = ["", answers[1] * 50, "\ud800 broken " + answers[2], answers[3][:20] + " and then another way " * 9]
    lines = [json.dumps({"id": name, "text": text}) for name, text in zip(names, texts, strict=True)]
    (tmp_path / "texts.jsonl").write_text("\n".join([*lines, "not JSON", json.dumps({"id": names[3]})]) + "\n")
    summary = follow(tmp_path / "new", tmp_path / "texts.jsonl")
    assert tokens(tmp_path / "new") == tokens(tmp_path / "plain")
    assert summary["total_followed_tokens"] > TOKENS


@pytest.mark.slow
def test_interrupted_run_resumes_with_other_answers(tmp_path: Path) -> None:
    shards = ("workers.shard_tokens=1",)
    run(tmp_path / "first", "speculation.policy=off", *shards)
    follow(tmp_path / "second", tmp_path / "nothing", *shards)
    parts = sorted((tmp_path / "second/outputs").iterdir())
    assert len(parts) == 4
    for part in parts[1:3]:
        part.unlink()
    summary = follow(tmp_path / "second", tmp_path / "first", *shards)
    assert tokens(tmp_path / "second") == tokens(tmp_path / "first")
    assert sum(summary["rows_by_followed_share"]) == 2
    assert verify(str(tmp_path / "second")).exit_code == 0


@pytest.mark.slow
def test_show_and_report_have_acceptance_by_source(tmp_path: Path) -> None:
    from click.testing import CliRunner

    run(tmp_path / "first", "speculation.policy=off")
    follow(tmp_path / "second", tmp_path / "first")
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "second")])
    assert "reference" in shown.stdout and "% of the output" in shown.stdout
    page = report_of(str(tmp_path / "second"))
    assert "Acceptance by source" in page and "Share of each answer that was followed" in page


@pytest.mark.slow
def test_new_rows_look_up_answers_of_other_rows(tmp_path: Path) -> None:
    """None of the rows has an answer of its own, but their answers are in the corpus."""
    run(tmp_path / "plain", "speculation.policy=off")
    answers = outputs(tmp_path / "plain")["generated_text"].to_pylist()
    # The corpus sorts nothing below 2,048 tokens.
    lines = [json.dumps({"id": f"other {i}", "text": text}) for i, text in enumerate(answers * 12)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines) + "\n")
    summary = follow(tmp_path / "new", tmp_path / "texts.jsonl")
    assert tokens(tmp_path / "new") == tokens(tmp_path / "plain")
    assert summary["spec_decode_by_source"]["corpus"]["acceptance_length"] > 3
    assert summary["rows_by_followed_share"] == []
