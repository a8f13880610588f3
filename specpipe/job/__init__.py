"""Job files: reading, checking and documenting them.

`JobSpec` (job_spec.py) is a checked job; begin there. Each section of a job file has a module of its own
(`model_section`, `data_section`, …) whose fields hold the defaults and the reference text. `load_job` and `parse_job`
(job_file.py) make a JobSpec from YAML. This package imports the vocabulary and the names of output columns only.
"""

from specpipe.job.data_section import DataSection
from specpipe.job.job_file import load_job, parse_job
from specpipe.job.job_spec import JobSpec, default_identity
from specpipe.job.model_section import ModelSection
from specpipe.job.output_section import OutputSection
from specpipe.job.sampling_section import SamplingSection
from specpipe.job.speculation_section import SpeculationSection
from specpipe.job.workers_section import WorkerRange, WorkersSection

__all__ = [
    "DataSection",
    "JobSpec",
    "ModelSection",
    "OutputSection",
    "SamplingSection",
    "SpeculationSection",
    "WorkerRange",
    "WorkersSection",
    "default_identity",
    "load_job",
    "parse_job",
]
