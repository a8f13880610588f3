"""Reports in a real browser: light and dark, on a phone and on a desk."""

from pathlib import Path
from typing import Any

import pytest
from support.look import assert_readable, look_at
from support.reports import run_source, shard_record, timeline

from specpipe.report import ErrorExample, RunSource, render_run
from specpipe.telemetry.record import shard_table

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore")]
SCHEMES = pytest.mark.parametrize("scheme", ["light", "dark"])
WIDTHS = pytest.mark.parametrize("width", [390, 1400])
LONG = "a-word-without-an-end" * 20


def plain() -> RunSource:
    return run_source()


def troubled() -> RunSource:
    """Long names, failures, many starts, wide tables, a hostile row."""
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


@SCHEMES
@WIDTHS
@pytest.mark.parametrize("source", [plain, troubled])
def test_a_report_can_be_read(chromium: Any, tmp_path: Path, source: Any, width: int, scheme: str) -> None:
    page = tmp_path / "report.html"
    page.write_text(render_run(source()), encoding="utf-8")
    look = look_at(chromium, page, width=width, scheme=scheme, picture=tmp_path / "page.png")
    assert_readable(look)
    red = int(look.background.removeprefix("rgb(").split(",")[0])
    assert red > 200 if scheme == "light" else red < 50
    assert (tmp_path / "page.png").stat().st_size > 10_000
