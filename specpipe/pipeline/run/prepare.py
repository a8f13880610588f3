"""What a job comes to on this machine, before anything is started: its inputs, its models, its identity."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpipe.core import Shard
from specpipe.data import InputFile, kept_schema, list_files, plan_shards, require_prompt_column
from specpipe.errors import DataError, ModelError
from specpipe.job import JobSpec
from specpipe.models.generation import generation_defaults
from specpipe.models.source import ModelSource
from specpipe.pipeline.store.folder import require_lasting
from specpipe.pipeline.worker.build import find_model

SHARD_TOKENS = {"cpu": 32_768, "cuda": 1_000_000}  # one to five minutes of a worker's time


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A job whose files and models exist."""

    job: JobSpec
    files: tuple[InputFile, ...]
    kept: Any
    """pyarrow.Schema of the columns to keep; None for none."""
    target: ModelSource
    draft: ModelSource | None
    """None when no round would use one."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """All that makes the outputs, by dotted name, ready for JSON."""
        return {
            **self.job.identity(),
            "model.target_revision": self.target.revision,
            "model.chat_template_sha256": _template_hash(self.job.model.chat_template),
            "inputs": [file.pin() for file in self.files],
        }

    @property
    def tuning(self) -> Mapping[str, Any]:
        """What may change on resume. The draft is in it: verification keeps the distribution whatever drafts."""
        return {**self.job.tuning(), "model.draft_revision": self.draft.revision if self.draft else None}

    def shards(self, *, workers: int, device: str) -> tuple[Shard, ...]:
        """The dataset in shards. Raises DataError when it has no row."""
        job = self.job
        shards = plan_shards(
            self.files,
            shard_tokens=job.workers.shard_tokens or SHARD_TOKENS[device],
            max_new_tokens=job.sampling.max_new_tokens,
            max_prompt_tokens=job.model.max_model_len,
            workers=workers,
            limit=job.data.limit,
            samples=job.sampling.n,
        )
        if not shards:
            raise DataError(f"data.path {job.data.path} has no rows; expected at least one")
        return shards


def prepare(job: JobSpec) -> Prepared:
    """Find inputs and models. Raises JobError, DataError or ModelError; writes nothing but a model download."""
    require_lasting(job.data.path, "data.path")
    files = tuple(list_files(job.data.path, job.data.format, job.data.prompt))
    require_prompt_column(files, job.data.prompt)
    kept = kept_schema(files, job.output.keep_columns) if job.output.keep_columns else None
    _template_hash(job.model.chat_template)
    target = find_model(job, job.model.target, "target")
    draft = find_model(job, job.draft_model, "draft") if job.draft_model is not None else None
    if job.sampling.defaults == "model":
        job = job.with_sampling(generation_defaults(target))
    return Prepared(job=job, files=files, kept=kept, target=target, draft=draft)


def _template_hash(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise ModelError(f"model.chat_template: {path} cannot be read: {error}") from error
