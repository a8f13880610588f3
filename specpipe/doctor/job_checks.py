"""Checks of a job on this machine: output folder, models, dataset, memory."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from specpipe.core import Completion, Request, Shard
from specpipe.data import Row, list_files, read_rows
from specpipe.data.locations import Location, locate
from specpipe.data.publish import publish_bytes
from specpipe.data.requests.prompts import find_prompt
from specpipe.doctor import hardware
from specpipe.doctor.diagnosis import GIB, Diagnosis, guarded
from specpipe.errors import InputError, OutputError, SpecpipeError
from specpipe.job import JobSpec
from specpipe.models.quantization.planned_weights import FP8_CAPABILITY
from specpipe.models.source import ModelSource, Role, hub_access, is_on_hub
from specpipe.pipeline.job_check import check_models
from specpipe.pipeline.prepare import find_model
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.worker.build import make_builder, make_encoder

if TYPE_CHECKING:
    from specpipe.pipeline.run.dry_run import RunPlan

_SHARED_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "ceph", "lustre", "gpfs", "glusterfs", "beegfs", "efs", "9p", "virtiofs"}
)
_ROWS = 20  # rows of the dataset that are built as prompts


def diagnose(job: JobSpec) -> Iterator[Diagnosis]:
    """Yields the diagnoses of a job, cheapest check first. Checks of model files run only where all are on disk."""
    yield from guarded("output folder", lambda: _output(job))
    models: dict[Role, ModelSource] = {}
    missing = False
    for role, name in _names(job):
        for diagnosis, source in _model(job, role, name):
            yield diagnosis
            missing |= source is None
            models |= {} if source is None else {role: source}
    if missing:
        found = "dataset, vocabulary and memory are not checked until the models have been downloaded"
        yield Diagnosis(name="plan", status="note", found=found)
        return
    yield from guarded("models", lambda: _fit(job, models))
    planned = list(guarded("plan", lambda: _plan(job)))
    yield from planned
    if planned[0].status == "ok":
        yield from guarded("dataset", lambda: _dataset(job, models["target"]))


def _output(job: JobSpec) -> Iterator[Diagnosis]:
    """Checks that the output folder is new, empty or a run's, can be written, and is shared by the cluster."""
    folder = RunFolder.at(job.output.path)
    folder.claim()
    location = locate(folder.path)
    path = Path(location.path) if location.is_local else None
    if path is None:
        _require_store_writable(location)
    if path is None or "RAY_ADDRESS" not in os.environ or hardware.mount_type(path) in _SHARED_FILESYSTEMS:
        yield Diagnosis(name="output folder", status="ok", found=f"{folder.path} is writable")
        return
    found = f"{folder.path} is on a local disk ({hardware.mount_type(path)}), and RAY_ADDRESS names a cluster"
    remedy = "choose storage that all machines share (NFS, s3://, gs://), unless the cluster is this machine alone"
    yield Diagnosis(name="output folder", status="note", found=found, remedy=remedy)


def _require_store_writable(location: Location) -> None:
    """Writes and deletes a file in an object store. Raises OutputError."""
    probe = location.child(f".specpipe-doctor-{uuid.uuid4().hex}")
    try:
        publish_bytes(probe.text(), b"")
        probe.filesystem.delete_file(probe.path)
    except OSError as error:
        raise OutputError(f"{location.text()} cannot be written: {error}; check the credentials") from error


def _names(job: JobSpec) -> list[tuple[Role, str]]:
    """Returns role and name of each model that the job loads."""
    draft: list[tuple[Role, str]] = [] if job.draft_model is None else [("draft", job.draft_model)]
    return [("target", job.model.target), *draft]


def _model(job: JobSpec, role: Role, name: str) -> Iterator[tuple[Diagnosis, ModelSource | None]]:
    """Yields the diagnosis of a model and its source; None for a model that is not on this machine."""
    try:
        if is_on_hub(name) and not hub_access(name):
            found = f"{name} is on the Hub and accessible; the first run downloads it"
            yield Diagnosis(name=role, status="ok", found=found), None
            return
        source = find_model(job, name, role)
    except SpecpipeError as error:
        yield Diagnosis(name=role, status="problem", found=str(error)), None
        return
    yield Diagnosis(name=role, status="ok", found=f"{name}, revision {source.revision[:16]}, in {source.path}"), source


def _fit(job: JobSpec, models: dict[Role, ModelSource]) -> Iterator[Diagnosis]:
    """Checks that the engine supports these models and that their vocabularies match. Reads no weights."""
    from specpipe.models.loader import load_config
    from specpipe.models.support import layers_on_gpu

    check_models(job, list(models.values()))
    pair = "both are supported and share a vocabulary" if len(models) == 2 else "supported"
    configs = {role: load_config(s, trust_remote_code=job.model.trust_remote_code) for role, s in models.items()}
    layers = ", ".join(f"{role} through {layers_on_gpu(config)}" for role, config in configs.items())
    yield Diagnosis(name="models", status="ok", found=f"{pair}; layers on a GPU: {layers}")


def _dataset(job: JobSpec, target: ModelSource) -> Iterator[Diagnosis]:
    """Checks that the first rows are valid prompts for this model."""
    from specpipe.models.loader import load_config
    from specpipe.models.support import context_length

    file = next(iter(list_files(job.data.path, job.data.format, job.data.prompt)))
    encoder = make_encoder(job, target)
    config = load_config(target, trust_remote_code=job.model.trust_remote_code)
    length = job.model.max_model_len or context_length(config)
    builder = make_builder(job, encoder, max_model_len=length, vocab_size=config.vocab_size)
    rows = min(file.rows, job.data.limit or _ROWS, _ROWS)
    shard = Shard(index=0, file=file.path, start=0, stop=rows, first_row=0)
    rows_read = list(read_rows(file, 0, rows, builder.columns))
    built = [builder.build(row, shard) for row in rows_read]
    errors = [row.error for row in built if isinstance(row, Completion)]
    if errors:
        found = f"{len(errors)} of the first {rows} rows cannot be run; {errors[0]}"
        yield Diagnosis(name="dataset", status="problem" if len(errors) == rows else "note", found=found)
    else:
        tokens = [len(row.prompt_token_ids) for row in built if isinstance(row, Request)]
        longest = f", of at most {max(tokens):,} tokens" if tokens else ""
        yield Diagnosis(name="dataset", status="ok", found=f"the first {rows} rows are valid prompts{longest}")
    if encoder.has_chat_template and not job.data.system_prompt and any(_is_plain(row, job) for row in rows_read):
        found = "plain text, which is not formatted as a chat, but the target has a chat template"
        remedy = "provide messages in place of plain prompts, or set data.system_prompt to turn prompts into chats"
        yield Diagnosis(name="prompts", status="note", found=found, remedy=remedy)


def _is_plain(row: Row, job: JobSpec) -> bool:
    """Returns whether the row's prompt is text, not messages or token ids."""
    try:
        return row.values is not None and find_prompt(row.values, job.data.prompt, job.sampling.n).text is not None
    except InputError:
        return False


def _fp8_support(plan: RunPlan) -> Iterator[Diagnosis]:
    """Yields a problem for weights or KV pages in fp8 on a GPU that cannot compute with them."""
    eight = [f"weights of the {role}" for role, weights in plan.weights.items() if weights.format.startswith("FP8")]
    eight += ["KV pages (model.kv_dtype)"] if plan.kv_dtype == "fp8" else []
    for gpu in hardware.gpus() if eight and plan.device == "cuda" else ():
        if gpu.capability < FP8_CAPABILITY:
            capability = ".".join(map(str, gpu.capability))
            found = f"{eight[0]} are in fp8, and {gpu.name} has compute capability {capability}"
            remedy = "use 16 bits (no model.quantize, no model.kv_dtype), or a GPU with compute capability 8.9"
            yield Diagnosis(name="fp8", status="problem", found=found, remedy=remedy)


def _plan(job: JobSpec) -> Iterator[Diagnosis]:
    """Checks that the run can be planned and that weights and KV pages fit into memory."""
    from specpipe.pipeline.run.dry_run import plan_run

    plan = plan_run(job)
    found = f"{plan.rows:,} rows in {plan.shards:,} shards for {plan.workers:,} worker(s) on {plan.device}"
    yield Diagnosis(name="plan", status="ok", found=found)
    if plan.replay:
        yield Diagnosis(name="replay", status="ok", found=plan.replay)
    yield from _fp8_support(plan)
    if plan.faster:
        yield Diagnosis(name="dtype" if plan.device == "cpu" else "copies", status="note", found=plan.faster)
    free = hardware.free_memory(plan.device)
    workers = plan.workers if plan.device == "cpu" else 1
    weights, pages = plan.weight_bytes * workers, plan.kv_bytes * workers
    formats = "; ".join(f"{role}: {found.describe()}" for role, found in plan.weights.items())
    needs = (
        f"{weights / GIB:.1f} GiB of weights ({formats}) and up to {pages / GIB:.1f} GiB of KV pages; "
        f"{free / GIB:.1f} GiB free"
    )
    if weights > free:
        remedy = "use smaller models, model.quantize: fp8 (on a GPU), model.dtype: bfloat16, or fewer workers"
        yield Diagnosis(name="memory", status="problem", found=needs, remedy=remedy)
    elif weights + pages > free:
        remedy = "lower model.max_model_len or workers.slots; otherwise fewer rows than workers.slots run at once"
        yield Diagnosis(name="memory", status="note", found=needs, remedy=remedy)
    else:
        yield Diagnosis(name="memory", status="ok", found=needs)
