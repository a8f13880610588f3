"""A job's inputs, models and identity, found before anything is started."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specpipe.core import DeviceName, Shard
from specpipe.data import Blocks, InputFile, kept_schema, list_files, plan_shards, require_prompt_column, shared_blocks
from specpipe.errors import DataError, ModelError
from specpipe.job import JobSpec
from specpipe.models.generation import generation_defaults
from specpipe.models.quantization.planned_weights import weights_format
from specpipe.models.source import ModelSource, Role, resolve
from specpipe.models.vocabulary import vocabulary_fingerprint
from specpipe.pipeline.store.folder import require_lasting

SHARD_TOKENS: Mapping[DeviceName, int] = {"cpu": 32_768, "cuda": 1_000_000}
"""Estimated tokens (prompt and output) of a shard by device: one to five minutes of a worker's time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedJob:
    """A job whose input files and models exist."""

    job: JobSpec
    files: tuple[InputFile, ...]
    kept: Any
    """pyarrow.Schema of the input columns to copy into the output; None without such columns."""
    target: ModelSource
    draft: ModelSource | None
    """None when no round uses a draft model."""
    formats: Mapping[Role, str] = field(default_factory=dict)
    """Number formats of quantised models."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that determines the outputs, by dotted name, ready for JSON."""
        return {
            **self.job.identity(),
            "model.target_revision": self.target.revision,
            "model.target_format": self.formats.get("target"),
            "model.chat_template_sha256": _template_hash(self.job.model.chat_template),
            "inputs": [file.pin() for file in self.files],
        }

    @property
    def tuning(self) -> Mapping[str, Any]:
        """Settings that may change on resume, by dotted name. They include the draft's revision: verification keeps
        the output distribution whichever model drafts."""
        return {
            **self.job.tuning(),
            "model.draft_revision": self.draft.revision if self.draft else None,
            "model.draft_format": self.formats.get("draft"),
        }

    def vocabulary(self) -> str:
        """Returns the fingerprint of the target's vocabulary, which later runs compare with theirs; "" if unknown."""
        return vocabulary_fingerprint(self.target)

    def shared_blocks(self) -> Blocks | None:
        """Reads the prompts and returns what each shares with the row before; None where nothing is to be shared."""
        job = self.job
        return shared_blocks(self.files, job.data.prompt, job.data.limit) if job.workers.prefix_sharing else None

    def shards(self, shared: Blocks | None, *, workers: int, device: DeviceName) -> tuple[Shard, ...]:
        """Divides the dataset into shards. shared: from `shared_blocks`. Raises DataError when it has no row."""
        job = self.job
        shards = plan_shards(
            self.files,
            shard_tokens=job.workers.shard_tokens or SHARD_TOKENS[device],
            max_new_tokens=job.sampling.max_new_tokens,
            max_prompt_tokens=job.model.max_model_len,
            workers=workers,
            limit=job.data.limit,
            samples=job.sampling.n,
            shared=shared,
            # Smaller ones would leave slots empty. Who gives a size gets it.
            least_rows=1 if job.workers.shard_tokens else job.workers.slots // job.sampling.n,
        )
        if not shards:
            raise DataError(f"data.path {job.data.path} has no rows; expected at least one")
        return shards


def prepare(job: JobSpec) -> PreparedJob:
    """Finds the inputs and models of a job. Writes nothing, except for a model download.

    Raises JobError, DataError or ModelError, the latter also for weights in a format that specpipe does not read.
    """
    require_lasting(job.data.path, "data.path")
    files = tuple(list_files(job.data.path, job.data.format, job.data.prompt))
    require_prompt_column(files, job.data.prompt)
    kept = kept_schema(files, job.output.keep_columns) if job.output.keep_columns else None
    _template_hash(job.model.chat_template)  # raises for a file that cannot be read
    target = find_model(job, job.model.target, "target")
    draft = find_model(job, job.draft_model, "draft") if job.draft_model is not None else None
    if job.sampling.defaults == "model":
        job = job.with_sampling(generation_defaults(target))
    formats: dict[Role, str] = {"target": weights_format(target, job.model.quantize)}
    if draft is not None:
        formats["draft"] = weights_format(draft, job.model.quantize_draft)
    return PreparedJob(
        job=job,
        files=files,
        kept=kept,
        target=target,
        draft=draft,
        formats={role: found for role, found in formats.items() if found},
    )


def find_model(job: JobSpec, name: str, role: Role) -> ModelSource:
    """Resolves a model's name with the job's settings for remote code and pickles. Raises ModelError."""
    model = job.model
    return resolve(name, role, trust_remote_code=model.trust_remote_code, allow_pickle=model.allow_pickle)


def _template_hash(path: str | None) -> str | None:
    """Returns the first 16 hexadecimal digits of a chat template's sha256. Raises ModelError."""
    if path is None:
        return None
    try:
        return hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise ModelError(f"model.chat_template: {path} cannot be read: {error}") from error
