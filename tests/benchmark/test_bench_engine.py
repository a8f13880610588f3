"""`specpipe bench engine` measures; it says what it was given wrongly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from specpipe.benchmark.policy_comparison import rates_for
from specpipe.benchmark.switching import _around, switch_windows
from specpipe.benchmark.synthetic_engine import EngineBench, build_synthetic_engine, random_requests
from specpipe.cli.main import main


def test_a_small_sweep_on_a_cpu() -> None:
    models = "--device cpu --target small --draft small"
    options = f"{models} --batch 1 --batch 3 --k 0 --k 2 --prompt-tokens 9 --new-tokens 12 --json"
    result = CliRunner().invoke(main, ["bench", "engine", *options.split()], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    start, *measured = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    seconds = start["start_up"]
    assert seconds.pop("total_s") == pytest.approx(sum(seconds.values()))
    assert [(m["batch"], m["k"]) for m in measured] == [(1, 0), (1, 2), (3, 0), (3, 2)]
    assert all(m["total_s"] > m["prefill_s"] > 0 for m in measured)
    assert [m["acceptance_length"] > 1 for m in measured] == [False, True, False, True]
    assert all(0 < m["idle_share"] < 1 for m in measured), "the host works between two rounds"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--rates 0.3,0.9", "expected numbers from 1 to 0 that do not rise"),
        ("--rates often", "expected numbers from 1 to 0 that do not rise"),
        ("--k 5", "3 rates for K = 5"),
        ("--target llama-99", "expected one of llama-3.1-8b"),
    ],
)
def test_what_cannot_be_measured_is_refused(options: str, message: str) -> None:
    result = CliRunner().invoke(main, ["bench", "engine", "--device", "cpu", *options.split()])
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize("options", ["", "--device cuda --target small --draft small", "--policy goodput"])
def test_without_a_gpu_nothing_is_built_for_one(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = CliRunner().invoke(main, ["bench", "engine", *options.split()])
    assert result.exit_code == 1
    assert "no GPU here" in result.stderr and "--device cpu --target small" in result.stderr


JOBS = "--device cpu --target small --draft small --slots 4 --rows 8 --shard-rows 3 --longest 31 --json"


def jobs(options: str) -> list[dict[str, Any]]:
    arguments = ["bench", "engine", "--policy", *options.split(), *JOBS.split()]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def test_jobs_under_a_policy_and_every_fixed_k_make_the_same_tokens() -> None:
    found = jobs("goodput --k 1 --k 4 --acceptance high --acceptance low")
    ran = [line for line in found if "output_tokens" in line]
    assert len({line["output_tokens"] for line in ran}) == 1
    fixed = [(line["acceptance"], line["k"]) for line in ran if line["policy"] == "fixed"]
    assert fixed == [("high", 0), ("high", 1), ("high", 4), ("low", 1), ("low", 4)], "plain decoding is measured once"
    lengths = {line["acceptance"]: line["acceptance_length"] for line in ran if line.get("k") == 4}
    assert lengths["high"] > 2.5 > 1.6 > lengths["low"]
    verdicts = {line["acceptance"]: line for line in found if "share_of_plain" in line}
    assert verdicts.keys() == {"high", "low"}
    (whole,) = [line for line in found if "sequence" in line]
    assert whole["sequence"] == ["high", "low"]
    policy = {line["acceptance"]: line for line in ran if line["policy"] == "goodput" if "after" not in line}
    (after,) = [line for line in ran if "after" in line]
    assert (after["acceptance"], after["after"]) == ("low", ["high"])
    assert whole["seconds"] == pytest.approx(policy["high"]["seconds"] + after["seconds"])
    assert all(line["reasons"][0].startswith("goodput") for line in ran if line["policy"] == "goodput")


def test_the_profile_comes_first() -> None:
    (profile,) = [line["profile"] for line in jobs("goodput --k 2 --acceptance useless") if "profile" in line]
    plain, drafting = [("none", 0, rows) for rows in (1, 4, 2)], [("draft", 2, rows) for rows in (1, 4, 2)]
    assert [(p["proposer"], p["k"], p["running"]) for p in profile["rounds"]] == [
        *plain[:2], *drafting[:2], plain[2], drafting[2]
    ]  # fmt: skip
    assert all(p["seconds"] > 0 for p in profile["rounds"] + profile["draft_prefills"])
    assert profile["draft_prefills"]


def test_acceptance_without_a_name_is_refused() -> None:
    result = CliRunner().invoke(main, ["bench", "engine", "--policy", "goodput", "--acceptance", "some", *JOBS.split()])
    assert result.exit_code == 2
    assert "expected one of high, middle, low, useless" in result.output


def test_rates_go_on_as_the_last_one_does() -> None:
    assert rates_for((0.8, 0.4), 4) == pytest.approx((0.8, 0.4, 0.2, 0.1))
    assert rates_for((0.5,), 3) == pytest.approx((0.5, 0.25, 0.125))
    assert rates_for((0.0,), 2) == (0.0, 0.0)
    assert rates_for((0.9, 0.8, 0.7), 2) == (0.9, 0.8)


def test_windows_around_a_switch() -> None:
    # 100 tokens/s with speculation, 80 without, and half a second of nothing after each switch.
    emissions, t = [], 0.0
    while t < 16:
        t += 0.01
        phase, side = divmod(t, 4)
        emissions.append((t, 0.0 if side < 0.5 else (1.0 if phase % 2 == 0 else 0.8)))
    off = _around(emissions, 4.0, "off", 8.0, 2.0)
    assert (off.before, off.after) == pytest.approx((100, 80), rel=0.02)
    assert off.worst == pytest.approx(80 * 1.5 / 2, rel=0.03)
    assert off.share_of_better == pytest.approx(0.6, rel=0.03)
    assert off.share_of_expected == pytest.approx(0.75, rel=0.03)
    on = _around(emissions, 8.0, "on", 12.0, 2.0)
    assert on.worst == pytest.approx(80 * 1.5 / 2, rel=0.03)
    assert on.share_of_expected == pytest.approx(60 / 85, rel=0.03)


def test_speculation_goes_off_and_on_while_rows_wait() -> None:
    engine = build_synthetic_engine(
        EngineBench(target="small", draft="small", device="cpu", dtype="float32", batches=(3,), ks=(0, 2))
    )
    rows = random_requests([(5, 60)] * 40, 512)
    found = switch_windows(engine, rows, k=2, period_s=0.15, window_s=0.05)
    assert [switch.to for switch in found][:2] == ["off", "on"]
    assert all(0 < switch.worst <= 1.01 * max(switch.before, switch.after) for switch in found)


def test_rows_that_end_before_a_switch_show_none() -> None:
    engine = build_synthetic_engine(
        EngineBench(target="small", draft="small", device="cpu", dtype="float32", batches=(2,), ks=(0, 2))
    )
    assert switch_windows(engine, random_requests([(5, 4)] * 2, 512), k=2, period_s=60) == []
