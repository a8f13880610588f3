"""A start of the soak's job, `python -m support.soak FOLDER ROWS`: tests/integration/test_soak.py kills it."""

import os
import sys
from pathlib import Path

from support.fake_workers import make_job
from support.faults import FaultyBackend

from specpipe.job import JobSpec
from specpipe.pipeline.run.run import execute


def soak_job(folder: Path, rows: int, *overrides: str) -> JobSpec:
    settings = ("workers.count=3", "workers.slots=8", "workers.max_attempts=50")
    return make_job(folder, *settings, *overrides, rows=rows)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "driver").write_text(str(os.getpid()))
    result = execute(soak_job(folder, int(sys.argv[2])), backend=FaultyBackend(folder, step_s=0.1))
    sys.exit(result.exit_code)
