"""`specpipe bench engine` measures; it says what it was given wrongly."""

from __future__ import annotations

import json

from click.testing import CliRunner

from specpipe.cli.main import main


def test_a_small_sweep_on_a_cpu() -> None:
    options = (
        "--device cpu --target small --draft small --batch 1 --batch 3 --k 0 --k 2 --prompt-tokens 9 --new-tokens 12"
    )
    result = CliRunner().invoke(main, ["bench", "engine", *options.split(), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    measured = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert [(m["batch"], m["k"]) for m in measured] == [(1, 0), (1, 2), (3, 0), (3, 2)]
    assert all(m["total_s"] > m["prefill_s"] > 0 for m in measured)
    assert [m["acceptance_length"] > 1 for m in measured] == [False, True, False, True]


def test_rates_that_rise_are_refused() -> None:
    result = CliRunner().invoke(main, ["bench", "engine", "--rates", "0.3,0.9"])
    assert result.exit_code == 2
    assert "expected numbers from 1 to 0 that do not rise" in result.output


def test_an_unknown_shape_is_refused() -> None:
    result = CliRunner().invoke(main, ["bench", "engine", "--device", "cpu", "--target", "llama-99"])
    assert result.exit_code == 2
    assert "expected one of llama-3.1-8b" in result.output
