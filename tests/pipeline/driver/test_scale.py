"""Tests of the driver with 100,000 shards and 1,000 workers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = str(Path(__file__).parents[2])


def measure(*arguments: object) -> dict[str, float]:
    path = os.pathsep.join([TESTS, *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "support.scale", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    print(*arguments, done.stdout.strip())
    return json.loads(done.stdout)


@pytest.mark.slow
def test_driver_of_100000_shards_limits_memory_and_cpu() -> None:
    small, medium, large = (measure("drive", count, "queue_threshold") for count in (1_000, 10_000, 100_000))
    assert large["peak_mib"] < 850
    assert large["running_mib"] - medium["running_mib"] < 250
    assert large["per_cpu_s"] > 2000
    assert large["per_cpu_s"] > 0.5 * small["per_cpu_s"]  # constant work a shard


@pytest.mark.slow
def test_goodput_plans_do_not_delay_a_thousand_workers() -> None:
    assert measure("drive", 10_000, "goodput")["per_cpu_s"] > 1000


@pytest.mark.slow
@pytest.mark.timeout(900)  # writes 100,000 files: minutes on a busy disk, and the CPU time is what is limited
def test_ledger_of_100000_parts_is_read_in_seconds(tmp_path: Path) -> None:
    _, medium, large = (measure("scan", count, tmp_path / str(count)) for count in (1_000, 10_000, 100_000))
    assert large["peak_mib"] < 500
    assert large["cpu_s"] < 20
    assert large["cpu_s"] < 20 * medium["cpu_s"]
