"""Process of a CPU worker: the dry run's memory against its peak, and settings that it gets from its environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_workers import write_rows

from specpipe.job import JobSpec, parse_job
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.run.dry_run import plan_run
from specpipe.pipeline.run.run import Viewer, execute


def job_of(folder: Path, *, rows: int = 400, **workers: object) -> JobSpec:
    write_rows(folder / "rows.parquet", rows)
    values = {
        "model": {"target": "builtin:tiny", "draft": "builtin:tiny", "device": "cpu"},
        "data": {"path": str(folder / "rows.parquet")},
        "sampling": {"max_new_tokens": 200, "ignore_eos": True},
        "workers": {"count": 1, **workers},
        "output": {"path": str(folder / "out")},
    }
    return parse_job(values, [], source="test")


def worker_peaks() -> dict[int, int]:
    """Returns the peak resident set of every Ray worker on this machine, in bytes by process id."""
    peaks = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if "ExportingWorker" in (process / "cmdline").read_text():
                status = (process / "status").read_text().splitlines()
                peaks[int(process.name)] = next(int(x.split()[1]) << 10 for x in status if x.startswith("VmHWM"))
        except (OSError, StopIteration):
            continue  # ended meanwhile
    return peaks


@pytest.mark.slow
@pytest.mark.parametrize("slots", [4, 128])
def test_process_takes_what_the_dry_run_says(tmp_path: Path, slots: int) -> None:
    job = job_of(tmp_path, slots=slots)
    planned = plan_run(job)
    peaks: dict[int, int] = {}

    def watch(progress: Progress) -> None:
        peaks.update(worker_peaks())

    result = execute(job, viewer=Viewer(progress=watch))
    pid = result.summary["workers"]["worker-0"]["pid"]
    assert planned.kv_bytes == planned.kv_budget
    assert peaks[pid] == pytest.approx(planned.process_bytes, rel=0.1)


@pytest.mark.slow
def test_threads_of_a_worker_sleep_soon_beside_a_busy_process(tmp_path: Path) -> None:
    settings: dict[int, list[str]] = {}

    def watch(progress: Progress) -> None:
        for pid in worker_peaks():
            settings[pid] = (Path("/proc") / str(pid) / "environ").read_text().split("\0")

    result = execute(job_of(tmp_path, rows=8, slots=4), viewer=Viewer(progress=watch))
    assert "GOMP_SPINCOUNT=4000" in settings[result.summary["workers"]["worker-0"]["pid"]]
