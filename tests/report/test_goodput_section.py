"""Expected against realised, and the run against the best fixed K."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.fake_workers import InProcessBackend, make_job
from support.reports import Page, run_source, timeline

from specpipe.core import CostPoint
from specpipe.pipeline.run.report_page import read_costs, report_of
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.folder import RunFolder
from specpipe.report import render_run
from specpipe.report.goodput_section import compare_with_fixed_k
from specpipe.speculation.cost_table import CostTable


def costs() -> CostTable:
    """Few rows are bound by weights, many by arithmetic: K pays at 2 rows and not at 64."""
    return CostTable(
        CostPoint(
            proposer="draft" if k else "none", k=k, running=n, context=100.0, rounds=500,
            seconds=500 * (0.010 + 0.0005 * n * (k + 1) + 0.001 * k),
        )
        for k in range(4) for n in (1, 2, 4, 8, 16, 32, 64)
    )  # fmt: skip


CONDITIONAL = (0.8, 0.8, 0.8)


def test_a_fixed_k_has_no_regret_against_itself() -> None:
    samples = np.array([[100.0, 2.0, 3.0]] * 9)
    weighed = compare_with_fixed_k(samples, costs(), CONDITIONAL, "draft", 100.0)
    assert (weighed.best_k, weighed.regret) == (3, pytest.approx(0.0))
    yields = 1 + 0.8 + 0.64 + 0.512
    seconds = costs().seconds(proposer="draft", k=3, running=2, context=100.0)
    assert weighed.as_run == pytest.approx(2 * yields / seconds)


def test_the_best_k_of_every_occupancy_beats_every_fixed_one() -> None:
    mixed = np.array([[100.0, 2.0, 3.0], [900.0, 64.0, 0.0]])
    weighed = compare_with_fixed_k(mixed, costs(), CONDITIONAL, "draft", 100.0)
    assert weighed.regret < 0
    worst = compare_with_fixed_k(
        np.array([[100.0, 2.0, 0.0], [900.0, 64.0, 3.0]]), costs(), CONDITIONAL, "draft", 100.0
    )
    assert worst.regret > 0 and worst.by_k == weighed.by_k
    between = compare_with_fixed_k(np.array([[100.0, 2.0, 1.5]]), costs(), CONDITIONAL, "draft", 100.0)
    assert between.by_k[1] < between.as_run < between.by_k[2]


def test_seconds_in_which_nothing_ran_do_not_count() -> None:
    samples = np.array([[100.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    assert compare_with_fixed_k(samples, costs(), CONDITIONAL, "draft", 100.0) == compare_with_fixed_k(
        samples[:1], costs(), CONDITIONAL, "draft", 100.0
    )


def test_the_page_has_the_section_where_there_is_something_to_say() -> None:
    assert "Goodput" not in Page(render_run(run_source())).text
    told = timeline(60)
    name = "expected_tokens_per_s"
    told = told.drop_columns([name] if name in told.column_names else []).append_column(name, pa.array([120.0] * 60))
    text = Page(render_run(run_source(timelines=[told], costs=costs()))).text
    assert "Expected and realised tokens per second" in text
    assert re.search(r"Against the best fixed K: 0\.\d% behind K=2", text)  # 833 and 827 tokens/s at 8 rows
    assert "Goodput" in Page(render_run(dataclasses.replace(run_source(), costs=costs()))).text


def test_costs_beside_a_run_are_found(tmp_path: Path) -> None:
    execute(make_job(tmp_path), backend=InProcessBackend())
    few = CostTable([CostPoint(proposer="none", k=0, running=1, context=1.0, rounds=1, seconds=9.0)])
    known = {"b": costs().to_json(), "a": few.to_json()}
    (tmp_path / "out/telemetry/costs.json").write_text(json.dumps(known))
    assert read_costs(RunFolder.at(str(tmp_path / "out"))) == costs()
    assert "<svg" in report_of(str(tmp_path / "out"))
