"""Every telemetry field is in docs/telemetry.md, every metric in docs/operations.md."""

import dataclasses
import re
from pathlib import Path

import pytest
from support.shard_records import shard_table

from specpipe.pipeline.driver.progress import Progress
from specpipe.telemetry.metrics import METRICS, WORKER
from specpipe.telemetry.run_summary import RunFacts, summarise
from specpipe.telemetry.shard_record import ShardRecord
from specpipe.telemetry.timeline_interval import TimelineInterval

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "telemetry.md").read_text(encoding="utf-8")
FACTS = RunFacts(
    total_rows=0, total_shards=0, failed_shards={}, starts=1, synthetic=False, peak_output_throughput=0, workers={},
    versions={},
)  # fmt: skip
LATENCY = re.compile(r"(mean|median|p99)_(ttft|tpot|itl)_ms")


@pytest.mark.parametrize("fields", [ShardRecord, TimelineInterval, Progress], ids=["shards", "timeline", "progress"])
def test_every_column_is_documented(fields: type) -> None:
    assert [field.name for field in dataclasses.fields(fields) if f"`{field.name}`" not in TEXT] == []


def test_every_summary_key_is_documented() -> None:
    keys = [key for key in summarise(shard_table([]), FACTS) if not LATENCY.fullmatch(key)]
    assert [key for key in keys if f"`{key}`" not in TEXT] == []


def test_every_metric_is_documented() -> None:
    page = (DOCS / "operations.md").read_text(encoding="utf-8")
    rows = [f"| `{m.exported}` | {m.about} |" for m in METRICS]
    further = {label for m in METRICS for label in m.labels if label not in WORKER}
    assert sorted(label for label in further if f"`{label}`" not in page) == []
    assert {m.kind for m in METRICS if not m.exported.endswith("_total")} == {"gauge", "histogram"}
    assert re.findall(r"^\| `ray_specpipe_.*$", page, re.MULTILINE) == rows
