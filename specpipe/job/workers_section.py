"""The section `workers` of a job file. The text under each field is its reference (docs/jobs.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from specpipe.core import MAX_ATTEMPTS, STALL_S, EngineConfig
from specpipe.job.field_types import Count, Described, Int, Number, Tuning, default_of
from specpipe.job.job_section import JobSection

MAX_WORKERS = 10_000
MAX_SLOTS = 65_536
"""More rows at once than the memory of any GPU holds."""


class WorkerRange(JobSection):
    """Range of workers: the run starts with room for `min`, and more join as there is room, up to `max`."""

    min: Count = 1
    max: Annotated[Count, Field(le=MAX_WORKERS)]

    @model_validator(mode="after")
    def _check_range(self) -> WorkerRange:
        if self.min > self.max:
            raise ValueError(f".min is {self.min}; expected at most max ({self.max})")
        return self


class WorkersSection(JobSection):
    """Ray actors, each with the pair of models on one device."""

    count: Tuning[
        Annotated[
            Annotated[Count, Field(le=MAX_WORKERS)] | Literal["auto"] | WorkerRange,
            Described("an integer (1 to 10,000), auto or a range such as {min: 2, max: 8}"),
        ]
    ] = "auto"
    """`auto`: one for each GPU of the cluster, or one without GPUs. `{min: 2, max: 8}`: the run starts once min fit;
    in a cluster workers join and leave later, up to max."""
    slots: Tuning[Annotated[Int, Field(ge=1, le=MAX_SLOTS)]] = default_of(EngineConfig, "slots")
    """Rows that a worker generates at once."""
    gpus_per_worker: Tuning[Count] = 1
    """Only 1 is supported: a pair runs on one GPU."""
    cpus_per_worker: Tuning[Annotated[Number, Field(gt=0)] | Literal["auto"]] = "auto"
    """CPUs that Ray reserves for a worker."""
    shard_tokens: Tuning[Count | None] = None
    """Size of a shard in estimated tokens (prompt + output); by default some minutes of work on the device. A resumed
    run keeps its shards."""
    max_attempts: Tuning[Count] = MAX_ATTEMPTS
    """Attempts at a shard before the run goes on without it."""
    stall_seconds: Tuning[Annotated[Number, Field(gt=0)]] = STALL_S
    """Time limit of an engine step or a worker's reply. A worker beyond it is replaced, and its stack traces are
    logged. Loading and warm-up are exempt."""
    prefill_budget: Tuning[Count] = default_of(EngineConfig, "prefill_budget")
    """Maximum prompt tokens of one engine step."""
    prefix_sharing: Tuning[bool] = default_of(EngineConfig, "prefix_sharing")
    """Rows whose prompts begin with the same tokens share their KV. `false`: each row computes all of its prompt."""

    @model_validator(mode="after")
    def _check_gpus(self) -> WorkersSection:
        if self.gpus_per_worker != 1:
            raise ValueError(
                f".gpus_per_worker is {self.gpus_per_worker}; expected 1, because a pair runs on one GPU. "
                "To use more GPUs, run more workers (workers.count)"
            )
        return self
