"""Job files: what to generate, from which rows, how, and where it goes."""

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
