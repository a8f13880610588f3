"""Checks of a job's models and memory before any weight is read: of doctor, dry runs and, for memory, runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpipe.core import DTYPE_BYTES, DeviceName, DtypeName, resolve_dtype
from specpipe.core.host_memory import cpu_kv_budget, free_memory
from specpipe.errors import MachineError
from specpipe.job import JobSpec
from specpipe.models.quantization.planned_weights import PlannedWeights, plan_weights
from specpipe.models.source import ModelSource, Role
from specpipe.pipeline.prepare import PreparedJob

PROCESS_BYTES = 500 << 20
"""Memory of a worker's process beside weights and KV pages: Python, torch and Ray, measured."""
_HOST_BYTES_PER_TOKEN = 16
"""Tokens of a slot, their counts, and their copies on the host."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryNeed:
    """Memory of one worker, in bytes."""

    max_model_len: int
    weights: Mapping[Role, PlannedWeights]
    """Number format and bytes of each model on the worker's device."""
    kv_bytes: int
    """KV pages with every slot at max_model_len."""
    slot_bytes: int
    """All slots without KV pages: their tokens, and the logits of a verification."""

    @property
    def weight_bytes(self) -> int:
        """All models on the worker's device."""
        return sum(weights.bytes for weights in self.weights.values())


def check_models(job: JobSpec, sources: Sequence[ModelSource]) -> None:
    """Raises ModelError unless the engine supports the models and their vocabularies match. Imports transformers."""
    from specpipe.models.loader import load_config
    from specpipe.models.support import check_pair, check_support
    from specpipe.models.tokenizer import load_tokenizer

    trust = job.model.trust_remote_code
    for source in sources:
        config = load_config(source, trust_remote_code=trust)
        check_support(config, name=source.name, max_model_len=job.model.max_model_len)
    tokenizers = [load_tokenizer(source, trust_remote_code=trust) for source in sources]
    if len(sources) == 2:
        check_pair(*tokenizers, target_name=sources[0].name, draft_name=sources[1].name)


def memory_need(prepared: PreparedJob, dtype: DtypeName, device: DeviceName) -> MemoryNeed:
    """Returns the memory of a worker, estimated from the models' files."""
    job = prepared.job
    sources = [prepared.target, *([prepared.draft] if prepared.draft else [])]
    configs = [json.loads((Path(source.path) / "config.json").read_text(encoding="utf-8")) for source in sources]
    lengths = [_first(config, "max_position_embeddings", "n_positions") for config in configs]
    max_model_len = job.model.max_model_len or min((length for length in lengths if length), default=2048)
    engine = job.engine_config(max_model_len)
    tokens = engine.slots * engine.pages_per_row * engine.page_size
    value_bytes = 1 if engine.kv_dtype == "fp8" else DTYPE_BYTES[dtype]
    logits = (engine.max_k + 1) * _first(configs[0], "vocab_size") * DTYPE_BYTES[dtype]
    return MemoryNeed(
        max_model_len=max_model_len,
        weights=_weights(prepared, dtype, device),
        kv_bytes=sum(tokens * _kv_values_per_token(config) * value_bytes for config in configs),
        slot_bytes=engine.slots * (_HOST_BYTES_PER_TOKEN * max_model_len + logits),
    )


def kv_budget(need: MemoryNeed, device: DeviceName, workers: int) -> int:
    """Returns the bytes of KV pages that a worker allocates, at most; on a GPU it finds out when it has loaded."""
    if device != "cpu":
        return need.kv_bytes
    return min(need.kv_bytes, cpu_kv_budget(weights=need.weight_bytes + PROCESS_BYTES, workers=workers))


def check_memory(prepared: PreparedJob, *, workers: int, device: DeviceName) -> None:
    """Raises MachineError where weights and slots of all workers do not fit into this machine's memory.

    Workers with a GPU are counted without weights.
    """
    dtype = resolve_dtype(prepared.job.model.dtype, device)
    need, free = memory_need(prepared, dtype, device), free_memory()
    weights = need.weight_bytes if device == "cpu" else 0
    wanted = workers * (PROCESS_BYTES + weights + need.slot_bytes)
    if wanted > free:
        slots = prepared.job.workers.slots
        raise MachineError(
            f"{workers:,} worker(s) with {slots:,} slots need {_gib(wanted)}, of which {_gib(workers * weights)} are "
            f"weights and {_gib(workers * need.slot_bytes)} slots without their KV; {_gib(free)} are free. Lower "
            f"workers.count, workers.slots or model.max_model_len ({need.max_model_len:,})"
        )


def _gib(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"


def _first(config: Mapping[str, Any], *names: str) -> int:
    """Returns the first of these configuration values that is set; 0 without one."""
    return next((int(config[name]) for name in names if config.get(name)), 0)


def _weights(prepared: PreparedJob, dtype: DtypeName, device: DeviceName) -> dict[Role, PlannedWeights]:
    model = prepared.job.model
    found: dict[Role, PlannedWeights] = {
        "target": plan_weights(prepared.target, dtype=dtype, device=device, quantize=model.quantize)
    }
    if prepared.draft is not None:
        found["draft"] = plan_weights(prepared.draft, dtype=dtype, device=device, quantize=model.quantize_draft)
    return found


def _kv_values_per_token(config: Mapping[str, Any]) -> int:
    """Returns the number of values that one token adds to the K and V of all layers."""
    heads = _first(config, "num_attention_heads", "n_head")
    head_dim = _first(config, "head_dim") or _first(config, "hidden_size", "n_embd") // max(1, heads)
    kv_heads = _first(config, "num_key_value_heads") or heads
    return 2 * _first(config, "num_hidden_layers", "n_layer") * kv_heads * head_dim
