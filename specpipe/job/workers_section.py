"""The section `workers` of a job file. The text under each field is its reference (docs/jobs.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from specpipe.core import MAX_ATTEMPTS, STALL_S, EngineConfig
from specpipe.job.field_types import Count, Described, Number, default_of
from specpipe.job.job_section import JobSection


class WorkerRange(JobSection):
    """How many workers a run takes: it begins with room for `min`, and others join as there is room, up to `max`."""

    min: Count = 1
    max: Count

    @model_validator(mode="after")
    def _is_a_range(self) -> WorkerRange:
        if self.min > self.max:
            raise ValueError(f".min is {self.min}; expected at most max ({self.max})")
        return self


class WorkersSection(JobSection):
    """Ray actors, each of which holds the pair on one device."""

    count: Annotated[
        Count | Literal["auto"] | WorkerRange,
        Described("a whole number (1 or more), auto or a range such as {min: 2, max: 8}"),
    ] = "auto"
    """`auto`: one for each GPU of the cluster, or one on a machine without GPUs. `{min: 2, max: 8}`: the run starts
    where there is room for min, and takes up to max; in a cluster workers join and leave while it goes on."""
    slots: Count = default_of(EngineConfig, "slots")
    """Rows that a worker generates at once."""
    gpus_per_worker: Count = 1
    """One GPU holds a pair; nothing else is served."""
    cpus_per_worker: Annotated[Number, Field(gt=0)] | Literal["auto"] = "auto"
    """CPUs that Ray sets aside for a worker."""
    shard_tokens: Count | None = None
    """Size of a shard in estimated tokens (prompt + output). Left out, it goes by the device: some minutes of work.
    A run that is resumed keeps the shards it began with."""
    max_attempts: Count = MAX_ATTEMPTS
    """Times that a shard is tried before the run goes on without it."""
    stall_seconds: Annotated[Number, Field(gt=0)] = STALL_S
    """A worker whose engine step, or whose answer, takes longer is taken for hung: its stacks are logged and it is
    replaced. Loading and warm-up are not counted."""
    prefill_budget: Count = default_of(EngineConfig, "prefill_budget")
    """Most prompt tokens that a worker reads in one step."""

    @model_validator(mode="after")
    def _one_gpu_holds_a_pair(self) -> WorkersSection:
        if self.gpus_per_worker != 1:
            raise ValueError(
                f".gpus_per_worker is {self.gpus_per_worker}; expected 1: a pair lives on one GPU. "
                "Use more GPUs with more workers (workers.count)"
            )
        return self
