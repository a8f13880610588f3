"""Comparisons of two runs and their scores, with correct and with broken verification."""

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from jobs.tiny_pair.problems import final_answer, problems
from specpipe.cli.main import main
from specpipe.errors import DataError, OutputError
from specpipe.evaluation.compare.compare_paths import compare_paths
from specpipe.evaluation.compare.logit_gaps import LogitGap
from specpipe.evaluation.compare.text_comparison import compare_outputs, first_difference
from specpipe.evaluation.pages.certificate import certificate, side_by_side
from specpipe.evaluation.pages.comparison_page import comparison_page
from specpipe.pipeline.run.run import RunResult

TinyRun = Callable[..., RunResult]
STAMP = "2026-01-31T10-11-12.131415"


@pytest.fixture(scope="module")
def plain(run_in: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a plain run; tests copy it before they write into it."""
    folder = tmp_path_factory.mktemp("runs")
    run_in(folder, "plain", "speculation.policy=off")
    return folder / "plain"


def score(run: Path, stamp: str = STAMP) -> None:
    """Writes lm-eval's samples file for the word problems into the run's folder."""
    (run / "lm_eval").mkdir(exist_ok=True)
    parts = sorted((run / "outputs").glob("part-*.parquet"))
    rows = pa.concat_tables([pa.parquet.read_table(part) for part in parts]).to_pylist()
    with (run / "lm_eval" / f"samples_tiny_{stamp}.jsonl").open("w") as file:
        for i, (row, problem) in enumerate(zip(rows, problems("heldout", len(rows)), strict=True)):
            sample = {
                "doc_id": i,
                "filter": "none",
                "prompt_hash": f"{hash(row['prompt'])}",
                "metrics": ["exact_match", "bypass"],
                "exact_match": float(final_answer(row["generated_text"]) == problem.answer),
                "bypass": 999,
                "resps": [[row["generated_text"]]],
                "arguments": {"gen_args_0": {"arg_0": row["prompt"], "arg_1": {}}},
                "target": str(problem.answer),
            }
            file.write(json.dumps(sample) + "\n")


def test_a_speculative_run_is_identical_to_the_plain_one(tiny_run: TinyRun, plain: Path, tmp_path: Path) -> None:
    shutil.copytree(plain, tmp_path / "plain")
    tiny_run("spec")
    for name in ("plain", "spec"):
        score(tmp_path / name)

    shown = CliRunner().invoke(
        main,
        ["compare", *(str(tmp_path / n) for n in ("plain", "spec")), "--certificate", str(tmp_path / "c.md"),
         "--html", str(tmp_path / "c.html"), "--logits"],
        catch_exceptions=False,
    )  # fmt: skip

    assert shown.exit_code == 0, shown.output
    assert "identical: all 8 outputs are the same, token for token" in shown.output
    assert "8 of 8 outputs are the same text (100.00%)" in shown.output
    text = (tmp_path / "c.md").read_text()
    assert "| tiny, exact_match (none), n = 8 | 1.0000 ± 0.0000 | 1.0000 ± 0.0000 |" in text
    assert "| speculation.policy | off | fixed |" in text and "acceptance length | 1.00 |" in text
    page = (tmp_path / "c.html").read_text()
    assert "identical: all 8" in page and "://" not in page


@pytest.mark.slow
def test_broken_verification_is_a_significant_difference(
    tiny_run: TinyRun, plain: Path, tmp_path: Path, accept_everything: Callable[[], None]
) -> None:
    shutil.copytree(plain, tmp_path / "plain")
    accept_everything()
    tiny_run("broken", "speculation.num_speculative_tokens=4")
    unscored = compare_paths(str(plain), str(tmp_path / "broken"))
    assert unscored.differs and "and both ran in fp32" in unscored.verdict
    for name in ("plain", "broken"):
        score(tmp_path / name)

    comparison = compare_paths(str(tmp_path / "plain"), str(tmp_path / "broken"), logits=True)

    [metric] = comparison.metrics
    assert metric.finding == "different" and metric.mean_a == 1.0 and metric.mean_b < 0.5
    assert comparison.differs and "DIFFERENT" in comparison.verdict
    assert metric.higher_in_a == len(comparison.flips) >= 4
    flip = comparison.flips[0]
    assert flip.answers_a != flip.answers_b and (flip.score_a, flip.score_b) == (1.0, 0.0)
    assert comparison.gaps and not any(gap.is_tie for gap in comparison.gaps)
    assert comparison.texts is not None and comparison.texts.exact_match_rate < 0.5
    assert all(gap.top1 == d.token_a for gap, d in zip(comparison.gaps, comparison.texts.divergences, strict=False))

    shown = CliRunner().invoke(main, ["compare", str(tmp_path / "plain"), str(tmp_path / "broken"), "--json"])
    printed = json.loads(shown.stdout)
    assert shown.exit_code == 1 and printed["differs"] and printed["metrics"][0]["higher_in_a"] == metric.higher_in_a
    page = comparison_page(comparison)
    assert "real difference" in page and "<mark>" in page and 'class="verdict bad"' in page
    row = comparison.texts.divergences[0].row
    assert f'<a href="#row-{row}">row {row}' in page and f'id="row-{row}"' in page and 'href="#score-0"' in page
    written = certificate(comparison, "page.html")
    assert written.startswith("### Speculation against plain decoding")
    assert "real differences" in written and f"rows that differ: [{row}](page.html#row-{row})" in written


def test_a_numerical_tie_is_not_a_difference() -> None:
    gap = LogitGap(row=0, request_id="0", position=3, top1=5, top2=7, gap=2e-6, lost=2e-6, tolerance=1e-3)
    assert gap.is_tie and not dataclasses.replace(gap, lost=0.01).is_tie


@pytest.mark.slow
def test_runs_without_scores_are_compared_by_outputs(tiny_run: TinyRun, tmp_path: Path) -> None:
    short = {"temperature": 1.0, "max_new_tokens": 12}
    tiny_run("a", "speculation.policy=off", sampling=short)
    tiny_run("b", "speculation.policy=off", "seed=5", sampling=short)
    comparison = compare_paths(str(tmp_path / "a"), str(tmp_path / "b"), logits=True)
    assert comparison.metrics == () and comparison.gaps == ()  # sampled rows may differ anywhere
    assert comparison.texts is not None and comparison.texts.same_text < 8
    assert comparison.verdict.endswith("of 8 outputs are the same; neither run was scored")
    with pytest.raises(DataError, match="a was not scored; expected `specpipe eval replay"):
        score(tmp_path / "b")
        compare_paths(str(tmp_path / "a"), str(next((tmp_path / "b" / "lm_eval").glob("*.jsonl"))))


@pytest.mark.slow
def test_greedy_outputs_with_another_sampling_key_differ(tiny_run: TinyRun, tmp_path: Path, plain: Path) -> None:
    tiny_run("penalised", "speculation.policy=off", "sampling.repetition_penalty=9")
    paths = [str(plain), str(tmp_path / "penalised")]
    shown = CliRunner().invoke(main, ["compare", *paths])
    assert shown.exit_code == 1 and "rows, and sampling.repetition_penalty differs; --logits" in shown.stdout
    assert re.search(r"sampling.repetition_\w+ +1.0 +9.0", shown.stdout)


@pytest.mark.slow
def test_synthetic_incomplete_and_unrelated_runs_are_refused(
    tiny_run: TinyRun, synthetic_run: str, tmp_path: Path
) -> None:
    short = ("speculation.policy=off", "sampling.max_new_tokens=2")
    tiny_run("plain", *short)
    tiny_run("other", *short, data={"system_prompt": "Be brief."})
    with pytest.raises(OutputError, match=r"synthetic.*not compared, scored or exported"):
        compare_paths(str(tmp_path / "plain"), synthetic_run)
    with pytest.raises(OutputError, match=r"row 0 is request p0 .* or its prompt differs"):
        compare_paths(str(tmp_path / "plain"), str(tmp_path / "other"))
    with pytest.raises(DataError, match="nothing to compare"):
        compare_paths(str(tmp_path / "plain"), str(tmp_path / "nowhere"))
    next((tmp_path / "plain" / "outputs").glob("part-*.parquet")).unlink()
    with pytest.raises(OutputError, match="is not complete: 1 of"):
        compare_paths(str(tmp_path / "plain"), str(tmp_path / "plain"))


def test_rows_that_failed_in_one_run_are_not_compared() -> None:
    def run(*ends: str) -> Any:
        rows = [
            {
                "request_id": str(i),
                "prompt": "x",
                "generated_text": end,
                "generated_token_ids": [i],
                "finish_reason": end,
                "scores": None,
            }
            for i, end in enumerate(ends)
        ]
        return SimpleNamespace(records=lambda columns: iter(rows))

    found = compare_outputs(run("error", "stop", "stop", "error"), run("stop", "error", "stop", "error"))
    assert (found.failed, found.rows, found.same_text, found.divergences) == (3, 1, 1, [])


@pytest.mark.parametrize(("a", "b", "at"), [([1, 2], [1, 2, 3], 2), ([1, 5], [1, 6], 1), ([], [4], 0), ([7], [7], 1)])
def test_first_difference_is_the_common_beginnings_length(a: list[int], b: list[int], at: int) -> None:
    assert first_difference(a, b) == at


@pytest.mark.slow
def test_logits_of_a_run_in_8_bits_are_those_of_its_rounded_weights(tiny_run: TinyRun, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    path = tmp_path / "noise.parquet"  # prompts without meaning, whose answers hang on near-ties
    pa.parquet.write_table(pa.table({"prompt": [random.integers(20, 900, 12).tolist() for _ in range(8)]}), path)
    short = ("sampling.max_new_tokens=16",)
    for name, quantize in (("full", "none"), ("eight", "fp8")):
        tiny_run(name, f"model.quantize={quantize}", "speculation.policy=off", *short, data={"path": str(path)})

    found = compare_paths(str(tmp_path / "eight"), str(tmp_path / "full"), logits=True)

    assert found.texts is not None and len(found.gaps) == len(found.texts.divergences) > 0
    assert [gap.top1 for gap in found.gaps] == [divergence.token_a for divergence in found.texts.divergences]
    assert ("model.quantize", "fp8", "none") in set(side_by_side(found))
