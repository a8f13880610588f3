"""Whether this machine can do what a job asks for: one finding for each thing, each with its mend."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from specpipe.doctor import for_job, for_machine
from specpipe.doctor.finding import Finding, guarded
from specpipe.job import JobSpec
from specpipe.pipeline.run.versions import versions

__all__ = ["Finding", "examine"]


def examine(job: JobSpec | None) -> Iterator[Finding]:
    """Findings, as they are made: of the machine, then of the job. Downloads nothing, starts nothing, leaves nothing
    behind; what is wrong is a finding, never an exception."""
    software = ", ".join(f"{name} {version}" for name, version in versions().items() if name != "python")
    yield Finding(name="Python", status="ok", found=f"{platform.python_version()}; {software}")
    yield from guarded("bytecode", for_machine.bytecode)
    yield from guarded("torch", for_machine.torch_build)
    yield from guarded("GPUs", lambda: for_machine.gpus(job))
    yield from guarded("Triton", for_machine.triton)
    yield from guarded("Ray", for_machine.ray)
    yield from guarded("disk", lambda: for_machine.disks(job))
    if job is not None:
        yield from for_job.examine(job)
