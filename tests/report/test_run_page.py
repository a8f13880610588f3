"""The page of a run: self-contained, escaped, of bounded size, and right in its figures."""

import dataclasses
import logging
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.fake_workers import InProcessBackend, make_job, outputs, write_rows
from support.records import shard_table
from support.reports import Page, run_source, shard_record, timeline

from specpipe.pipeline.run.report_page import report_of
from specpipe.pipeline.run.run import execute
from specpipe.report import ErrorExample, render_run

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> </td>&amp; \N{BELL} {{ 7*7 }}"


def test_it_loads_nothing_and_its_ids_are_unique() -> None:
    page = Page(html := render_run(run_source()))
    assert page.loads == []
    assert "script" not in page.tags
    assert not re.search(r"@import|url\((?!#)", html)
    assert len(set(page.ids)) == len(page.ids)


def test_every_plot_is_drawn_in_the_colours_of_the_page_with_words_for_it() -> None:
    html = render_run(run_source())
    plots = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(plots) == html.count("<figure>") == 9
    for plot in plots:
        ET.fromstring(plot)
        assert "#00000" not in plot
        assert re.search(r'role="img" aria-label="[^"]{20,}"', plot)
        assert not re.search(r"(fill|stroke): #", plot)


def test_text_from_outside_is_only_text() -> None:
    hostile = ErrorExample(request_id=HOSTILE, prompt=HOSTILE, error=HOSTILE)
    records = [shard_record(0, worker=HOSTILE, plan_reason=HOSTILE)]
    source = run_source(
        errors=[hostile],
        folder=HOSTILE,
        shards=shard_table(records),
        summary={"failed": 1, "failed_shards": {"3": HOSTILE}, "name": HOSTILE, "devices": [HOSTILE]},
    )
    page = Page(render_run(source))
    assert not {"script", "img"} & set(page.tags)
    assert page.loads == []
    assert page.text.count("<script>alert(1)</script>") >= 8
    assert "{{ 7*7 }}" in page.text


def test_what_it_says_of_a_run() -> None:
    text = Page(render_run(run_source())).text
    for words in (
        "a run complete", "60 of 60", "some/target at abc", "temperature 0.7, top_p 0.9, at most 64 new tokens",
        "worker-seconds held 80.0", "worker-seconds busy 54.0 (68%)",
        "Output tokens per worker-second 67.5", "Acceptance length 3.00", "1 83.3% 83.3%", "2 66.7% 80.0%",
        "Slowest shards", "verify 30.0 55.6%",
    ):  # fmt: skip
        assert words in text
    assert "Failed" not in text


def test_seconds_of_gpus_are_called_so() -> None:
    text = Page(render_run(run_source(summary={"devices": ["NVIDIA H200"]}))).text
    assert "Output tokens per GPU-second 67.5" in text


def test_a_run_without_anything_published() -> None:
    source = run_source(records=0, seconds=0, state="failed")
    text = Page(render_run(source)).text
    assert "a run failed" in text
    assert "None: every token was decoded plainly" in text


def test_a_huge_run_makes_a_small_page() -> None:
    shards = shard_table([shard_record(0)]).take([0] * 100_000)
    shards = shards.set_column(1, "shard", pa.array(range(100_000)))
    failed = {str(i): "the worker's process died " * 50 for i in range(5_000)}
    workers = {
        f"worker-{i}": {"shards": 1, "rows": 1, "output_tokens": 1, "busy_s": 1.0, "tokens_per_s": 1.0}
        for i in range(10_000)
    }
    hours = timeline(36_000)
    source = dataclasses.replace(run_source(), shards=shards, timelines=[hours, timeline(7_200, epoch=2)])
    source = dataclasses.replace(
        source, summary={**source.summary, "failed_shards": failed, "workers": workers, "failed": 10**6},
        errors=[ErrorExample(request_id="x" * 10_000, prompt="y" * 100_000, error="z" * 100_000)] * 12,
    )  # fmt: skip
    html = render_run(source)
    assert len(html.encode()) < 300_000
    text = Page(html).text
    assert "99,990 more shards are not shown" in text
    assert "9,980 more workers are not shown" in text


def test_a_run_leaves_it_with_its_failed_rows(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", 24, r3=None, r9=HOSTILE)
    execute(make_job(tmp_path), backend=InProcessBackend())
    page = Page((tmp_path / "out/report.html").read_text(encoding="utf-8"))
    errors = [error for error in outputs(tmp_path / "out")["error"].to_pylist() if error]
    assert errors and all(" ".join(error.split())[:200] in page.text for error in errors)
    assert "job complete" in page.text
    assert "script" not in page.tags
    again = Page(report_of(str(tmp_path / "out")))
    assert again.text == page.text


def test_a_run_that_fails_leaves_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object) -> None:
        raise RuntimeError("a fault of the driver's")

    monkeypatch.setattr("specpipe.pipeline.driver.driver.Driver._poll", broken)
    with pytest.raises(RuntimeError, match="fault"):
        execute(make_job(tmp_path), backend=InProcessBackend())
    assert "job failed" in Page((tmp_path / "out/report.html").read_text(encoding="utf-8")).text


def test_a_plot_that_cannot_be_drawn_leaves_its_table(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *a, **k: 1 / 0)
    with caplog.at_level(logging.WARNING):
        html = render_run(run_source())
    assert "ZeroDivisionError" in caplog.text
    assert "<svg" not in html
    assert html.count("<details open>") == 9


def test_a_report_never_fails_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("specpipe.pipeline.run.report_page.render_run", lambda source: 1 / 0)
    with caplog.at_level(logging.WARNING):
        assert execute(make_job(tmp_path), backend=InProcessBackend()).exit_code == 0
    assert "report.html could not be written: ZeroDivisionError" in caplog.text
    assert pq.read_table(tmp_path / "out/telemetry/shards.parquet").num_rows
