"""`specpipe bench kernels`: one line for every combination of the options."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from specpipe.benchmark.kernel_ops import OPS
from specpipe.cli.main import main

SMALL = "bench kernels --device cpu -k 2 --vocab 64"


def test_every_combination_is_one_line_of_json() -> None:
    options = "-b 1 -b 2 --acceptance 0.5 --method standard --method block --json"
    result = CliRunner().invoke(main, f"{SMALL} {options}".split())
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(x["batch"], x["method"]) for x in lines] == [(b, m) for b in (1, 2) for m in ("standard", "block")]
    assert all(x["bytes"] == x["batch"] * 5 * 64 * 2 and x["p10_us"] <= x["p90_us"] for x in lines)


def test_other_operations_are_timed_by_name() -> None:
    options = [option for name in OPS for option in ("--op", name)]
    result = CliRunner().invoke(main, [*f"{SMALL} -b 2 --dtype float32 --json".split(), *options])
    assert result.exit_code == 0, result.output
    lines = {x["op"]: x for x in map(json.loads, result.stdout.splitlines())}
    assert list(lines) == list(OPS) and all(x["median_us"] > 0 for x in lines.values())
    assert lines["sample"]["bytes"] == 2 * 64 * 4 and lines["sample-recovered"]["bytes"] == (4 + 4 + 2) * 64 * 4
    assert lines["lookup-suffix"]["bytes"] == 2 * 16 * 2 * 16 * (15 + 1) * 4  # rows, segments, their neighbours


def test_times_are_printed_as_tables_with_headings() -> None:
    options = "-b 2 --dtype float32 --op rejection-sample --op sample --acceptance 0.5"
    result = CliRunner().invoke(main, f"{SMALL} {options}".split())
    assert result.exit_code == 0, result.output
    assert [line.split()[4] for line in result.stdout.splitlines()] == ["method", "standard", "operation", "sample"]


def test_missing_gpu_ends_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = CliRunner().invoke(main, ["bench", "kernels"])
    assert result.exit_code == 1 and "--device cpu" in result.output


def test_products_are_timed_in_each_number_format() -> None:
    options = "bench kernels --device cpu --op product --model small --tokens 1 --tokens 3"
    result = CliRunner().invoke(main, [*options.split(), "--json"])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(x["product"], x["tokens"]) for x in lines] == [
        (product, tokens) for product in ("qkv", "out", "gate_up", "down") for tokens in (1, 3)
    ]
    assert all(
        list(x["us"]) == ["none", "fp8", "fp8-block", "int4", "int4-copied"] and min(x["us"].values()) > 0
        for x in lines
    )
    table = CliRunner().invoke(main, options.split()).stdout.splitlines()
    assert len(table) == 1 + len(lines) and all("int4" in line for line in table[1:])
