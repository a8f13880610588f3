"""Linear layers whose weights stay quantised on the device.

Shapes: M rows, K inputs, N outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specpipe_kernels import QuantizedWeight, Weight, linear, with_dense_copy, with_scales_by_group


class QuantizedLinear(nn.Module):
    """A linear layer without `weight`; its values, scales and zeros are buffers.

    `FusedStack` concatenates the quantised weights of several layers; other models call `forward`.
    """

    def __init__(self, quantized: QuantizedWeight, bias: Tensor | None = None) -> None:
        """quantized [N, K]; bias [N] in the dtype of the activations."""
        super().__init__()
        self.out_features, self.in_features = quantized.shape
        quantized = with_scales_by_group(quantized)
        self._block = quantized.block
        self.register_buffer("values", quantized.values)
        self.register_buffer("scale", quantized.scale)
        self.register_buffer("zeros", quantized.zeros)
        self.register_buffer("bias", bias)
        self.values: Tensor
        self.scale: Tensor
        self.zeros: Tensor | None
        self.bias: Tensor | None

    @property
    def quantized(self) -> QuantizedWeight:
        """The weight [N, K]."""
        return QuantizedWeight(self.values, self.scale, self.zeros, self._block)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., K] → [..., N]."""
        result: Tensor = _quantized_linear(x, self.values, self.scale, self.zeros, *self._block, self.bias)
        return result

    def extra_repr(self) -> str:
        """Returns the sizes and the number format."""
        return f"{self.in_features}, {self.out_features}, {self.values.dtype}, block={self._block}"


class DenseCopies:
    """Dense copies of 4-bit weights, for products of many tokens, within a number of bytes."""

    def __init__(self, budget: int, dtype: torch.dtype) -> None:
        """budget: bytes of all copies, at most. dtype: that of the activations."""
        self._budget, self._dtype = budget, dtype
        self.bytes = 0
        """Bytes of the copies made so far."""

    def add(self, weight: Weight) -> Weight:
        """Returns the weight with a dense copy, if it is in 4 bits and the copy fits; else unchanged."""
        if not isinstance(weight, QuantizedWeight) or weight.values.dtype != torch.uint8:
            return weight
        size = weight.shape.numel() * self._dtype.itemsize
        if self.bytes + size > self._budget:
            return weight
        self.bytes += size
        return with_dense_copy(weight, self._dtype)


# One opaque operation to torch.compile, which would otherwise trace into the launch of Triton kernels.
@torch.library.custom_op(
    "specpipe::quantized_linear",
    mutates_args=(),
    schema="(Tensor x, Tensor values, Tensor scale, Tensor? zeros, int rows, int columns, Tensor? bias) -> Tensor",
)
def _quantized_linear(
    x: Tensor, values: Tensor, scale: Tensor, zeros: Tensor | None, rows: int, columns: int, bias: Tensor | None
) -> Tensor:
    weight = QuantizedWeight(values, scale, zeros, (rows, columns))
    return linear(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], values.shape[0])


@_quantized_linear.register_fake
def _(
    x: Tensor, values: Tensor, scale: Tensor, zeros: Tensor | None, rows: int, columns: int, bias: Tensor | None
) -> Tensor:
    return x.new_empty(*x.shape[:-1], values.shape[0])
