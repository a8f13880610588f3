"""`specpipe bench engine` on a CPU: measurements as JSON and as text, and messages for wrong options."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from specpipe.benchmark.bench_config import SHARED_WORKS, SharedWork
from specpipe.cli.main import main

SMALL = "--device cpu --target small --draft small"
JOBS = f"{SMALL} --slots 4 --rows 8 --shard-rows 3 --longest 31"


def bench_engine(arguments: str, **options: Any) -> Result:
    return CliRunner().invoke(main, ["bench", "engine", *arguments.split()], **options)


def json_lines(arguments: str) -> list[dict[str, Any]]:
    result = bench_engine(f"{arguments} --json", catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def test_decode_reports_start_up_throughput_and_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specpipe.cli.bench.engine_decode.PROFILED_ROUNDS", 2)
    options = f"{SMALL} --batch 2 --k 0 --k 2 --prompt-tokens 9 --new-tokens 20 --profile"
    start, *measured = json_lines(f"decode {options}")
    seconds = start["start_up"]
    assert seconds.pop("total_s") == pytest.approx(sum(seconds.values()))
    assert [(m["batch"], m["k"]) for m in measured] == [(2, 0), (2, 2)]
    assert all(m["total_s"] > m["prefill_s"] > 0 for m in measured)
    assert [m["acceptance_length"] > 1 for m in measured] == [False, True]
    assert all(0 < m["idle_share"] < 1 for m in measured), "the host works between two rounds"
    profile = measured[-1]["profile"]
    # Two draft steps and one verification, each with two layers of seven products and the head.
    assert {k["name"]: k["calls"] for k in profile["kernels"]}["aten::mm"] == 3 * (2 * 7 + 1)
    assert 0 < profile["idle_share"] < 1
    assert sum(k["share"] for k in profile["kernels"]) == pytest.approx(1)


def test_start_up_prints_the_time_by_stage() -> None:
    result = bench_engine(f"start-up {SMALL} --slots 1 --k 1", catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("first token after ") and "graphs" in result.stdout


@pytest.fixture
def small_shared_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces two jobs by jobs of six rows."""
    few_shot = SharedWork(prompts=6, shared_tokens=128, own_tokens=10, new_tokens=3)
    samples = SharedWork(prompts=2, samples=3, own_tokens=66, new_tokens=3)
    for name, work in (("few-shot", few_shot), ("samples", samples)):
        monkeypatch.setitem(SHARED_WORKS, name, work)


@pytest.mark.slow
def test_prefixes_reports_how_much_of_the_prompts_is_reused(small_shared_works: None) -> None:
    options = f"prefixes {SMALL} --slots 4 --work few-shot"
    few_shot, samples = json_lines(f"{options} --work samples --k 2")
    assert [(m["work"], m["k"], m["rows"]) for m in (few_shot, samples)] == [("few-shot", 2, 6), ("samples", 2, 6)]
    assert (few_shot["prompt_tokens"], samples["prompt_tokens"]) == (6 * 138, 6 * 66)
    # The last token of a prompt belongs to the row's first round.
    assert few_shot["prefill_tokens"] == 128 + 6 * 9
    assert 2 * 65 <= samples["prefill_tokens"] <= 2 * 64 + 6
    (alone,) = json_lines(f"{options} --no-sharing")
    assert alone["prefill_tokens"] == 6 * 137
    text = bench_engine(options, catch_exceptions=False).stdout
    assert "78.0% of 828 prompt tokens reused" in text


def test_scores_computes_choices_and_common_pages_once() -> None:
    work = "--questions 5 --choices 3 --shared-tokens 70 --question-tokens 9 --choice-tokens 4 --slots 6"
    (result,) = json_lines(f"scores {SMALL} {work}")
    assert result["requests"] == 15 and result["prompt_tokens"] == 15 * 83
    assert result["distinct_tokens"] == 70 + 5 * (9 + 3 * 4)
    rest = 70 % 16  # tokens of the page in which questions depart: computed by those that start together
    assert result["prefill_tokens"] <= result["distinct_tokens"] + 4 * rest
    assert result["ratio"] > 0 and result["requests_per_s"] > 0


@pytest.mark.slow
def test_prefixes_runs_jobs_under_a_policy_too(small_shared_works: None) -> None:
    plain, tuned = json_lines(f"prefixes {SMALL} --slots 4 --work few-shot --policy goodput")
    assert [(m["policy"], m["k"]) for m in (plain, tuned)] == [("fixed", 0), ("goodput", None)]
    assert plain["k_rounds"] == {"0": 6}, "three rounds of four rows, three of two"
    assert 4 <= sum(tuned["k_rounds"].values()) <= 6 and max(map(int, tuned["k_rounds"])) <= 3
    assert tuned["prefill_tokens"] == plain["prefill_tokens"], "none of the first run's tokens"
    assert plain["late_graphs"] == tuned["late_graphs"] == 0


@pytest.mark.gpu
def test_profile_shows_kernels_inside_a_graph() -> None:
    options = "--target small --draft small --batch 2 --k 2 --prompt-tokens 9 --new-tokens 40 --profile"
    profile = json_lines(f"decode {options}")[-1]["profile"]
    calls = {k["name"]: k["calls"] for k in profile["kernels"]}
    assert max(calls.values()) >= 6, "products of three forwards, two layers each"
    assert 0 <= profile["idle_share"] < 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("decode --rates 0.3,0.9", "expected numbers from 1 to 0 that do not rise"),
        ("decode --rates often", "expected numbers from 1 to 0 that do not rise"),
        ("decode --k 5", "3 rates for K = 5"),
        ("decode --target llama-99", "expected one of llama-3.1-8b"),
        ("policy --acceptance some", "expected one of high, middle, low, useless"),
    ],
)
def test_wrong_options_are_rejected_with_what_was_expected(arguments: str, message: str) -> None:
    result = bench_engine(f"{arguments} --device cpu")
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize("arguments", ["decode", "decode --device cuda --target small --draft small", "policy"])
def test_missing_gpu_ends_with_a_message(arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = bench_engine(arguments)
    assert result.exit_code == 1
    assert "no GPU on this machine" in result.stderr and "--device cpu --target small" in result.stderr


@pytest.fixture(scope="module")
def policy_lines() -> list[dict[str, Any]]:
    return json_lines(f"policy {JOBS} --policy goodput --k 4 --acceptance high --acceptance low")


@pytest.mark.slow
def test_policy_and_fixed_k_jobs_generate_the_same_tokens(policy_lines: list[dict[str, Any]]) -> None:
    jobs = [line for line in policy_lines if "output_tokens" in line]
    assert len({line["output_tokens"] for line in jobs}) == 1
    fixed = [(line["acceptance"], line["k"]) for line in jobs if line["policy"] == "fixed"]
    assert fixed == [("high", 0), ("high", 4), ("low", 4)], "plain decoding is measured once"
    lengths = {line["acceptance"]: line["acceptance_length"] for line in jobs if line.get("k") == 4}
    assert lengths["high"] > 2.5 > 1.6 > lengths["low"]
    assert all(line["reasons"][0].startswith("goodput") for line in jobs if line["policy"] == "goodput")


def test_policy_is_compared_by_level_and_over_the_sequence(policy_lines: list[dict[str, Any]]) -> None:
    levels = [line["acceptance"] for line in policy_lines if "share_of_plain" in line]
    assert levels == ["high", "low"]
    (sequence,) = [line for line in policy_lines if "sequence" in line]
    assert sequence["sequence"] == ["high", "low"] and sequence["fixed_seconds"].keys() == {"0", "4"}
    jobs = [line for line in policy_lines if line.get("policy") == "goodput"]
    (after,) = [line for line in jobs if "after" in line]
    assert (after["acceptance"], after["after"]) == ("low", ["high"])
    first = next(line for line in jobs if line["acceptance"] == "high")
    assert sequence["seconds"] == pytest.approx(first["seconds"] + after["seconds"])


def test_policy_reports_profiled_rounds_first(policy_lines: list[dict[str, Any]]) -> None:
    profile = policy_lines[0]["profile"]
    plain, drafting = [("none", 0, rows) for rows in (1, 4, 2)], [("draft", 2, rows) for rows in (1, 4, 2)]
    assert [(p["proposer"], p["k"], p["running"]) for p in profile["rounds"]] == [
        *plain[:2], *drafting[:2], plain[2], drafting[2]
    ]  # fmt: skip
    assert all(p["seconds"] > 0 for p in profile["rounds"])


@pytest.mark.slow
def test_transformers_generates_the_same_tokens() -> None:
    (result,) = json_lines("transformers --prompts 2 --new-tokens 5 --k 2")
    specpipe, *others = result["ways"]
    assert [way["name"].split(",")[0] for way in result["ways"]] == ["specpipe", "transformers", "transformers"]
    assert all(way["tokens_per_s"] == pytest.approx(10 / way["seconds"]) for way in result["ways"])
    assert result["ratio"] == pytest.approx(specpipe["tokens_per_s"] / max(way["tokens_per_s"] for way in others))


@pytest.mark.slow
def test_replay_follows_the_answers_of_a_plain_run() -> None:
    options = "replay --device cpu --target small --batch 4 --replay-tokens 7 --prompt-tokens 9 --new-tokens 40"
    plain, unchanged, *_, all_depart = json_lines(options)
    assert plain["ratio"] == 1 and plain["followed_share"] == 0 and set(plain["rounds"]) == {"none 0"}
    assert unchanged["followed_share"] > 0.5 and unchanged["acceptance_length"] > 4
    assert all_depart["followed_share"] < 0.3 and all_depart["equal_rows"] == unchanged["equal_rows"] == 12
