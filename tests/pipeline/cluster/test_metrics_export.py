"""Tests of metrics export: every metric, with its declared labels, on Ray's endpoint."""

from pathlib import Path
from typing import Any

import pytest
from support.fake_workers import InProcessBackend, make_job, write_rows

from specpipe.pipeline.cluster import metrics_export
from specpipe.pipeline.cluster.metrics_export import Exporter, Value, run_values, worker_values
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.messages import EngineGauges
from specpipe.pipeline.run.run import Viewer, execute
from specpipe.telemetry.engine_totals import EngineTotals
from specpipe.telemetry.metrics import METRICS, RUN, WORKER, run_label

DECLARED = {metric.name: metric for metric in METRICS}


def run(folder: Path) -> tuple[list[Value], list[Progress], dict[str, Any]]:
    """Returns the last values of the only worker, all progress and the summary of a run."""
    write_rows(folder / "rows.parquet", 24, r5="BAD", r7=None)
    seen: list[Progress] = []
    backend = InProcessBackend()
    result = execute(make_job(folder), viewer=Viewer(progress=seen.append), backend=backend)
    totals, gauges = backend.spawned[0].worker.last  # type: ignore[attr-defined]
    return list(worker_values(totals, gauges)), seen, dict(result.summary)


@pytest.fixture
def _keep_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the last measurements of a worker, which has no engine after it was stopped."""
    from specpipe.pipeline.worker.worker import Worker

    close = Worker.close

    def closing(worker: Worker) -> None:
        worker.last = worker.measured()  # type: ignore[attr-defined]
        close(worker)

    monkeypatch.setattr(Worker, "close", closing)


@pytest.mark.usefixtures("_keep_measurements")
def test_every_metric_is_exported_and_agrees_with_the_summary(tmp_path: Path) -> None:
    values, seen, summary = run(tmp_path)
    said = [*values, *run_values(seen[-1])]
    assert {value.name for value in said} == DECLARED.keys()
    for value in said:
        own = WORKER if DECLARED[value.name].labels[:2] == WORKER else RUN
        assert (*own, *value.label) == DECLARED[value.name].labels
    by = {(value.name.removeprefix("specpipe_"), *value.label.values()): value.value for value in said}
    assert by["rows", "length"] == 22 and by["rows", "error"] == 1 and by["rows", "refused"] == 1
    assert by["output_tokens",] == summary["total_output_tokens"]
    assert by["drafts",] == summary["spec_decode_num_drafts"]
    assert by["accepted_tokens", "0"] <= by["reached_tokens", "0"] == by["draft_tokens", "0"]
    assert sum(by["round_seconds",]) == by["rounds",] > 0
    assert (by["run_rows",], by["run_rows_done",], by["run_rows_failed",]) == (24, 24, 2)
    assert (by["kv_pages",], by["slots",]) == (6, 3)


class Recorded:
    """Stands where Ray's instruments do, and adds up as they do."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []

    def inc(self, value: float, tags: dict[str, str]) -> None:
        self.calls.append(("inc", value))

    def observe(self, value: float, tags: dict[str, str]) -> None:
        self.calls.append(("observe", value))


def test_counters_export_increments_and_restart_with_a_new_engine() -> None:
    exporter = Exporter(run="r", worker="w")
    rounds, seconds = Recorded(), Recorded()
    exporter._instruments = {"specpipe_rounds": rounds, "specpipe_round_seconds": seconds}
    for total, buckets in ((3, [2, 1]), (3, [2, 1]), (5, [2, 3]), (2, [2, 0])):
        exporter.export(iter([Value("specpipe_rounds", total), Value("specpipe_round_seconds", buckets)]))
    assert [grown for _, grown in rounds.calls] == [3, 2, 2]
    assert [s for _, s in seconds.calls] == [0.0005, 0.0005, 0.0015, 0.0015, 0.0015]


def test_run_label_is_the_same_for_every_start() -> None:
    assert run_label("sharegpt", "0123456789abcdef") == "sharegpt-01234567"


def test_idle_engine_exports_zeros() -> None:
    idle = EngineGauges(
        queue_depth=0.0, running_rows=0, waiting_rows=0, slots=3, kv_pages_used=0, kv_pages=6, step_seconds=0.0
    )
    said = list(worker_values(EngineTotals(), idle))
    assert not any(value.label for value in said)
    assert len(metrics_export._BUCKET_VALUES_S) == len(next(v for v in said if v.name.endswith("round_seconds")).value)  # type: ignore[arg-type]
