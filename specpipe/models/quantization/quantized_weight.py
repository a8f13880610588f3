"""Conversion of a layer's stored tensors to a `QuantizedWeight`.

Shapes: N outputs, K inputs, G groups of inputs. Works on torch's `meta` device, for outlines of models.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from specpipe.models.quantization.layouts import AwqLayout, Fp8Layout, GptqLayout, Layout, PackedLayout
from specpipe_kernels import QuantizedWeight, pack_int4

_AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)  # nibble that holds output j of eight


def quantized_weight(layout: Layout, tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> QuantizedWeight:
    """Returns the weight [N, K] of a layer from its tensors by the last part of their names, on their device.

    Raises ValueError for contents that the format does not allow.
    """
    match layout:
        case Fp8Layout():
            return _fp8(layout, tensors, shape)
        case PackedLayout():
            return _packed(layout, tensors, shape)
        case AwqLayout():
            return _awq(layout, tensors, shape)
        case GptqLayout():
            return _gptq(layout, tensors, shape)
        case _:
            raise TypeError(f"no conversion of {type(layout).__name__}")


def _fp8(layout: Fp8Layout, tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> QuantizedWeight:
    scale, (n, k) = tensors[layout.scale].float(), shape
    rows, columns = layout.block(k)
    by_block = scale.reshape(-(-n // rows) if scale.numel() > 1 else 1, -1)
    # One scale of a tensor becomes one of each channel, so that merged projections keep scales of their own.
    return QuantizedWeight(
        tensors["weight"].contiguous(), by_block.expand(-(-n // rows), -1).contiguous(), None, (rows, columns)
    )


def _packed(layout: PackedLayout, tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> QuantizedWeight:
    values = pack_int4(_nibbles(tensors["weight_packed"]))
    zeros = None
    if not layout.symmetric:
        zeros = _nibbles(tensors["weight_zero_point"].T)[:, : shape[0]].T.contiguous()
    return QuantizedWeight(values, tensors["weight_scale"].float().contiguous(), zeros, layout.block(shape[1]))


def _awq(layout: AwqLayout, tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> QuantizedWeight:
    def outputs(words: Tensor) -> Tensor:
        """[R, N / 8] int32 → [N, R] uint8."""
        order = torch.tensor(_AWQ_NIBBLES, device=words.device)
        return _nibbles(words).view(len(words), -1, 8)[:, :, order].flatten(1).T

    values = outputs(tensors["qweight"])
    return QuantizedWeight(
        pack_int4(values),
        tensors["scales"].T.float().contiguous(),
        outputs(tensors["qzeros"]).contiguous(),
        layout.block(shape[1]),
    )


def _gptq(layout: GptqLayout, tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> QuantizedWeight:
    stored = _nibbles(tensors["qzeros"])[:, : shape[0]].T
    zeros = None if layout.symmetric else (stored + layout.zero_offset & 15).contiguous()
    # Some writers store 8 in the format that subtracts one: symmetric values have the zero 8 in any case.
    if layout.symmetric and not stored.is_meta and not bool(((stored == 7) | (stored == 8)).all()):
        raise ValueError("sym is true, and qzeros has other zeros than 8; expected one or the other")
    values = pack_int4(_nibbles(tensors["qweight"].T))
    return QuantizedWeight(values, tensors["scales"].T.float().contiguous(), zeros, layout.block(shape[1]))


def _nibbles(words: Tensor) -> Tensor:
    """Returns the 4-bit entries of words [R, C] int32, lowest bits first: [R, 8 C] uint8."""
    packed = words.contiguous().view(torch.uint8)
    return torch.stack((packed & 15, packed >> 4), -1).flatten(1)
