"""Job files: what to generate, from which rows, how, and where it goes."""

from specpipe.job.load import load_job, parse_job
from specpipe.job.sampling import SamplingSection
from specpipe.job.sections import DataSection, ModelSection, OutputSection, WorkerRange, WorkersSection
from specpipe.job.spec import JobSpec, default_identity
from specpipe.job.speculation import SpeculationSection

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
