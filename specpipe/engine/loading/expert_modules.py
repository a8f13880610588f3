"""Experts of a mixture in quantised form: as a checkpoint stores them, or quantised here.

On a CPU they stay dense, with the values of the quantised ones; on a GPU, and on the `meta` device, they are kept as
`specpipe_kernels` multiplies them. Shapes: E experts, N outputs, K inputs, H hidden size, I intermediate size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from specpipe.engine.forward.experts_interface import experts_modules, set_weights, supports
from specpipe.engine.forward.merged_projections import concatenate_quantized
from specpipe.engine.loading.linear_modules import stays_dense
from specpipe.engine.loading.tensor_places import CheckpointNames, merged_experts, weight_shape
from specpipe.models.quantization.checkpoint import Checkpoint
from specpipe.models.quantization.mxfp4_experts import PARTS, WEIGHTS
from specpipe_kernels import (
    ExpertWeights,
    Fp8ExpertWeight,
    Mxfp4Weight,
    QuantizedWeight,
    dequantize,
    pack_mxfp4,
    quantize_fp8,
    unpack_mxfp4,
)

_PACKED_AT_ONCE = 8  # experts: packing takes nine times the memory of what is packed


def set_experts(module: Any, gate_up: ExpertWeights, down: ExpertWeights, device: torch.device) -> None:
    """Gives transformers' experts module quantised weights [E, 2 I, H] and [E, H, I]; dense ones on a CPU.

    Raises ValueError on a GPU for experts that specpipe's kernels do not compute.
    """
    if not stays_dense(device):
        if not supports(module):
            raise ValueError(f"{type(module).__name__} computes more than a gated activation; expected 16-bit weights")
        set_weights(module, gate_up, down)
        return
    for name, weight in zip(WEIGHTS, (gate_up, down), strict=True):
        parameter = getattr(module, name)
        dense = dense_experts(weight, parameter.shape[1 if module.is_transposed else 2], parameter.dtype)
        dense = dense.transpose(1, 2).contiguous() if module.is_transposed else dense
        setattr(module, name, nn.Parameter(dense, requires_grad=False))


def dense_experts(weight: ExpertWeights, columns: int, dtype: torch.dtype) -> Tensor:
    """Returns the values [E, N, columns] of experts' weights."""
    if isinstance(weight, Mxfp4Weight):
        return unpack_mxfp4(weight, columns, dtype)
    if isinstance(weight, Fp8ExpertWeight):
        return torch.stack([dequantize(one, dtype) for one in _split(weight)])
    return weight.to(dtype)


def mxfp4_experts(tensors: Mapping[str, Tensor]) -> tuple[Mxfp4Weight, Mxfp4Weight]:
    """Returns both weights of a layer from its tensors by the last part of their names."""
    gate_up, down = ([tensors[f"{weight}_{part}"] for part in PARTS] for weight in WEIGHTS)
    return _pack(*gate_up), _pack(*down)


def _pack(blocks: Tensor, scales: Tensor) -> Mxfp4Weight:
    parts = zip(blocks.split(_PACKED_AT_ONCE), scales.split(_PACKED_AT_ONCE), strict=True)
    words, exponents = zip(*(pack_mxfp4(*part) for part in parts), strict=True)
    return Mxfp4Weight(torch.cat(words), torch.cat(exponents))


def merge_experts(
    gates: Sequence[QuantizedWeight], ups: Sequence[QuantizedWeight], downs: Sequence[QuantizedWeight]
) -> tuple[Fp8ExpertWeight, Fp8ExpertWeight]:
    """Returns both weights of a layer from the linear layers of its experts, in order.

    Raises ValueError unless all are in fp8, in one layout.
    """
    both = [concatenate_quantized(pair) for pair in zip(gates, ups, strict=True)]
    return _stack(both), _stack(downs)


def _stack(weights: Sequence[QuantizedWeight]) -> Fp8ExpertWeight:
    kinds = {(weight.values.dtype, weight.block) for weight in weights}
    if len(kinds) > 1 or weights[0].values.dtype != torch.float8_e4m3fn:
        raise ValueError(f"its experts have the formats {kinds}; expected one format in fp8")
    values = torch.empty(len(weights), *weights[0].shape, dtype=torch.float8_e4m3fn, device=weights[0].values.device)
    for one, weight in zip(values, weights, strict=True):
        one.copy_(weight.values)
    return Fp8ExpertWeight(values, torch.stack([weight.scale for weight in weights]), weights[0].block)


def _split(weight: Fp8ExpertWeight) -> list[QuantizedWeight]:
    return [QuantizedWeight(v, s, None, weight.block) for v, s in zip(weight.values, weight.scale, strict=True)]


def quantize_experts(model: Any) -> None:
    """Quantises the experts of a loaded model or an outline by output channel, one layer after another.

    Experts that specpipe's kernels do not compute stay as they are.
    """
    for module in experts_modules(model).values():
        if supports(module):
            stored = (cast(Tensor, getattr(module, name)).data for name in WEIGHTS)
            rows = [weight.transpose(1, 2) if module.is_transposed else weight for weight in stored]
            gate_up, down = (quantize_expert_weight(weight) for weight in rows)
            set_experts(module, gate_up, down, rows[0].device)


def quantize_expert_weight(weight: Tensor) -> Fp8ExpertWeight:
    """Returns weights [E, N, K] in fp8, with a scale for each output channel."""
    experts, outputs, inputs = weight.shape
    rows = quantize_fp8(weight.reshape(-1, inputs))
    return Fp8ExpertWeight(rows.values.view(weight.shape), rows.scale.view(experts, outputs, 1), (1, inputs))


def outline_experts(model: Any, names: CheckpointNames, checkpoint: Checkpoint) -> None:
    """Gives the experts of an outline weights without values, in the format of the checkpoint."""
    merged, meta = merged_experts(names, checkpoint), torch.device("meta")
    mxfp4 = {names.tensor(f"{stored}.down_proj").removesuffix(".down_proj") for stored in checkpoint.experts}
    for place, module in experts_modules(model).items():
        shapes = [weight_shape(module, name) for name in WEIGHTS]
        if place in mxfp4:
            gate_up, down = (_empty_mxfp4(shape) for shape in shapes)
            set_experts(module, gate_up, down, meta)
        elif place in merged:
            layout = checkpoint.layers[next(iter(merged[place].values()))].layout
            blocks = [layout.block(columns) for _, _, columns in shapes]
            weights = [_empty_fp8(shape, block) for shape, block in zip(shapes, blocks, strict=True)]
            set_experts(module, weights[0], weights[1], meta)


def _empty_mxfp4(shape: tuple[int, int, int]) -> Mxfp4Weight:
    experts, outputs, columns = shape
    groups = (experts, outputs, columns // 32)
    scales = torch.empty(groups, dtype=torch.uint8, device="meta")
    return pack_mxfp4(scales.new_empty(*groups, 16), scales)


def _empty_fp8(shape: tuple[int, int, int], block: tuple[int, int]) -> Fp8ExpertWeight:
    experts, outputs, columns = shape
    scales = experts, -(-outputs // block[0]), -(-columns // block[1])
    values = torch.empty(shape, dtype=torch.float8_e4m3fn, device="meta")
    return Fp8ExpertWeight(values, torch.empty(scales, device="meta"), block)
