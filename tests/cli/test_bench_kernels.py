"""`specpipe bench kernels`: every combination once, acceptance as asked for."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

from specpipe.benchmark.kernel_ops import OPS
from specpipe.benchmark.kernels import KernelBench, disturbance, sweep
from specpipe.cli.main import main


def test_one_line_of_json_for_each_combination() -> None:
    arguments = "bench kernels --device cpu -b 1 -b 2 -k 2 --vocab 64 --acceptance 0.5 --method standard --method block"
    result = CliRunner().invoke(main, [*arguments.split(), "--json"])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(x["batch"], x["method"]) for x in lines] == [(b, m) for b in (1, 2) for m in ("standard", "block")]
    assert all(x["bytes"] == x["batch"] * 5 * 64 * 2 and x["p10_us"] <= x["p90_us"] for x in lines)


def test_other_operations_by_name() -> None:
    names = list(OPS)
    options = [option for name in names for option in ("--op", name)]
    fixed = ["bench", "kernels", "--device", "cpu", "-b", "2", "-k", "2", "--vocab", "64", "--dtype", "float32"]
    result = CliRunner().invoke(main, [*fixed, *options, "--json"])
    assert result.exit_code == 0, result.output
    lines = {x["op"]: x for x in map(json.loads, result.stdout.splitlines())}
    assert list(lines) == names and all(x["median_us"] > 0 for x in lines.values())
    assert lines["sample"]["bytes"] == 2 * 64 * 4 and lines["sample-recovered"]["bytes"] == (4 + 4 + 2) * 64 * 4
    table = CliRunner().invoke(main, [*fixed, *options, "--op", "rejection-sample", "--acceptance", "0.5"])
    assert table.exit_code == 0, table.output
    assert [line.split()[4] for line in table.stdout.splitlines()] == ["method", "standard", "operation", *names]


def test_a_machine_without_a_gpu_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    result = CliRunner().invoke(main, ["bench", "kernels"])
    assert result.exit_code == 1 and "--device cpu" in result.output


@pytest.mark.parametrize("acceptance", [0.2, 0.7, 0.9])
def test_drafts_are_accepted_at_the_wanted_rate(acceptance: float) -> None:
    bench = KernelBench(
        batches=(300,), ks=(1,), vocabs=(2000,), dtypes=("float32",), acceptances=(acceptance,), replays=2, device="cpu"
    )
    (measured,) = sweep(bench)
    assert measured.acceptance_length - 1 == pytest.approx(acceptance, abs=0.07)
    assert disturbance(acceptance) > 0
