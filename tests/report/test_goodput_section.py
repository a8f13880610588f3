"""The section on goodput: expected throughput, and the run against the best fixed K."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.fake_workers import InProcessBackend, make_job
from support.report_pages import Page, run_source, timeline

from specpipe.core import CostPoint
from specpipe.pipeline.run.report_page import read_costs, report_of
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.folder import RunFolder
from specpipe.report import render_run
from specpipe.report.goodput_section import compare_with_fixed_k
from specpipe.speculation.estimates.round_costs import RoundCosts
from specpipe.speculation.estimates.round_model import RoundWork


def costs() -> RoundCosts:
    """Returns round times with which K > 0 is faster at 2 rows and slower at 64."""
    return RoundCosts().with_points(
        CostPoint(
            proposer="draft" if k else "none", k=k, running=n, context=100.0, rounds=500,
            seconds=500 * (0.010 + 0.0005 * n * (k + 1) + 0.001 * k),
        )
        for k in range(4) for n in (1, 2, 4, 8, 16, 32, 64)
    )  # fmt: skip


CONDITIONAL = (0.8, 0.8, 0.8)


def test_run_with_the_best_fixed_k_has_no_regret() -> None:
    samples = np.array([[100.0, 2.0, 3.0]] * 9)
    compared = compare_with_fixed_k(samples, costs(), CONDITIONAL, "draft", 100.0)
    assert (compared.best_k, compared.regret) == (3, pytest.approx(0.0))
    tokens_per_row = 1 + 0.8 + 0.64 + 0.512
    seconds = costs().seconds(RoundWork("draft", 3, 2, 200.0))
    assert compared.as_run == pytest.approx(2 * tokens_per_row / seconds)


def test_best_k_at_every_occupancy_beats_every_fixed_k() -> None:
    mixed = np.array([[100.0, 2.0, 3.0], [900.0, 64.0, 0.0]])
    compared = compare_with_fixed_k(mixed, costs(), CONDITIONAL, "draft", 100.0)
    assert compared.regret < 0
    worst = compare_with_fixed_k(
        np.array([[100.0, 2.0, 0.0], [900.0, 64.0, 3.0]]), costs(), CONDITIONAL, "draft", 100.0
    )
    assert worst.regret > 0 and worst.by_k == compared.by_k
    between = compare_with_fixed_k(np.array([[100.0, 2.0, 1.5]]), costs(), CONDITIONAL, "draft", 100.0)
    assert between.by_k[1] < between.as_run < between.by_k[2]


def test_seconds_without_running_rows_are_ignored() -> None:
    samples = np.array([[100.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    assert compare_with_fixed_k(samples, costs(), CONDITIONAL, "draft", 100.0) == compare_with_fixed_k(
        samples[:1], costs(), CONDITIONAL, "draft", 100.0
    )


@pytest.mark.usefixtures("no_plots")
def test_section_appears_with_expectations_or_costs() -> None:
    assert "Goodput" not in Page(render_run(run_source())).text
    expecting = timeline(60)
    name = "expected_tokens_per_s"
    if name in expecting.column_names:
        expecting = expecting.drop_columns([name])
    expecting = expecting.append_column(name, pa.array([120.0] * 60))
    text = Page(render_run(run_source(timelines=[expecting], costs=costs()))).text
    assert "Expected and measured tokens per second" in text
    assert re.search(r"Run and best fixed K: [01]\.\d% slower than K=2", text)  # 833 and 827 tokens/s at 8 rows
    assert "Goodput" in Page(render_run(dataclasses.replace(run_source(), costs=costs()))).text


@pytest.mark.usefixtures("no_plots")
def test_costs_are_read_from_the_run(tmp_path: Path) -> None:
    execute(make_job(tmp_path), backend=InProcessBackend())
    few = RoundCosts().with_points([CostPoint(proposer="none", k=0, running=1, context=1.0, rounds=1, seconds=9.0)])
    known = {"b": costs().to_json(), "a": few.to_json()}
    (tmp_path / "out/telemetry/costs.json").write_text(json.dumps(known))
    found = read_costs(RunFolder.at(str(tmp_path / "out")))
    assert found is not None and found.to_json() == {**costs().to_json(), "rounds": 1.0}
    assert "<svg" in report_of(str(tmp_path / "out"))
