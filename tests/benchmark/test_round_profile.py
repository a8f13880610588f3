"""Kernel times of profiled rounds: sums a round, shares, and the time in which nothing ran."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

from specpipe.benchmark.round_profile import covered, profile_rounds, summarise
from specpipe.cli.main import main


def test_overlapping_nested_and_touching_spans_count_once() -> None:
    assert covered([(5, 6), (0, 2), (1, 3), (1, 2), (3, 4)]) == 5


def test_times_are_per_round_and_idle_is_what_no_kernel_covers() -> None:
    kernels = [("gemm", 0, 4, 4), ("norm", 3, 5, 2), ("gemm", 8, 12, 4), ("norm", 13, 15, 2)]
    found = summarise(kernels, 2)
    assert found.round_us == 7.5
    assert found.idle_share == pytest.approx(4 / 15)
    assert [(k.name, k.calls, k.us) for k in found.kernels] == [("gemm", 1, 4), ("norm", 1, 2)]
    assert [k.share for k in found.kernels] == pytest.approx([2 / 3, 1 / 3])


def test_operators_are_counted_without_those_they_call() -> None:
    x = torch.ones(200, 200)

    found = profile_rounds(lambda: torch.nn.functional.linear(x, x), torch.device("cpu"), 3)

    kernels = {kernel.name: kernel for kernel in found.kernels}
    assert (
        kernels["aten::linear"].calls == kernels["aten::addmm" if "aten::addmm" in kernels else "aten::mm"].calls == 1
    )
    assert sum(k.us for k in found.kernels) <= 3 * found.round_us


def test_bench_engine_shows_kernels_of_decoding_rounds() -> None:
    options = "--device cpu --target small --draft small --batch 2 --k 2 --prompt-tokens 9 --new-tokens 40 --profile"
    result = CliRunner().invoke(main, ["bench", "engine", *options.split(), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    profile = json.loads(result.stdout.splitlines()[-1])["profile"]
    # Two draft steps and a verify, each with two layers of seven products, and the head.
    assert {k["name"]: k["calls"] for k in profile["kernels"]}["aten::mm"] == 3 * (2 * 7 + 1)
    assert 0 < profile["idle_share"] < 1
    assert sum(k["share"] for k in profile["kernels"]) == pytest.approx(1)


@pytest.mark.gpu
def test_kernels_inside_a_graph_are_seen_one_by_one() -> None:
    options = "--target small --draft small --batch 2 --k 2 --prompt-tokens 9 --new-tokens 40 --profile --json"
    result = CliRunner().invoke(main, ["bench", "engine", *options.split()], catch_exceptions=False)
    profile = json.loads(result.stdout.splitlines()[-1])["profile"]
    calls = {k["name"]: k["calls"] for k in profile["kernels"]}
    assert max(calls.values()) >= 6, "products of three forwards, two layers each"
    assert 0 <= profile["idle_share"] < 1
