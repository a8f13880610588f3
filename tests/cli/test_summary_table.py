"""The table of totals: rows that appear only when they apply."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console
from support.report_pages import run_source

from specpipe.cli.summary_table import print_summary


def shown(**changes: Any) -> str:
    summary = run_source(summary=changes).summary
    out = io.StringIO()
    print_summary({**summary, "state": "complete"}, title="/runs/a", console=Console(file=out, width=80))
    assert max(map(len, out.getvalue().splitlines())) <= 80
    return " ".join(out.getvalue().split())


def test_run_without_failures_shows_no_failures() -> None:
    text = shown()
    assert text.startswith("/runs/a complete rows 60 of 60 shards 6 of 6 tokens")
    assert "failed" not in text and "starts" not in text and "SYNTHETIC" not in text


def test_shares_of_k_below_half_a_percent_are_omitted() -> None:
    assert "K=0 10%, K=3 90%" in shown(k_histogram={"0": 10, "3": 90})
    assert "K of row-rounds K=3 100%" in shown(k_histogram={"0": 1, "3": 999})


def test_failures_starts_and_synthetic_acceptance_are_shown() -> None:
    text = shown(failed=2, starts=3, failed_shards={"4": "the GPU is gone\nand a trace"}, synthetic=True)
    assert "2 failed" in text and "in 3 starts" in text and "SYNTHETIC ACCEPTANCE" in text
    assert "shard 4 failed the GPU is gone" in text and "trace" not in text


def test_plain_decoding_shows_no_acceptance() -> None:
    text = shown(spec_decode_num_drafts=0)
    assert "speculation none: plain decoding" in text and "acceptance" not in text
