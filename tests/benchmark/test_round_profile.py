"""Kernel times of profiled rounds: sums per round, shares, and idle time."""

from __future__ import annotations

import pytest
import torch

from specpipe.benchmark.round_profile import profile_rounds, summarise_kernels, union_length


def test_overlapping_nested_and_touching_intervals_count_once() -> None:
    assert union_length([(5, 6), (0, 2), (1, 3), (1, 2), (3, 4)]) == 5


def test_times_are_per_round_and_gaps_are_idle() -> None:
    kernels = [("gemm", 0, 4, 4), ("norm", 3, 5, 2), ("gemm", 8, 12, 4), ("norm", 13, 15, 2)]
    found = summarise_kernels(kernels, 2)
    assert found.round_us == 7.5
    assert found.idle_share == pytest.approx(4 / 15)
    assert [(k.name, k.calls, k.us) for k in found.kernels] == [("gemm", 1, 4), ("norm", 1, 2)]
    assert [k.share for k in found.kernels] == pytest.approx([2 / 3, 1 / 3])


def test_operators_exclude_the_operators_they_call() -> None:
    x = torch.ones(200, 200)
    found = profile_rounds(lambda: torch.nn.functional.linear(x, x), torch.device("cpu"), 3)
    kernels = {kernel.name: kernel for kernel in found.kernels}
    product = "aten::addmm" if "aten::addmm" in kernels else "aten::mm"
    assert kernels["aten::linear"].calls == kernels[product].calls == 1
    assert sum(k.us for k in found.kernels) <= 3 * found.round_us
