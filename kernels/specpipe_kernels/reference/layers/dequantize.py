"""Dense weights of quantised ones."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.layers.quantized.int4_layout import unpack_int4
from specpipe_kernels.weights import QuantizedWeight


def _expand(by_block: Tensor, weight: QuantizedWeight) -> Tensor:
    """Returns entries by block [ceil(N / rows), ceil(K / columns)] for each entry of the weight [N, K]."""
    rows, columns = weight.block
    n, k = weight.shape
    return by_block.repeat_interleave(rows, 0)[:n].repeat_interleave(columns, 1)[:, :k]


def dequantize(weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """Returns the weight [N, K], computed in fp32 and rounded to dtype."""
    four_bits = weight.values.dtype == torch.uint8
    values = (unpack_int4(weight.values) if four_bits else weight.values).float()
    if weight.zeros is not None:
        values -= _expand(weight.zeros.float(), weight)
    elif four_bits:
        values -= 8
    return (values * _expand(weight.scale, weight)).to(dtype)


def dense_weight(weight: Tensor | QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """Returns a weight [N, K], dequantised to dtype where it is quantised."""
    return dequantize(weight, dtype) if isinstance(weight, QuantizedWeight) else weight
