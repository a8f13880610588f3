"""Machines: seconds between recorded rounds, and their residuals in order."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specpipe.simulator.machine import RecordedMachine, TableMachine, read_machine
from specpipe.simulator.measurement import Measurement
from specpipe.simulator.scenarios import BUILT_IN, load_scenarios

TABLES = {
    "verify": [[1, 4e-3], [256, 8e-3]], "draft": [[1, 1e-3], [256, 2e-3]], "kv": 3e-8, "draft_kv": 8e-9,
    "draft_prefill": 3e-6, "draft_forward": 8e-4, "ngram": [0, 0],
}  # fmt: skip


def recording(noise: float = 0.0) -> dict[str, object]:
    """Returns rounds of TABLES, each visit with the same residuals."""
    machine, rng = TableMachine(TABLES), np.random.default_rng(0)
    visits = []
    for k in (0, 1, 2, 3, 5):
        for rows in (1, 8, 64, 256):
            for prompt in (64, 500):
                us = [
                    1e6 * machine.seconds("draft" if k else "none", k, rows, prompt + i) * np.exp(noise * rng.normal())
                    for i in range(9)
                ]
                visits.append({"k": k, "rows": rows, "context": [prompt, prompt + 8], "us": us})
    prefills = [(tokens, 1e6 * machine.prefill_s(tokens, 1.0)) for tokens in (16, 200, 2048)]
    return {"visits": visits, "draft_prefills": prefills}


@pytest.mark.parametrize(("k", "rows", "context"), [(0, 3, 100.0), (3, 64, 700.0), (4, 200, 90.0), (5, 300, 300.0)])
def test_recorded_machine_returns_the_seconds_between_recorded_rounds(k: int, rows: int, context: float) -> None:
    recorded, true = RecordedMachine(recording()), TableMachine(TABLES)
    who = "draft" if k else "none"
    assert recorded.seconds(who, k, rows, context) == pytest.approx(true.seconds(who, k, rows, context), rel=0.03)
    assert recorded.prefill_s(1000, 2.0) == pytest.approx(true.prefill_s(1000, 2.0), rel=0.01)


def test_recorded_residuals_are_measured_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "rounds.json").write_text(json.dumps(recording(noise=0.1)))
    machine = read_machine({"recorded": "rounds.json"}, tmp_path)
    assert machine.measured is not None and 0.05 < np.std(np.log(machine.measured)) < 0.15
    measurement = Measurement(replace(load_scenarios()[0], machine=machine))
    seconds = machine.seconds("draft", 2, 8, 100.0)
    factors = [measurement.round_s("draft", 2, 8, seconds) / seconds for _ in range(len(machine.measured))]
    start = int(np.argmin(np.abs(machine.measured - factors[0])))
    assert factors == pytest.approx(np.roll(machine.measured, -start))


H200 = json.loads(BUILT_IN.with_name("h200_rounds.json").read_text())
KS = [("none", 0), *(("draft", k) for k in range(1, 6))]


def test_h200_machine_returns_the_recorded_medians() -> None:
    machine, visits = RecordedMachine(H200), defaultdict(list)
    for visit in H200["visits"]:
        visits[visit["k"], visit["rows"]].append(visit)
    for (k, rows), some in visits.items():
        for visit in some:
            seconds = machine.seconds("draft" if k else "none", k, rows, np.mean(visit["context"]))
            off = 0.025 if len(some) > 1 else 0.005  # two contexts share a straight line
            assert seconds == pytest.approx(1e-6 * np.median(visit["us"]), rel=off), visit
    assert machine.prefill_s(8192, 1.0) == pytest.approx(0.0285, rel=0.05)


def test_h200_machine_interpolates_where_no_round_was_recorded() -> None:
    machine = RecordedMachine(H200)
    seconds = np.array(
        [[[machine.seconds(who, k, n, c) for c in (64, 500, 1500)] for n in range(1, 257)] for who, k in KS]
    )
    assert seconds.min() > 4e-3 and seconds.max() < 0.1
    for axis, least in enumerate((5e-4, -5e-5, 0.0)):  # K, rows (the medians of 1 and 2 rows differ by -40 us), context
        assert np.diff(seconds, axis=axis).min() > least
    assert np.diff(np.log(seconds), axis=1).max() < 0.03  # one row more


def test_h200_residuals_replay_the_recorded_rounds_in_order() -> None:
    machine, us = RecordedMachine(H200), [us for visit in H200["visits"] for us in visit["us"]]
    assert machine.measured is not None and len(machine.measured) == len(us)
    assert 0.01 < np.std(np.log(machine.measured)) < 0.05
    first = H200["visits"][0]
    true = [machine.seconds("none", 0, 16, c) for c in np.linspace(*first["context"], len(first["us"]))]
    assert true * machine.measured[: len(true)] == pytest.approx(1e-6 * np.array(first["us"]))
