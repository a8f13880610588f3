"""Products of many rows: by the vendor's library where it takes the operands, else by our own kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from specpipe_kernels.layers.dequantize import dequantize
from specpipe_kernels.layers.quantized.fp8_gemm import beats_library, fp8_gemm
from specpipe_kernels.layers.quantized.int4_gemm import converts_tiles, int4_gemm
from specpipe_kernels.layers.quantized.quantize_rows import in_whole_tiles
from specpipe_kernels.runtime.backend import gpu_of, processors
from specpipe_kernels.weights import Fp8Rows, QuantizedWeight


def wide_product(
    x: Tensor | Fp8Rows, weight: Tensor | QuantizedWeight, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Returns x [M, K] times weight [N, K] transposed, plus bias [N]: [M, N] in the 16-bit dtype of x.

    x is in 8 bits, with one scale a row, if the weight is. out: [M, N] contiguous, receives the result.
    """
    if isinstance(x, Fp8Rows):
        assert isinstance(weight, QuantizedWeight) and x.squares is None and x.scale.shape[0] == 1
        return _fp8_product(x, weight, bias, out)
    if converts_tiles(weight, x):
        return int4_gemm(x, weight, bias, out=out)
    dense = dequantize(weight, x.dtype) if isinstance(weight, QuantizedWeight) else weight
    if bias is None and out is not None:
        return torch.mm(x, dense.t(), out=out)
    product = functional.linear(x, dense, bias)
    return product if out is None else out.copy_(product)


def _fp8_product(x: Fp8Rows, weight: QuantizedWeight, bias: Tensor | None, out: Tensor | None) -> Tensor:
    """Multiplies by the library where it has the scales, the sizes (multiples of 16) and the speed."""
    (n, k), rows, by_channel = weight.shape, x.values.shape[0], weight.block == (1, weight.shape[1])
    values, scale = in_whole_tiles(x)
    faster = beats_library(rows, n, processors(x.values.device))
    has_scales = by_channel or (_has_blocks(weight, x.values.device) and values.shape[0] % 4 == 0)
    if faster or not has_scales or n % 16 or k % 16:
        return fp8_gemm(x, weight, bias, out=out)
    if by_channel:
        scales = scale, weight.scale.view(1, -1)
    else:  # [P, K / 128] and [K / 128, N / 128], both with adjacent columns
        scales = scale.t().expand(k // 128, -1).contiguous().t(), weight.scale.t()
    added = bias if by_channel else None
    product = torch._scaled_mm(values, weight.values.t(), *scales, added, out_dtype=x.dtype)[:rows]
    if bias is not None and not by_channel:
        product += bias
    return product if out is None else out.copy_(product)


def _has_blocks(weight: QuantizedWeight, device: torch.device) -> bool:
    """Returns true if the library multiplies by the weight's blocks: of 128 x 128, four in a row, on Hopper alone."""
    gpu = gpu_of(device)
    fits = weight.block == (128, 128) and weight.shape[1] % 512 == 0 and weight.scale.is_contiguous()
    return fits and gpu is not None and torch.cuda.get_device_capability(gpu)[0] == 9
