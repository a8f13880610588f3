"""What every worker of a start is told, and what it builds of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specpipe.core import STALL_S, DeviceName, Profile
from specpipe.data import RequestBuilder
from specpipe.data.reading.input_files import InputFile
from specpipe.job import JobSpec
from specpipe.models.source import ModelSource
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.worker.engine_protocol import EngineProtocol


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerParts:
    """What a worker runs on."""

    engine: EngineProtocol
    builder: RequestBuilder
    facts: Mapping[str, Any]
    """device, dtype, model_load_s."""
    profile: Profile = field(default_factory=Profile)
    """What rounds took before the first row; empty where no policy asks, or it could not be measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerConfig:
    """What every worker of a start is told, once."""

    job: JobSpec
    folder: RunFolder
    run_id: str
    epoch: int
    probe: str
    files: Mapping[str, InputFile]
    """By path, as shards name them."""
    kept_schema: Any
    """pyarrow.Schema of the columns to keep; None for none."""
    target: ModelSource
    draft: ModelSource | None
    device: DeviceName
    threads: int
    """CPU threads of torch."""
    timeline_interval_s: int = 1
    stall_s: float = STALL_S
    """An engine step that takes longer has hung: the status then says where."""
    build_parts: Callable[[WorkerConfig], WorkerParts] | None = None
    """Builds the worker's parts; None for the real ones."""
