"""Matrix products with a handful of rows, bound by the bytes of the weights: x [M, K] times w [N, K] transposed.

A program owns BLOCK_N rows of the weights and streams them once; the M rows of x (at most MAX_ROWS) are the narrow side
of its matrix tile. Where N alone gives too few programs to keep the memory busy, SPLITS programs share K; the last one
to arrive adds the parts in a fixed order, so that results do not depend on timing.

RMS norms cost no kernel: whoever writes a residual row h also writes h * norm_weight and, per program, the sum of h²
over its columns; whoever multiplies those rows scales its product by rsqrt(mean h² + eps) at the end.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from specpipe_kernels.triton_ops.pdl import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.triton_ops.rms_norm import add_rms_norm
from specpipe_kernels.triton_ops.silu_mul import silu_mul
from specpipe_kernels.types import Normed

MAX_ROWS = 64
MAX_TILES = 16384
PLAIN, GLU, RESIDUAL = 0, 1, 2


@triton.jit
def _row_scale(squares, m, rows, eps, PARTS: tl.constexpr, PARTS_PAD: tl.constexpr, K: tl.constexpr):
    """rsqrt(mean of squares + eps) of rows m, from PARTS partial sums."""
    part = tl.arange(0, PARTS_PAD)
    at = squares + part[:, None] * rows + m[None, :]
    sums = tl.load(at, mask=(part[:, None] < PARTS) & (m[None, :] < rows), other=0.0)
    return tl.rsqrt(tl.sum(sums, 0) / K + eps)


@triton.jit(do_not_specialize=["rows"])
def _linear_kernel(
    x, squares, weight, bias, residual, norm_weight, out, out_scaled, out_squares, scratch, counters,
    rows, eps, stride_x, stride_residual,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr, PARTS: tl.constexpr, PARTS_PAD: tl.constexpr,
    EPILOGUE: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    split = tl.program_id(1)
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    in_n = n < N
    k_lanes = tl.arange(0, BLOCK_K)
    steps: tl.constexpr = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLITS)
    first = split * steps * BLOCK_K
    w_row = weight + n.to(tl.int64)[:, None] * K
    wait_for_inputs(PDL)
    let_next_start(PDL)

    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    gate = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        k = first + step * BLOCK_K + k_lanes
        w_mask = in_n[:, None] & (k[None, :] < K)
        x_at = x + m[None, :].to(tl.int64) * stride_x + k[:, None]
        x_tile = tl.load(x_at, mask=(m[None, :] < rows) & (k[:, None] < K), other=0.0)
        if EPILOGUE == 1:
            gate_tile = tl.load(w_row + k[None, :], mask=w_mask, other=0.0)
            up_tile = tl.load(w_row + N * K + k[None, :], mask=w_mask, other=0.0)
            gate = tl.dot(gate_tile, x_tile, gate, input_precision="ieee")
            acc = tl.dot(up_tile, x_tile, acc, input_precision="ieee")
        else:
            w_tile = tl.load(w_row + k[None, :], mask=w_mask, other=0.0)
            acc = tl.dot(w_tile, x_tile, acc, input_precision="ieee")

    mask = in_n[:, None] & (m[None, :] < rows)
    if SPLITS > 1:
        PART: tl.constexpr = BLOCK_N * BLOCK_M
        lane = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + m[None, :]
        tl.store(scratch + (tile * SPLITS + split) * PART + lane, acc)
        tl.debug_barrier()
        arrived = tl.atomic_add(counters + tile, 1, sem="acq_rel")
        if arrived < SPLITS - 1:
            return
        tl.store(counters + tile, 0)
        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for other in range(SPLITS):
            acc += tl.load(scratch + (tile * SPLITS + other) * PART + lane, cache_modifier=".cg")

    if PARTS > 0:
        scale = _row_scale(squares, m, rows, eps, PARTS, PARTS_PAD, K)
        acc *= scale[None, :]
        gate *= scale[None, :]
    if BIAS:
        acc += tl.load(bias + n, mask=in_n, other=0.0).to(tl.float32)[:, None]
    if EPILOGUE == 1:
        acc *= gate / (1.0 + tl.exp(-gate))
    if EPILOGUE == 2:
        at = residual + m[None, :].to(tl.int64) * stride_residual + n[:, None]
        acc += tl.load(at, mask=mask, other=0.0).to(tl.float32)
    value = acc.to(out.dtype.element_ty)
    tl.store(out + m[None, :].to(tl.int64) * N + n[:, None], value, mask=mask)
    if NORM:
        h = tl.where(mask, value.to(tl.float32), 0.0)
        by = tl.load(norm_weight + n, mask=in_n, other=0.0).to(tl.float32)
        scaled = (h * by[:, None]).to(out.dtype.element_ty)
        tl.store(out_scaled + m[None, :].to(tl.int64) * N + n[:, None], scaled, mask=mask)
        tl.store(out_squares + tile * rows + m, tl.sum(h * h, 0), mask=m < rows)


class Tiling(NamedTuple):
    """How a product is cut; chosen from shapes alone, measured on an H200 (docs/performance.md)."""

    block_n: int
    block_k: int
    splits: int
    stages: int
    warps: int


def tiling(rows: int, n: int, k: int, *, glu: bool, itemsize: int) -> Tiling:
    """The tiling of a product of so many rows."""
    block_n = 32 if rows <= 16 or n < 8192 else 64
    block_k = (256 if rows <= 16 else 128) * 2 // itemsize // (2 if glu else 1)
    tiles = -(-n // block_n)
    splits = 1
    while not glu and tiles * splits < 256 and splits < 8 and k // (2 * splits) >= 2 * block_k:
        splits *= 2
    return Tiling(block_n, block_k, splits, 4, 4)


@cache
def _counters(device: torch.device) -> Tensor:
    """Arrivals per tile; every launch leaves them at zero."""
    return torch.zeros(MAX_TILES, dtype=torch.int32, device=device)


def _launch(
    x: Tensor | Normed,
    weight: Tensor,
    epilogue: int,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    norm_weight: Tensor | None = None,
    tiles: Tiling | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    values, squares, eps = x if isinstance(x, Normed) else (x, None, 0.0)
    rows, k = values.shape
    n = weight.shape[0] // (2 if epilogue == GLU else 1)
    assert rows <= MAX_ROWS and weight.is_contiguous() and values.stride(1) == 1
    cut = tiles or tiling(rows, n, k, glu=epilogue == GLU, itemsize=weight.element_size())
    block_m = max(16, triton.next_power_of_2(rows))
    count = triton.cdiv(n, cut.block_n)
    out = values.new_empty(rows, n)
    scaled = torch.empty_like(out) if norm_weight is not None else out
    parts = out.new_empty(count, rows, dtype=torch.float32) if norm_weight is not None else out
    scratch = out.new_empty(count * cut.splits * cut.block_n * block_m if cut.splits > 1 else 1, dtype=torch.float32)
    counters = _counters(values.device) if cut.splits > 1 else scratch
    PARTS = 0 if squares is None else squares.shape[0]
    _linear_kernel[(count, cut.splits)](
        values, values if squares is None else squares, weight, weight if bias is None else bias,
        out if residual is None else residual, weight if norm_weight is None else norm_weight, out, scaled, parts,
        scratch, counters, rows, eps, values.stride(0), 0 if residual is None else residual.stride(0),
        N=n, K=k, BLOCK_M=block_m, BLOCK_N=cut.block_n, BLOCK_K=cut.block_k, SPLITS=cut.splits,
        PARTS=PARTS, PARTS_PAD=triton.next_power_of_2(max(1, PARTS)), EPILOGUE=epilogue, BIAS=bias is not None,
        NORM=norm_weight is not None, STAGES=cut.stages, num_warps=cut.warps, num_stages=cut.stages,
        **launch_options(values),
    )  # fmt: skip
    return out, scaled, parts


def _is_narrow(values: Tensor) -> bool:
    """Whether the bytes of the weights decide; fp32 products gain nothing from a matrix unit here."""
    return values.shape[0] <= MAX_ROWS and values.element_size() == 2


def _complete(x: Tensor | Normed) -> Tensor:
    if isinstance(x, Normed):
        assert x.squares is None, "rows normed for a narrow product in a wide one"
        return x.values
    return x


def linear(x: Tensor | Normed, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See `specpipe_kernels.linear`."""
    if _is_narrow(x.values if isinstance(x, Normed) else x):
        return _launch(x, weight, PLAIN, bias=bias)[0]
    return functional.linear(_complete(x), weight, bias)


def linear_glu(x: Tensor | Normed, weight: Tensor) -> Tensor:
    """See `specpipe_kernels.linear_glu`."""
    if _is_narrow(x.values if isinstance(x, Normed) else x):
        return _launch(x, weight, GLU)[0]
    return silu_mul(functional.linear(_complete(x), weight))


def linear_residual(
    x: Tensor, weight: Tensor, residual: Tensor, norm_weight: Tensor | None, eps: float
) -> tuple[Tensor, Normed]:
    """See `specpipe_kernels.linear_residual`."""
    if _is_narrow(x):
        out, scaled, parts = _launch(x, weight, RESIDUAL, residual=residual, norm_weight=norm_weight)
        return out, Normed(scaled, parts, eps)
    product = functional.linear(x, weight)
    if norm_weight is None:
        out = product.add_(residual)
        return out, Normed(out, None, eps)
    out, normed = add_rms_norm(product, residual, norm_weight, eps)
    return out, Normed(normed, None, eps)
