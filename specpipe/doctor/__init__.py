"""`specpipe doctor`: checks whether this machine can run a job.

`diagnose` yields one `Diagnosis` for each check: those of the machine (machine_checks.py), then those of a job
(job_checks.py). Checks download nothing, start no Ray and leave no files behind. Imported by the command line only.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator

from specpipe.doctor import job_checks, machine_checks
from specpipe.doctor.diagnosis import Diagnosis, guarded
from specpipe.job import JobSpec
from specpipe.pipeline.run.versions import versions

__all__ = ["Diagnosis", "diagnose"]


def diagnose(job: JobSpec | None) -> Iterator[Diagnosis]:
    """Yields a diagnosis as each check ends: of the machine, then of the job. A failed check raises no exception."""
    software = ", ".join(f"{name} {version}" for name, version in versions().items() if name != "python")
    yield Diagnosis(name="Python", status="ok", found=f"{platform.python_version()}; {software}")
    yield from guarded("bytecode", machine_checks.bytecode)
    yield from guarded("torch", machine_checks.torch_build)
    yield from guarded("GPUs", lambda: machine_checks.gpus(job))
    yield from guarded("Triton", machine_checks.triton)
    yield from guarded("Ray", machine_checks.ray)
    yield from guarded("disk", lambda: machine_checks.disks(job))
    if job is not None:
        yield from job_checks.diagnose(job)
