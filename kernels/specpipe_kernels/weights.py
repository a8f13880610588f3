"""Types of weights, and of the rows that they are multiplied with."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Size, Tensor


class QuantizedWeight(NamedTuple):
    """A weight [N, K] in 8 or 4 bits: entry [n, k] is (value - zero) * scale."""

    values: Tensor
    """float8_e4m3fn [N, K]; or uint8 [N, K / 2] of 4-bit entries as `pack_int4` returns them."""
    scale: Tensor
    """fp32 [ceil(N / rows), ceil(K / columns)]."""
    zeros: Tensor | None
    """uint8, in the shape of `scale`: zeros of 4-bit values; None: 8 for 4 bits, 0 for 8."""
    block: tuple[int, int]
    """Rows and columns that share a scale: (1, K) by output channel, (128, 128), or (1, 128)."""
    dense: Tensor | None = None
    """[N, K] in the dtype of the activations: a copy of a weight in 4 bits, for products of many rows."""

    @property
    def shape(self) -> Size:
        """[N, K]."""
        rows, columns = self.values.shape
        return Size((rows, columns * 2 if self.values.dtype == torch.uint8 else columns))


class Fp8Rows(NamedTuple):
    """Rows [M, K] of activations in 8 bits: entry [m, k] is values[m, k] * scale[k // group, m].

    Values are rounded with scales that are powers of two, so that rounding does not depend on which entries share one
    (but for underflow). Those of an RMS norm are h * norm weight, rounded before rsqrt(mean h² + eps) multiplies them:
    the factor is pending (`squares`) or part of `scale`, with the same values.
    """

    values: Tensor
    """[M, K] float8_e4m3fn."""
    scale: Tensor
    """[ceil(K / group), M] fp32."""
    group: int
    """Adjacent columns that share a scale: K, or those of a head or of a producer's tile."""
    dtype: torch.dtype
    """16-bit dtype of the activations; products of the rows have it."""
    squares: Tensor | None = None
    """[parts, M] fp32: sums of squares of a pending norm, as in `Normed`; None without one."""
    eps: float = 0.0
    """Added to the mean of squares of a pending norm."""


class Normed(NamedTuple):
    """Rows [M, H] after an RMS norm, whose division by the root mean square may still be pending."""

    values: Tensor
    """[M, H]; if `squares` is given, h * norm weight, still to be multiplied by rsqrt(mean h² + eps)."""
    squares: Tensor | None
    """[parts, M] fp32: sums of h² over parts of each row; None if the norm is complete."""
    eps: float
    """Added to the mean of squares."""


class Routing(NamedTuple):
    """Experts of M tokens, k each."""

    ids: Tensor
    """[M, k] int32: numbers of experts, that of the largest logit first."""
    weights: Tensor
    """[M, k] fp32."""
    x: Tensor | Fp8Rows
    """[M, H]: input of the experts, normed."""


class Activation(NamedTuple):
    """Gated activation of experts."""

    clamped: bool
    """False: SiLU(gate) * up. True: gpt-oss, gate * sigmoid(alpha * gate) * (up + 1) with clamped gate and up."""
    alpha: float = 1.0
    limit: float = 0.0
    """Largest gate, and largest absolute value of up."""


class Mxfp4Weight(NamedTuple):
    """Weights [E, N, K] of E experts in mxfp4 (OCP Microscaling Formats (MX) 1.0), made by `pack_mxfp4`.

    Of a block of 128 columns, word j of 32 holds those numbered j, j + 32, j + 64 and j + 96; K is padded to whole
    blocks with zeros. The rows of a block are adjacent, so that a step of a product reads one piece of memory.
    """

    words: Tensor
    """[E, ceil(K / 128), N, 32] int16: four values of 4 bits (E2M1)."""
    exponents: Tensor
    """[E, ceil(K / 128), N] int32: a byte for each 32 columns, which are multiplied by 2 to this byte minus 189."""

    @property
    def shape(self) -> Size:
        """[E, N, K], K in whole blocks."""
        experts, blocks, rows, _ = self.words.shape
        return Size((experts, rows, 128 * blocks))


class Fp8ExpertWeight(NamedTuple):
    """Weights [E, N, K] of E experts in 8 bits: entry [e, n, k] is values[e, n, k] * scale[e, n // rows, k // columns].

    Products round activations to 8 bits too, with scales that are powers of two.
    """

    values: Tensor
    """[E, N, K] float8_e4m3fn."""
    scale: Tensor
    """fp32 [E, ceil(N / rows), ceil(K / columns)]."""
    block: tuple[int, int]
    """Rows and columns that share a scale: (1, K) by output channel, (128, 128), or (1, 128)."""

    @property
    def shape(self) -> Size:
        """[E, N, K]."""
        return self.values.shape


ExpertWeights = Tensor | Mxfp4Weight | Fp8ExpertWeight


class Experts(NamedTuple):
    """Weights of a layer's E experts. H hidden size, I intermediate size."""

    gate_up: ExpertWeights
    """[E, 2 I, H]."""
    gate_up_bias: Tensor | None
    """[E, 2 I]."""
    down: ExpertWeights
    """[E, H, I]."""
    down_bias: Tensor | None
    """[E, H]."""
    interleaved: bool
    """True: the rows of gate and up alternate. False: all rows of the gate come first."""
    activation: Activation

    @property
    def num_experts(self) -> int:
        """E."""
        return self.down.shape[0]


MAX_FP8_ROWS = 64
"""Most rows for which a product takes `Fp8Rows` with scales by group of columns; with more, each row has one scale.

At 64 rows a layer's products take 90 µs for 8B and 264 for 70B; the vendor's library, without the row kernels that it
needs, 108 and 261 (H200).
"""
Weight = Tensor | QuantizedWeight
"""A weight [N, K], in the dtype of the activations or quantised."""
Rows = Tensor | Normed | Fp8Rows
"""Rows [M, K] that a product reads."""


def values_of(x: Rows) -> Tensor:
    """Returns the values [M, K] of rows, without scales and pending factors."""
    return x if isinstance(x, Tensor) else x.values


def dtype_of(x: Rows) -> torch.dtype:
    """Returns the dtype of products of these rows."""
    return x.dtype if isinstance(x, Tensor | Fp8Rows) else x.values.dtype


def is_fp8(weight: Weight) -> bool:
    """Returns true for a weight in 8 bits, which is multiplied with rows in 8 bits."""
    return isinstance(weight, QuantizedWeight) and weight.values.dtype == torch.float8_e4m3fn
