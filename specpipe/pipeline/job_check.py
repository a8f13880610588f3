"""Checks of a job's models and memory before any weight is read: of doctor, dry runs and, for memory, runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specpipe.core import (
    ALLOCATOR_SLACK,
    DTYPE_BYTES,
    GPU_MEMORY_SHARE,
    DeviceName,
    DtypeName,
    resolve_dtype,
)
from specpipe.core.dtypes import has_bf16_products
from specpipe.core.host_memory import cpu_kv_budget, free_memory
from specpipe.errors import MachineError
from specpipe.job import JobSpec
from specpipe.models.quantization.planned_weights import PlannedWeights, plan_weights
from specpipe.models.source import ModelSource, Role
from specpipe.pipeline.gpus import gpu_memory
from specpipe.pipeline.prepare import PreparedJob

PROCESS_BYTES = 640 << 20
"""Memory of a worker's process beside weights, slots and KV pages: Python, torch and Ray; 605 to 665 MiB measured."""
_CONTEXT_BYTES = 4 << 30
"""Memory of a GPU that driver, context, kernels and unused parts of torch's blocks take, about: 1.9 GiB beside 8B in 4
bits, 4.9 beside 70B (H200)."""
_BF16_BYTES = 1 << 30
"""Weights in fp32 from which bfloat16 is known to be faster: 2.5 times plain, 2.4 with drafts (7.6 GiB, 2 cores)."""
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
    prefill_bytes: int = 0
    """Activations of the target in its largest prefill, and the dense copy of one weight, about."""

    @property
    def weight_bytes(self) -> int:
        """All models on the worker's device."""
        return sum(weights.bytes for weights in self.weights.values())

    @property
    def copy_bytes(self) -> int:
        """Dense copies of weights in 4 bits: of all, until `fit_copies` limits them to the memory of a GPU."""
        return sum(weights.copies for weights in self.weights.values())

    @property
    def loading_bytes(self) -> int:
        """Most of a CPU worker's process while it loads the models, one after the other."""
        loaded, most = PROCESS_BYTES, 0
        for weights in self.weights.values():
            loaded += weights.bytes
            most = max(most, loaded + weights.mapped)
        return most

    def process_bytes(self, kv_bytes: int) -> int:
        """A CPU worker's process while it runs, with so many bytes of KV pages."""
        return PROCESS_BYTES + self.weight_bytes + self.slot_bytes + kv_bytes

    def least_bytes(self, device: DeviceName) -> int:
        """Memory of the device without which a worker cannot start, whatever its KV pages."""
        return self.weight_bytes + self.slot_bytes + (PROCESS_BYTES if device == "cpu" else 0)


def check_models(job: JobSpec, sources: Sequence[ModelSource]) -> None:
    """Raises ModelError unless the engine supports the models, their weights fit their configurations, and their
    vocabularies match. Imports torch and transformers, and reads no weights."""
    from specpipe.engine.loading.load_weights import check_tensors
    from specpipe.models.loader import load_config
    from specpipe.models.support import check_pair, check_support
    from specpipe.models.tokenizer import load_tokenizer

    trust = job.model.trust_remote_code
    for source in sources:
        config = load_config(source, trust_remote_code=trust)
        check_support(config, name=source.name, max_model_len=job.model.max_model_len)
        check_tensors(source, trust_remote_code=trust)
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
        prefill_bytes=prefill_bytes(configs[0], engine.prefill_budget, DTYPE_BYTES[dtype]),
    )


def fit_copies(need: MemoryNeed) -> MemoryNeed:
    """Returns the need with the dense copies that `sized_engine` makes on the driver's GPU, all where it has none."""
    left = need.copy_bytes
    if left and (budget := _gpu_budget(need)) is not None:
        left = max(0, budget - need.kv_bytes)
    fitting: dict[Role, PlannedWeights] = {}
    for role in reversed(list(need.weights)):
        fitting[role] = need.weights[role]._replace(copies=min(need.weights[role].copies, left))
        left -= fitting[role].copies
    return replace(need, weights={role: fitting[role] for role in need.weights})


def _gpu_budget(need: MemoryNeed) -> int | None:
    """Returns the bytes for KV pages and dense copies on the driver's smallest GPU, about; None where it has none."""
    if not (memory := gpu_memory()):
        return None
    free = memory - _CONTEXT_BYTES - need.weight_bytes - ALLOCATOR_SLACK * (need.slot_bytes + need.prefill_bytes)
    return max(0, int(GPU_MEMORY_SHARE * free))


def kv_budget(need: MemoryNeed, device: DeviceName, workers: int) -> int:
    """Returns the bytes of KV pages that a worker allocates, at most; on a GPU it finds out when it has loaded."""
    if device != "cpu":
        budget = _gpu_budget(need)
        return need.kv_bytes if budget is None else min(need.kv_bytes, budget)
    return min(need.kv_bytes, cpu_kv_budget(weights=need.weight_bytes + PROCESS_BYTES, workers=workers))


def check_device_memory(prepared: PreparedJob, device: DeviceName, memory: int) -> None:
    """Raises MachineError where weights and slots of a worker exceed the memory of its device, in bytes."""
    need = memory_need(prepared, resolve_dtype(prepared.job.model.dtype, device), device)
    if need.least_bytes(device) > memory:
        raise MachineError(
            f"a worker with {prepared.job.workers.slots:,} slots needs {_gib(need.least_bytes(device))}, of which "
            f"{_gib(need.weight_bytes)} are weights and {_gib(need.slot_bytes)} slots without their KV; its "
            f"{'GPU' if device == 'cuda' else 'machine'} has {_gib(memory)}. Lower workers.slots, or choose smaller "
            "models or model.quantize: fp8"
        )


def check_memory(prepared: PreparedJob, *, workers: int, device: DeviceName) -> None:
    """Raises MachineError where weights and slots of all workers do not fit into this machine's memory.

    Workers with a GPU are counted without weights, and each also against the smallest GPU.
    """
    if device == "cuda" and (memory := gpu_memory()):
        check_device_memory(prepared, device, memory)
    dtype = resolve_dtype(prepared.job.model.dtype, device)
    need, free = memory_need(prepared, dtype, device), free_memory()
    weights = need.weight_bytes if device == "cpu" else 0
    wanted = workers * (PROCESS_BYTES + weights + need.slot_bytes)
    if wanted > free:
        slots = prepared.job.workers.slots
        raise MachineError(
            f"{workers:,} worker(s) with {slots:,} slots need {_gib(wanted)}, of which {_gib(workers * weights)} are "
            f"weights and {_gib(workers * need.slot_bytes)} slots without their KV, the rest processes; "
            f"{_gib(free)} are free. Lower workers.count, workers.slots or model.max_model_len ({need.max_model_len:,})"
        )


def faster_dtype(need: MemoryNeed, dtype: DtypeName, device: DeviceName) -> str:
    """Returns the advice to compute in bfloat16 and its cost, for large models on a CPU that is fast at it; else ""."""
    if device != "cpu" or dtype != "float32" or need.weight_bytes < _BF16_BYTES or not has_bf16_products():
        return ""
    return (
        "model.dtype: bfloat16 is about 2.4 times as fast on this CPU, and halves the weights. It costs exactness: "
        "rounding depends on the batch, so greedy texts may differ from those of float32, and between K, at near-ties"
    )


def faster_length(need: MemoryNeed, fitting: MemoryNeed) -> str:
    """Returns the advice to shorten rows where KV pages leave no memory for dense copies; else "".

    need: with all copies. fitting: with those that fit.
    """
    if not need.copy_bytes or fitting.copy_bytes:
        return ""
    return (
        f"a lower model.max_model_len ({need.max_model_len:,}) leaves GPU memory for dense copies of 4-bit weights "
        f"({_gib(need.copy_bytes)}): rounds and prefills of more than 128 tokens are up to 1.2 times as fast with them"
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


def prefill_bytes(config: Mapping[str, Any], tokens: int, value_bytes: int) -> int:
    """Returns the bytes that a layer needs at once for so many tokens, and for a dense copy of its largest weight."""
    inner, hidden = _first(config, "intermediate_size", "n_inner"), _first(config, "hidden_size", "n_embd")
    return value_bytes * (tokens * (3 * inner + 4 * hidden) + 2 * inner * hidden)


def _kv_values_per_token(config: Mapping[str, Any]) -> int:
    """Returns the number of values that one token adds to the K and V of all layers."""
    heads = _first(config, "num_attention_heads", "n_head")
    head_dim = _first(config, "head_dim") or _first(config, "hidden_size", "n_embd") // max(1, heads)
    kv_heads, values = _first(config, "num_key_value_heads") or heads, 2 * head_dim
    if _first(config, "kv_lora_rank"):  # latent attention, computed with keys and values of every head
        values = sum(_first(config, name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        kv_heads = heads
    return _first(config, "num_hidden_layers", "n_layer") * kv_heads * values
