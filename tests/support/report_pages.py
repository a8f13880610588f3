"""Sources of reports with made-up values, and a parser of the pages."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pyarrow as pa
from support.shard_records import shard_table

from specpipe.report import RunSource
from specpipe.telemetry.log_histogram import LogHistogram
from specpipe.telemetry.run_summary import RunFacts, summarise
from specpipe.telemetry.shard_record import ShardRecord
from specpipe.telemetry.timeline_interval import TimelineInterval, timeline_batch


def shard_record(shard: int, **changes: Any) -> ShardRecord:
    """Returns the record of a shard of ten rows that took 30 s with K = 3; keyword arguments replace fields."""
    values: dict[str, Any] = {
        "run_id": "f" * 16,
        "shard": shard,
        "attempt": 1,
        "epoch": 1,
        "worker": "worker-0",
        "started_at": 1000.0 + 10 * shard,
        "finished_at": 1030.0 + 10 * shard,
        "rows": 10,
        "input_tokens": 300,
        "output_tokens": 900,
        "drafts": 300,
        "draft_tokens": 900,
        "accepted_tokens": 600,
        "recovered_tokens": 200,
        "bonus_tokens": 100,
        "proposed_per_position": (300, 300, 300),
        "reached_per_position": (300, 250, 200),
        "accepted_per_position": (250, 200, 150),
        "k_histogram": (20, 0, 0, 300),
        "slots": 16,
        "mean_occupancy": 9.5,
        "queue_depth": 40.0,
        "plan_reason": "fixed: K=3",
        "busy_s": 9.0,
        "draft_s": 3.0,
        "verify_s": 5.0,
        "prefill_s": 1.0,
        "tokens_per_s": 100.0,
        "ttft": LogHistogram([0.1, 0.2, 0.4]),
        "tpot": LogHistogram([0.01, 0.02]),
        "itl": LogHistogram([0.03, 0.05, 0.05]),
    }
    return ShardRecord(**values | changes)


def timeline(seconds: int, *, epoch: int = 1, began: int = 1000, worker: str = "worker-0", k: float = 3.0) -> pa.Table:
    """Returns one interval per second: 100 tokens, eight of 16 slots in use, a queue that shrinks."""
    first = TimelineInterval(
        second=began,
        interval_s=1,
        epoch=epoch,
        worker=worker,
        queue_depth=0.0,
        slots=16,
        occupancy=8.0,
        waiting=0,
        k=k,
        rounds=10,
        drafts=40,
        draft_tokens=120,
        accepted_tokens=60,
        acceptance_rate=0.5,
        acceptance_length=2.5,
        output_tokens=100,
        tokens_per_s=100.0,
    )
    table = pa.Table.from_batches([timeline_batch([first])]).take(pa.array([0] * seconds, pa.int64()))
    for name, values in (("second", np.arange(seconds) + began), ("queue_depth", np.arange(seconds, 0, -1))):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.field(place), pa.array(values).cast(table.field(place).type))
    return table


def run_source(*, records: int = 6, seconds: int = 60, **changes: Any) -> RunSource:
    """Returns a complete run of `records` shards; keyword arguments replace fields, or keys of `summary`."""
    made = [shard_record(i) for i in range(records)]
    facts = RunFacts(
        total_rows=10 * records,
        total_shards=records,
        failed_shards={},
        starts=1,
        synthetic=False,
        peak_output_throughput=0.0,
        workers={"worker-0": {"device": "cpu, 2 threads", "model_load_s": 4.5}},
        versions={"specpipe": "0.1.0"},
    )
    summary = {"name": "a run", "run_id": "f" * 16, **summarise(shard_table(made), facts)} | changes.pop("summary", {})
    values: dict[str, Any] = {
        "folder": "/runs/a",
        "state": "complete",
        "summary": summary,
        "identity": {
            "model.target": "some/target",
            "model.target_revision": "abc",
            "data.path": "rows.parquet",
            "sampling.temperature": 0.7,
            "sampling.top_p": 0.9,
            "sampling.max_new_tokens": 64,
            "speculation.method": "standard",
            "inputs": [{"path": "/data/rows.parquet", "size": 10, "mtime_ns": 0, "rows": 10 * records}],
        },
        "tuning": {
            "name": "a run",
            "model.draft_revision": "def",
            "speculation.policy": "fixed",
            "speculation.proposer": "draft",
            "speculation.num_speculative_tokens": 3,
            "workers.slots": 16,
        },
        "created_at": "2026-01-01T00:00:00Z",
        "shards": shard_table(made),
        "timelines": [timeline(seconds)] if seconds else [],
    }
    return RunSource(**values | changes)


class Page(HTMLParser):
    """Tags, ids, text and loaded resources of a page. Asserts that every element is closed."""

    _NAMES = ("src", "srcset", "data", "poster", "action", "background")
    _VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == [], f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self._VOID:
            self._open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            external = name in ("href", "xlink:href") and not str(value).startswith(("#", "data:"))
            if name in self._NAMES or external or name.startswith("on"):
                self.loads.append(f"{tag} {name}={value}")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self._VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-3:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        """All text, with single spaces."""
        return " ".join(" ".join(self.words).split())
