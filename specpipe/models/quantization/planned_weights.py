"""Sizes and number formats of a model's weights on a device, known before they are read."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import NamedTuple

from specpipe.core import DTYPE_BYTES, DeviceName, DtypeName, QuantizeChoice
from specpipe.errors import ModelError
from specpipe.models.quantization.checkpoint import Checkpoint, QuantizedLayer, inspect_checkpoint
from specpipe.models.quantization.mxfp4_experts import expert_shapes, packed_bytes
from specpipe.models.source import ModelSource
from specpipe.models.support import OWN_LAYERS

FP8_CAPABILITY = (8, 9)
"""Lowest compute capability of a GPU with products of 8-bit floating-point numbers."""
AT_LOAD = "FP8 by channel, at load"
_STORED_AS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_DENSE_BYTES = {stored: DTYPE_BYTES[dtype] for dtype, stored in _STORED_AS.items()}
_NOT_LINEAR = re.compile(
    r"(^|.*\.)(embed\w*|wte|wpe|word_embeddings|lm_head|embed_out|mlp\.gate|block_sparse_moe\.gate|router)\.weight"
)
"""Matrices that `model.quantize` leaves as they are: embeddings, heads, and routers of experts."""
_MERGED = re.compile(r".*\.experts\.(gate_up|down)_proj")
"""Weights [E, inputs, outputs] of all experts of a layer (gpt-oss)."""


class PlannedWeights(NamedTuple):
    """Weights of one model."""

    format: str
    """Number format of the linear layers, such as "FP8 by channel, compressed-tensors" or "bfloat16"."""
    bytes: int
    """Bytes on the device."""
    mapped: int = 0
    """Bytes of files that are mapped beside them while a CPU converts them to another dtype."""
    copies: int = 0
    """Bytes of dense copies of weights in 4 bits beside them."""

    def describe(self) -> str:
        """Returns format and sizes, such as "4 bits in groups of 128, awq, 5.0 GiB and 13.0 GiB of dense copies"."""
        copies = f" and {_size(self.copies)} of dense copies" if self.copies else ""
        return f"{self.format}, {_size(self.bytes)}{copies}"


def weights_format(source: ModelSource, quantize: QuantizeChoice) -> str:
    """Returns the number format of a model's linear layers; "" for that of the job's dtype.

    Raises ModelError for a checkpoint that specpipe does not read, or that would be quantised twice.
    """
    return _format(inspect_checkpoint(source), source, quantize)


def plan_weights(
    source: ModelSource, *, dtype: DtypeName, device: DeviceName, quantize: QuantizeChoice
) -> PlannedWeights:
    """Returns format and bytes of a model's weights on a worker's device, with dense copies of all weights in 4 bits.

    Raises ModelError as `weights_format`.
    """
    checkpoint = inspect_checkpoint(source)
    label, entry = _format(checkpoint, source, quantize), DTYPE_BYTES[dtype]
    if not checkpoint.dense and not checkpoint.quantised:  # pickles, which are read with the weights alone
        stored = sum(path.stat().st_size for path in Path(source.path).glob("pytorch_model*.bin"))
        return PlannedWeights(label or dtype, stored)
    total = mapped = 0
    for name, tensor in checkpoint.dense.items():
        if device == "cpu" and not checkpoint.quantised and tensor.dtype != _STORED_AS[dtype]:
            mapped += tensor.numel * _DENSE_BYTES.get(tensor.dtype, 0)
        rounded = quantize == "fp8" and (
            _MERGED.fullmatch(name) or (len(tensor.shape) == 2 and name.endswith(".weight"))
        )
        if device == "cuda" and rounded and not _NOT_LINEAR.fullmatch(name):
            outputs = tensor.shape[0] if len(tensor.shape) == 2 else tensor.shape[0] * tensor.shape[2]
            total += tensor.numel + 4 * outputs
        else:
            total += tensor.numel * entry
    for layer in checkpoint.layers.values():
        total += _layer_bytes(layer) if device == "cuda" else layer.shape[0] * layer.shape[1] * entry
    for experts in checkpoint.experts.values():
        for shape in expert_shapes(experts).values():
            total += packed_bytes(shape) if device == "cuda" else math.prod(shape) * entry
    copies = _copied_entries(checkpoint, source) * entry if device == "cuda" else 0
    return PlannedWeights(label or dtype, total, mapped, copies)


def _size(count: int) -> str:
    mib = count / 1024**2
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.1f} MiB"


def _copied_entries(checkpoint: Checkpoint, source: ModelSource) -> int:
    """Returns the entries of weights in 4 bits of which a GPU with memory to spare keeps dense copies."""
    config = json.loads((Path(source.path) / "config.json").read_text(encoding="utf-8"))
    if not OWN_LAYERS.intersection(config.get("architectures") or ()):
        return 0
    return sum(math.prod(layer.shape) for layer in checkpoint.layers.values() if layer.layout.bits == 4)


def _format(checkpoint: Checkpoint, source: ModelSource, quantize: QuantizeChoice) -> str:
    check_quantize(checkpoint, source, quantize)
    return AT_LOAD if quantize == "fp8" else checkpoint.label


def check_quantize(checkpoint: Checkpoint, source: ModelSource, quantize: QuantizeChoice) -> None:
    """Raises ModelError for a checkpoint that would be quantised twice."""
    if quantize != "none" and checkpoint.quantised:
        raise ModelError(
            f"model {source.name} is quantised already ({checkpoint.label}); leave model.quantize and "
            "model.quantize_draft out for it, or use its checkpoint in 16 bits"
        )


def _layer_bytes(layer: QuantizedLayer) -> int:
    """Returns the bytes of a quantised layer: values, fp32 scales and zeros of one byte."""
    rows, columns = layer.layout.block(layer.shape[1])
    scales = -(-layer.shape[0] // rows) * -(-layer.shape[1] // columns)
    return layer.shape[0] * layer.shape[1] * layer.layout.bits // 8 + scales * (5 if layer.layout.has_zeros else 4)
