"""Dry run: rows, shards, workers and memory of a run, without starting anything."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpipe.core import DTYPE_BYTES, DeviceName, DtypeName, EngineConfig, KVDtypeChoice, SamplingParams, resolve_dtype
from specpipe.data import shared_share
from specpipe.errors import ModelError
from specpipe.job import JobSpec
from specpipe.models.generation import generation_defaults
from specpipe.models.quantization.planned_weights import PlannedWeights, plan_weights
from specpipe.models.source import Role
from specpipe.models.tokenizer import eos_token_ids
from specpipe.pipeline.cluster.gpus import visible_gpus
from specpipe.pipeline.cluster.placement import place
from specpipe.pipeline.prepare import PreparedJob, prepare
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.ledger import read_ledger
from specpipe.pipeline.store.manifest import read_manifest
from specpipe.pipeline.store.resume_check import check_resumable


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """The result of a dry run."""

    files: int
    rows: int
    """Output rows: all samples of every input row."""
    samples: int
    """Samples of each input row."""
    shared_prompts: float
    """Estimated share of all prompts that repeats the beginning of the row before, 0 to 1. Workers compute it once."""
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
    """Bytes of a worker's KV pages with every slot at max_model_len; a worker allocates less where memory is short."""
    output: str

    @property
    def weight_bytes(self) -> int:
        """Bytes of all models on a worker's device."""
        return sum(weights.bytes for weights in self.weights.values())


def plan_run(job: JobSpec) -> RunPlan:
    """Plans a run from its inputs, models and output folder. Raises what a run would raise before it starts Ray."""
    folder = RunFolder.at(job.output.path)
    folder.claim()
    prepared = prepare(job)
    gpus = 0 if job.model.device == "cpu" else visible_gpus()
    elastic = "RAY_ADDRESS" in os.environ
    placement = place(job, cpus=len(os.sched_getaffinity(0)), gpus=gpus, elastic=elastic)
    manifest = read_manifest(folder)
    shared = prepared.shared_blocks()
    if manifest is not None:
        check_resumable(manifest, prepared.identity, folder)
        shards = manifest.shards
        done = len(read_ledger(folder, shards, manifest.run_id))
    else:
        shards = prepared.shards(shared, workers=placement.workers, device=placement.device)
        done = 0
    dtype = resolve_dtype(job.model.dtype, placement.device)
    return RunPlan(
        files=len(prepared.files),
        rows=sum(shard.rows for shard in shards),
        samples=job.sampling.n,
        shared_prompts=shared_share(shared, prepared.files),
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
        weights=_weights(prepared, dtype, placement.device),
        **_memory(prepared, dtype),
    )


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


def _weights(prepared: PreparedJob, dtype: DtypeName, device: DeviceName) -> dict[Role, PlannedWeights]:
    model = prepared.job.model
    found: dict[Role, PlannedWeights] = {
        "target": plan_weights(prepared.target, dtype=dtype, device=device, quantize=model.quantize)
    }
    if prepared.draft is not None:
        found["draft"] = plan_weights(prepared.draft, dtype=dtype, device=device, quantize=model.quantize_draft)
    return found


def _memory(prepared: PreparedJob, dtype: DtypeName) -> dict[str, Any]:
    """Returns max_model_len, kv_dtype and kv_bytes of RunPlan."""
    job = prepared.job
    sources = [prepared.target, *([prepared.draft] if prepared.draft else [])]
    configs = [json.loads((Path(source.path) / "config.json").read_text(encoding="utf-8")) for source in sources]
    lengths = [_first(config, "max_position_embeddings", "n_positions") for config in configs]
    max_model_len = job.model.max_model_len or min((length for length in lengths if length), default=2048)
    engine: EngineConfig = job.engine_config(max_model_len)
    tokens = engine.slots * engine.pages_per_row * engine.page_size
    value_bytes = 1 if engine.kv_dtype == "fp8" else DTYPE_BYTES[dtype]
    return {
        "max_model_len": max_model_len,
        "kv_dtype": engine.kv_dtype,
        "kv_bytes": sum(tokens * _kv_values_per_token(config) * value_bytes for config in configs),
    }


def _first(config: Mapping[str, Any], *names: str) -> int:
    """Returns the first of these configuration values that is set; 0 without one."""
    return next((int(config[name]) for name in names if config.get(name)), 0)


def _kv_values_per_token(config: Mapping[str, Any]) -> int:
    """Returns the number of values that one token adds to the K and V of all layers."""
    heads = _first(config, "num_attention_heads", "n_head")
    head_dim = _first(config, "head_dim") or _first(config, "hidden_size", "n_embd") // max(1, heads)
    kv_heads = _first(config, "num_key_value_heads") or heads
    return 2 * _first(config, "num_hidden_layers", "n_layer") * kv_heads * head_dim
