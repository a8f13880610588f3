"""Dry run: rows, shards, workers and memory of a run, without starting anything."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import pyarrow as pa

from specpipe.core import DeviceName, DtypeName, KVDtypeChoice, SamplingParams, Shard, resolve_dtype
from specpipe.errors import ModelError
from specpipe.job import JobSpec, WorkerRange
from specpipe.models.generation import generation_defaults
from specpipe.models.quantization.planned_weights import PlannedWeights
from specpipe.models.source import Role
from specpipe.models.tokenizer import eos_token_ids
from specpipe.pipeline.cluster.placement import Placement, place
from specpipe.pipeline.gpus import visible_gpus
from specpipe.pipeline.job_check import (
    MemoryNeed,
    check_memory,
    check_models,
    faster_dtype,
    faster_length,
    fit_copies,
    kv_budget,
    memory_need,
)
from specpipe.pipeline.prepare import PreparedJob, prepare
from specpipe.pipeline.replay.answer_coverage import describe_coverage
from specpipe.pipeline.replay.answer_sources import find_answer_files
from specpipe.pipeline.run.prompt_tokens import PromptTokens, WorkerPages, count_prompt_tokens
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.ledger import read_ledger
from specpipe.pipeline.store.manifest import read_manifest
from specpipe.pipeline.store.resume_check import check_resumable
from specpipe.pipeline.worker.build import make_builder, make_encoder


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """The result of a dry run."""

    files: int
    rows: int
    """Output rows: all samples of every input row."""
    samples: int
    """Samples of each input row."""
    prompts: PromptTokens | None
    """Tokens of all prompts; None where the dataset cannot be read."""
    shards: int
    done_shards: int
    """Shards that earlier starts have published."""
    workers: int
    device: DeviceName
    cpus_per_worker: float
    slots: int
    dtype: DtypeName
    policy: str
    k: int
    target: str
    draft: str | None
    sampling: SamplingParams
    """Sampling parameters of rows without values of their own."""
    recommended: Mapping[str, float | int]
    """Sampling parameters that the target's generation_config.json sets to another value; empty where there are none
    or where they are not supported."""
    eos_token_ids: tuple[int, ...]
    """End-of-sequence tokens of the target's configuration; empty where only the tokenizer has one."""
    max_model_len: int
    weights: Mapping[Role, PlannedWeights]
    """Number format and bytes of each model on a worker's device."""
    kv_dtype: KVDtypeChoice
    """Number format of KV pages."""
    kv_bytes: int
    """Bytes of a worker's KV pages with every slot at max_model_len."""
    kv_budget: int
    """Bytes of KV pages that a worker allocates; on a GPU less where memory is short."""
    process_bytes: int
    """Bytes of a CPU worker's process, KV pages in use included; 0 on a GPU."""
    loading_bytes: int
    """The most while it loads, which may be more; 0 on a GPU."""
    faster: str
    """Advice on a faster number format and its cost, or on shorter rows; "" for none."""
    output: str
    replay: str = ""
    """One line: rows that have an earlier answer (`speculation.replay`); "" for a job that follows none."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all models on a worker's device."""
        return sum(weights.bytes for weights in self.weights.values())

    @property
    def copy_bytes(self) -> int:
        """Bytes of dense copies of 4-bit weights on a worker's device, about."""
        return sum(weights.copies for weights in self.weights.values())


def plan_run(job: JobSpec) -> RunPlan:
    """Plans a run from its inputs, models and output folder. Raises what a run would raise before it starts Ray."""
    folder = RunFolder.at(job.output.path)
    folder.claim()
    prepared = prepare(job)
    check_models(job, [prepared.target, *([prepared.draft] if prepared.draft else [])])
    gpus = 0 if job.model.device == "cpu" else visible_gpus()
    elastic = "RAY_ADDRESS" in os.environ
    placement = _placement(job, gpus, elastic=elastic)
    if not elastic:
        check_memory(prepared, workers=placement.workers, device=placement.device)
    manifest = read_manifest(folder)
    if manifest is not None:
        check_resumable(manifest, prepared.identity, folder)
        shards = manifest.shards
        done = len(read_ledger(folder, shards, manifest.run_id))
    else:
        shards = prepared.shards(prepared.shared_blocks(), workers=placement.workers, device=placement.device)
        done = 0
    dtype = resolve_dtype(job.model.dtype, placement.device)
    largest = memory_need(prepared, dtype, placement.device)
    need = fit_copies(largest)
    pages = kv_budget(need, placement.device, placement.workers)
    on_cpu = placement.device == "cpu"
    return RunPlan(
        files=len(prepared.files),
        rows=sum(shard.rows for shard in shards),
        samples=job.sampling.n,
        prompts=_prompt_tokens(prepared, shards, need, placement),
        shards=len(shards),
        done_shards=done,
        workers=placement.workers,
        device=placement.device,
        cpus_per_worker=placement.cpus,
        slots=job.workers.slots,
        dtype=dtype,
        policy=job.speculation.policy,
        k=job.speculation.max_k,
        target=job.model.target,
        draft=job.draft_model,
        sampling=prepared.job.sampling_params(),
        recommended=_recommended(prepared),
        eos_token_ids=eos_token_ids(prepared.target),
        output=folder.path,
        replay=_replay(prepared, need.max_model_len),
        weights=need.weights,
        max_model_len=need.max_model_len,
        kv_dtype=job.engine_config(need.max_model_len).kv_dtype,
        kv_bytes=need.kv_bytes,
        kv_budget=pages,
        process_bytes=need.process_bytes(pages) if on_cpu else 0,
        loading_bytes=need.loading_bytes if on_cpu else 0,
        faster=faster_dtype(need, dtype, placement.device) or faster_length(largest, need),
    )


def _replay(prepared: PreparedJob, max_model_len: int) -> str:
    """Returns how many rows have an earlier answer; "" for a job that follows none. Raises DataError."""
    job = prepared.job
    if not job.speculation.replay or not job.speculation.replay_k:
        return ""
    files = find_answer_files(prepared)
    builder = make_builder(job, make_encoder(job, prepared.target), max_model_len=max_model_len, vocab_size=1 << 30)
    return describe_coverage(prepared, files, builder)


def _prompt_tokens(
    prepared: PreparedJob, shards: Sequence[Shard], need: MemoryNeed, placement: Placement
) -> PromptTokens | None:
    """Returns the prompt tokens of all shards; None where the dataset cannot be read, which shards report."""
    from specpipe.models.loader import load_config

    job, length = prepared.job, need.max_model_len
    encoder = make_encoder(job, prepared.target)
    vocab_size = load_config(prepared.target, trust_remote_code=job.model.trust_remote_code).vocab_size
    builder = make_builder(job, encoder, max_model_len=length, vocab_size=vocab_size)
    engine = job.engine_config(length).on(placement.device)
    budget = kv_budget(need, placement.device, placement.workers)
    pages = WorkerPages(
        page_size=engine.page_size,
        count=engine.slots * engine.pages_per_row * budget // max(1, need.kv_bytes),
        shared=engine.prefix_sharing,
    )
    try:
        return count_prompt_tokens(prepared.files, shards, builder, pages, workers=placement.workers)
    except (pa.ArrowException, OSError):
        return None


def _placement(job: JobSpec, gpus: int, *, elastic: bool) -> Placement:
    """Returns the placement on this machine, or on a cluster of unknown size, which has room for workers.count.min."""
    cpus, count = len(os.sched_getaffinity(0)), job.workers.count
    if elastic and isinstance(count, WorkerRange):
        each = 1.0 if job.workers.cpus_per_worker == "auto" else job.workers.cpus_per_worker
        cpus = max(cpus, ceil(count.min * each))
        gpus = max(gpus, count.min) if gpus or job.model.device == "cuda" else 0
    return place(job, cpus=cpus, gpus=gpus, elastic=elastic)


def _recommended(prepared: PreparedJob) -> dict[str, float | int]:
    """Returns the values of the target's generation_config.json that differ from the job's."""
    try:
        values = generation_defaults(prepared.target)
    except ModelError:
        return {}
    sampling = prepared.job.sampling_params()
    if not values["temperature"]:  # transformers writes such a file for every model; it recommends nothing
        return {}
    return {name: value for name, value in values.items() if value != getattr(sampling, name)}
