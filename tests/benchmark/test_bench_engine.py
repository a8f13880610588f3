"""`specpipe bench engine` measures; it says what it was given wrongly."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

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
