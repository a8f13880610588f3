"""Report pages in a browser: light and dark, at the widths of a phone and a desktop."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.page_layout import assert_readable, measure_page
from support.report_pages import run_source, shard_record, timeline
from support.shard_records import shard_table

from specpipe.evaluation.compare.compared_run import ComparedRun
from specpipe.evaluation.compare.comparison import Comparison, Flip
from specpipe.evaluation.compare.paired_scores import MetricComparison
from specpipe.evaluation.compare.text_comparison import Divergence, TextComparison
from specpipe.evaluation.pages.comparison_page import comparison_page
from specpipe.evaluation.pages.history_page import history_page
from specpipe.evaluation.schedule.eval_history import SCHEMA
from specpipe.report import ErrorExample, RunSource, render_run

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore")]
SCHEMES = pytest.mark.parametrize("scheme", ["light", "dark"])
WIDTHS = pytest.mark.parametrize("width", [390, 1400])
LONG = "a-word-without-an-end" * 20


def plain_source() -> RunSource:
    return run_source()


def troubled_source() -> RunSource:
    """Returns a run with long names, failures, several starts, wide tables and a hostile row."""
    hostile = "<script>fetch('https://example.org/')</script><img src='https://example.org/x.png'>"
    errors = [ErrorExample(request_id=LONG, prompt=hostile + LONG, error=f"{hostile} {LONG}")] * 3
    return run_source(
        state="interrupted",
        errors=errors,
        folder=f"s3://bucket/{LONG}",
        shards=shard_table([shard_record(i, worker=LONG, plan_reason=LONG, output_tokens=10**9) for i in range(12)]),
        timelines=[timeline(4000), timeline(9000, epoch=2), timeline(30, epoch=3)],
        summary={"name": LONG, "failed": 3, "synthetic": True, "failed_shards": {"7": LONG, "8": hostile}},
    )


def comparison() -> str:
    """Returns the page of two runs that differ, with a hostile answer and a very long one."""
    hostile = "<script>fetch('https://example.org/')</script> 4 * 12 = 48"
    runs = [
        ComparedRun(name=name, run=None, samples=(), settings={"speculation.policy": policy}, measured={"failed": 0})
        for name, policy in (("runs/plain", "off"), (f"runs/{LONG}", "fixed"))
    ]
    metric = MetricComparison(
        task="gsm8k", filter="strict-match", metric="exact_match", n=200, mean_a=0.9, stderr_a=0.02, mean_b=0.5,
        stderr_b=0.03, difference=-0.4, stderr=0.03, higher_in_b=2, higher_in_a=82, same_answers=90,
    )  # fmt: skip
    flip = Flip(
        task="gsm8k", doc_id=7, filter="strict-match", metric="exact_match", score_a=1.0, score_b=0.0, prompt=hostile,
        target="48", answers_a=("The peaches cost 4 * 12 = 48 dollars.",), answers_b=(f"{hostile} {LONG}",),
    )  # fmt: skip
    divergence = Divergence(
        row=3, request_id="3", position=9, token_a=1, token_b=2, prompt=hostile, text_a="one two three",
        text_b=f"one {LONG} three", common=(),
    )  # fmt: skip
    texts = TextComparison(rows=200, same_text=90, same_tokens=90, positions=[9] * 110, divergences=[divergence] * 60)
    return comparison_page(Comparison(a=runs[0], b=runs[1], metrics=(metric,), flips=(flip, flip), texts=texts))


def history() -> str:
    """Returns the page of a nightly evaluation over two months."""
    values: dict[str, Any] = {name: 0.5 for name in SCHEMA.names}
    values |= {name: LONG for name, kind in zip(SCHEMA.names, SCHEMA.types, strict=True) if str(kind) == "string"}
    first = datetime.datetime(2026, 1, 31, 10, tzinfo=datetime.UTC)
    rows = [
        {**values, "n": 9, "time": first + datetime.timedelta(days=day), "speculative": 0.5 + day % 7 / 50}
        for day in range(60)
    ]
    return history_page(pa.Table.from_pylist(rows, schema=SCHEMA))


def assert_page_is_readable(browser: Any, html: str, folder: Path, width: int, scheme: str) -> None:
    page = folder / "page.html"
    page.write_text(html, encoding="utf-8")
    layout = measure_page(browser, page, width=width, scheme=scheme, picture=folder / "page.png")
    assert_readable(layout)
    red = int(layout.background.removeprefix("rgb(").split(",")[0])
    assert red > 200 if scheme == "light" else red < 50
    assert (folder / "page.png").stat().st_size > 10_000


@SCHEMES
@WIDTHS
@pytest.mark.parametrize("source", [plain_source, troubled_source])
def test_run_report_is_readable(chromium: Any, tmp_path: Path, source: Any, width: int, scheme: str) -> None:
    assert_page_is_readable(chromium, render_run(source()), tmp_path, width, scheme)


@SCHEMES
@WIDTHS
@pytest.mark.parametrize("page", [comparison, history])
def test_evaluation_page_is_readable(chromium: Any, tmp_path: Path, page: Any, width: int, scheme: str) -> None:
    assert_page_is_readable(chromium, page(), tmp_path, width, scheme)
