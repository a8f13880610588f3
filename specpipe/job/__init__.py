"""Job files: what to generate, from which rows, how, and where it goes."""

from specpipe.job.load import load_job, parse_job
from specpipe.job.sections import (
    DataSection,
    ModelSection,
    OutputSection,
    SamplingSection,
    SpeculationSection,
    WorkerRange,
    WorkersSection,
)
from specpipe.job.spec import JobSpec, default_identity

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
