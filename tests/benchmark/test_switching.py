"""Throughput around switches of speculation."""

from __future__ import annotations

import pytest

from specpipe.benchmark.bench_config import EngineBench
from specpipe.benchmark.switching import measure_switches, throughput_around
from specpipe.benchmark.synthetic_engine import build_synthetic_engine, random_requests
from specpipe.engine.engine import Engine


@pytest.fixture(scope="module")
def engine() -> Engine:
    return build_synthetic_engine(
        EngineBench(target="small", draft="small", device="cpu", dtype="float32", batches=(3,), ks=(0, 2))
    )


def test_windows_around_a_switch_contain_its_pause() -> None:
    # 100 tokens/s with speculation, 80 without, and half a second without tokens after each switch.
    emissions, t = [], 0.0
    while t < 16:
        t += 0.01
        period, since_switch = divmod(t, 4)
        emissions.append((t, 0.0 if since_switch < 0.5 else (1.0 if period % 2 == 0 else 0.8)))
    off = throughput_around(emissions, 4.0, "off", 8.0, 2.0)
    assert (off.before, off.after) == pytest.approx((100, 80), rel=0.02)
    assert off.worst == pytest.approx(80 * 1.5 / 2, rel=0.03)
    assert off.share_of_better == pytest.approx(0.6, rel=0.03)
    assert off.share_of_expected == pytest.approx(0.75, rel=0.03)
    on = throughput_around(emissions, 8.0, "on", 12.0, 2.0)
    assert on.worst == pytest.approx(80 * 1.5 / 2, rel=0.03)
    assert on.share_of_expected == pytest.approx(60 / 85, rel=0.03)


def test_speculation_is_switched_while_rows_wait(engine: Engine) -> None:
    rows = random_requests([(5, 60)] * 16, 512)
    switches = measure_switches(engine, rows, k=2, period_s=0.05, window_s=0.02)
    assert [switch.to for switch in switches][:2] == ["off", "on"]
    assert all(0 < switch.worst <= 1.01 * max(switch.before, switch.after) for switch in switches)


def test_rows_that_end_before_a_switch_measure_none(engine: Engine) -> None:
    assert measure_switches(engine, random_requests([(5, 4)] * 2, 512), k=2, period_s=60) == []
