"""Matrix products with few rows, bound by the bytes of the weights: x [M, K] times w [N, K] transposed.

A program owns BLOCK_N rows of the weights and streams them once; the M rows of x (at most MAX_ROWS, or MAX_GLU_ROWS
where two weights share a tile of x) are the narrow side of its matrix tile. Where N alone gives too few programs to
keep the memory busy, SPLITS programs share K; the last one to arrive adds the parts in a fixed order, so that results
do not depend on timing. Weights in 8 bits (up to MAX_FP8_ROWS) are converted in registers; their scales, one an output,
are applied to the sums.

What stands around the products of a decoder layer rides on their epilogues:
- GLU: a program owns the same rows of the gate and of the up projection and multiplies them;
- RESIDUAL: the residual is added, and an RMS norm is left open: h * norm_weight is written beside h, with the sum of h²
  over each program's columns; whoever multiplies those rows scales its product by rsqrt(mean h² + eps) at the end;
- ROPE: a program owns both halves of a rotation, one tile of the matrix unit; queries are rotated, keys and values go
  to their pages.

What an epilogue reads is loaded before the products where registers hold it: its latency is then not the kernel's.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from triton.tools.tensor_descriptor import TensorDescriptor

from specpipe_kernels.triton_ops.pdl import arrival_counters, launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.triton_ops.rms_norm import add_rms_norm
from specpipe_kernels.triton_ops.rope_store_kv import rope_store_kv
from specpipe_kernels.triton_ops.silu_mul import silu_mul
from specpipe_kernels.triton_ops.sizes import cdiv, power_of_2
from specpipe_kernels.types import Fp8Weight, Normed, full_weight

MAX_ROWS, MAX_GLU_ROWS, MAX_FP8_ROWS = 64, 128, 32
LARGE = 1 << 15
"""Outputs of a plain product from which on it is the head's: as many rows as GLU, and tiles of its own."""
_PROCESSORS = 132  # of an H200
_EARLY_VALUES = 48  # that a thread holds for its epilogue during the products
PLAIN, GLU, RESIDUAL, ROPE = 0, 1, 2, 3


@triton.jit
def _load_squares(squares, m, rows, PARTS: tl.constexpr, PARTS_PAD: tl.constexpr):
    """[PARTS_PAD, M] partial sums of the squares of rows m."""
    part = tl.arange(0, PARTS_PAD)
    at = squares + part[:, None] * rows + m[None, :]
    return tl.load(at, mask=(part[:, None] < PARTS) & (m[None, :] < rows), other=0.0)


@triton.jit
def _load_turns(cos, sin, position, last_position, lane, mask, D: tl.constexpr):
    """cos and sin of the lower half of a head, then of its upper half, each [lanes, M]."""
    HALF: tl.constexpr = D // 2
    at = tl.minimum(tl.maximum(position, 0), last_position)[None, :] * D + lane[:, None]
    c_low = tl.load(cos + at, mask=mask, other=0.0)
    s_low = tl.load(sin + at, mask=mask, other=0.0)
    c_high = tl.load(cos + at + HALF, mask=mask, other=0.0)
    s_high = tl.load(sin + at + HALF, mask=mask, other=0.0)
    return c_low, s_low, c_high, s_high


@triton.jit
def _store_rotated(
    low, high, c_low, s_low, c_high, s_high, lane, mask, head, m, q_out, k_pages, v_pages, index,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE_SIZE: tl.constexpr,
):  # fmt: skip
    """low, high [lanes, M]: the halves of one head of every token, to q_out or to the token's place in the pages."""
    HALF: tl.constexpr = D // 2
    if head < Q_HEADS + KV_HEADS:
        # Rounded before rotation, as a projection that is stored would be.
        low = low.to(q_out.dtype.element_ty).to(tl.float32)
        high = high.to(q_out.dtype.element_ty).to(tl.float32)
        turned = low * c_low.to(tl.float32) - high * s_low.to(tl.float32)
        high = high * c_high.to(tl.float32) + low * s_high.to(tl.float32)
        low = turned
    if head < Q_HEADS:
        base = q_out + (m[None, :].to(tl.int64) * Q_HEADS + head) * D
    else:
        kv_head = (head - Q_HEADS) % KV_HEADS
        place = ((index // PAGE_SIZE * KV_HEADS + kv_head) * PAGE_SIZE + index % PAGE_SIZE) * D
        base = (k_pages if head < Q_HEADS + KV_HEADS else v_pages) + place[None, :]
    tl.store(base + lane[:, None], low.to(q_out.dtype.element_ty), mask=mask)
    tl.store(base + lane[:, None] + HALF, high.to(q_out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows", "last_position"])
def _linear_kernel(
    x, squares, weight, weight_scale, bias, residual, norm_weight, out, out_scaled, out_squares, scratch, arrivals,
    cos, sin, positions, k_pages, v_pages, write_index,
    rows, last_position, eps, stride_x, stride_residual,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr, PARTS: tl.constexpr, PARTS_PAD: tl.constexpr, EPILOGUE: tl.constexpr, BIAS: tl.constexpr,
    NORM: tl.constexpr, Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE_SIZE: tl.constexpr,
    FP8: tl.constexpr, STAGES: tl.constexpr, BY_DESCRIPTOR: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    split = tl.program_id(1)
    m = tl.arange(0, BLOCK_M)
    lanes = tl.arange(0, BLOCK_N)
    GLU: tl.constexpr = EPILOGUE == 1
    ROPE: tl.constexpr = EPILOGUE == 3
    TILE_N: tl.constexpr = 2 * BLOCK_N if ROPE else BLOCK_N
    tile_lanes = tl.arange(0, TILE_N)
    if ROPE:  # a block of a head's lower half above the same block of its upper half, which lies D / 2 rows below
        BLOCKS: tl.constexpr = (D // 2 + BLOCK_N - 1) // BLOCK_N
        head = tile // BLOCKS
        lane = tile % BLOCKS * BLOCK_N + lanes
        n = head * D + lane
        in_n = lane < D // 2
        tile_lane = tile % BLOCKS * BLOCK_N + tile_lanes % BLOCK_N
        tile_n = head * D + tile_lane + tile_lanes // BLOCK_N * (D // 2)
        in_tile = tile_lane < D // 2
    else:
        n = tile * BLOCK_N + lanes
        in_n = n < N
        tile_n = n
        in_tile = in_n
    other_n: tl.constexpr = D // 2 if ROPE else N
    in_m = m < rows
    mask = in_n[:, None] & in_m[None, :]
    k_lanes = tl.arange(0, BLOCK_K)
    steps: tl.constexpr = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLITS)
    first = split * steps * BLOCK_K
    # Before the wait: what the launch directly before this one does not write.
    if BIAS:
        bias_low = tl.load(bias + n, mask=in_n, other=0.0)
        if GLU or ROPE:
            bias_high = tl.load(bias + n + other_n, mask=in_n, other=0.0)
    if FP8:
        by_low = tl.load(weight_scale + n, mask=in_n, other=0.0)
        if GLU or ROPE:
            by_high = tl.load(weight_scale + n + other_n, mask=in_n, other=0.0)
    if NORM:
        norm_by = tl.load(norm_weight + n, mask=in_n, other=0.0)
    if ROPE:
        position = tl.load(positions + m, mask=in_m, other=0)
        index = tl.load(write_index + m, mask=in_m, other=0)
        turns = mask & (head < Q_HEADS + KV_HEADS)
        if EARLY:
            c_low, s_low, c_high, s_high = _load_turns(cos, sin, position, last_position, lane, turns, D)
    wait_for_inputs(PDL)
    if EPILOGUE == 2:
        residual_at = residual + m[None, :].to(tl.int64) * stride_residual + n[:, None]
        if EARLY:
            before = tl.load(residual_at, mask=mask, other=0.0)
    if EARLY and PARTS > 0:
        sums = _load_squares(squares, m, rows, PARTS, PARTS_PAD)

    acc = tl.zeros([TILE_N, BLOCK_M], tl.float32)
    two = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        first_k = first + step * BLOCK_K
        if BY_DESCRIPTOR:
            x_tile = x.load([0, first_k]).T
            w_tile = weight.load([tile * BLOCK_N, first_k])
            if GLU:
                w_two = weight.load([tile * BLOCK_N + N, first_k])
        else:
            k = first_k + k_lanes
            w_mask = in_tile[:, None] & (k[None, :] < K)
            x_at = x + m[None, :].to(tl.int64) * stride_x + k[:, None]
            x_tile = tl.load(x_at, mask=(m[None, :] < rows) & (k[:, None] < K), other=0.0)
            w_at = weight + tile_n.to(tl.int64)[:, None] * K + k[None, :]
            w_tile = tl.load(w_at, mask=w_mask, other=0.0)
            if GLU:
                w_two = tl.load(w_at + N * K, mask=w_mask, other=0.0)
        acc = tl.dot(w_tile.to(x_tile.dtype), x_tile, acc, input_precision="ieee")
        if GLU:
            two = tl.dot(w_two.to(x_tile.dtype), x_tile, two, input_precision="ieee")
    let_next_start(PDL)

    if SPLITS > 1:
        PART: tl.constexpr = TILE_N * BLOCK_M * (2 if GLU else 1)
        entry = tile_lanes[:, None] * BLOCK_M + m[None, :]
        mine = scratch + (tile * SPLITS + split) * PART + entry
        tl.store(mine, acc)
        if GLU:
            tl.store(mine + BLOCK_N * BLOCK_M, two)
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals + tile, 1, sem="acq_rel")
        if arrived < SPLITS - 1:
            return
        tl.store(arrivals + tile, 0)
        acc = tl.zeros([TILE_N, BLOCK_M], tl.float32)
        two = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for other in tl.static_range(SPLITS):
            theirs = scratch + (tile * SPLITS + other) * PART + entry
            acc += tl.load(theirs, cache_modifier=".cg")
            if GLU:
                two += tl.load(theirs + BLOCK_N * BLOCK_M, cache_modifier=".cg")

    if ROPE:
        acc, two = acc.reshape(2, BLOCK_N, BLOCK_M).permute(1, 2, 0).split()
    if FP8:
        acc *= by_low[:, None]
        if GLU or ROPE:
            two *= by_high[:, None]
    if PARTS > 0:
        if not EARLY:
            sums = _load_squares(squares, m, rows, PARTS, PARTS_PAD)
        scale = tl.rsqrt(tl.sum(sums, 0) / K + eps)
        acc *= scale[None, :]
        two *= scale[None, :]
    if BIAS:
        acc += bias_low.to(tl.float32)[:, None]
        if GLU or ROPE:
            two += bias_high.to(tl.float32)[:, None]
    if ROPE:
        if not EARLY:
            c_low, s_low, c_high, s_high = _load_turns(cos, sin, position, last_position, lane, turns, D)
        _store_rotated(
            acc, two, c_low, s_low, c_high, s_high, lane, mask, head, m, out, k_pages, v_pages, index,
            Q_HEADS, KV_HEADS, D, PAGE_SIZE,
        )  # fmt: skip
        return
    if GLU:
        acc = acc / (1.0 + tl.exp(-acc)) * two
    if EPILOGUE == 2:
        if not EARLY:
            before = tl.load(residual_at, mask=mask, other=0.0)
        acc += before.to(tl.float32)
    value = acc.to(out.dtype.element_ty)
    tl.store(out + m[None, :].to(tl.int64) * N + n[:, None], value, mask=mask)
    if NORM:
        h = tl.where(mask, value.to(tl.float32), 0.0)
        scaled = (h * norm_by.to(tl.float32)[:, None]).to(out.dtype.element_ty)
        tl.store(out_scaled + m[None, :].to(tl.int64) * N + n[:, None], scaled, mask=mask)
        tl.store(out_squares + tile * rows + m, tl.sum(h * h, 0), mask=in_m)


class Tiling(NamedTuple):
    """How a product is cut; chosen from shapes alone, measured on an H200 (docs/performance.md)."""

    block_n: int
    block_k: int
    splits: int
    stages: int
    warps: int
    by_descriptor: bool
    """Tiles come through the tensor memory accelerator instead of a load a thread. Not for ROPE."""


@cache
def tiling(rows: int, n: int, k: int, *, epilogue: int, itemsize: int, head_dim: int = 0) -> Tiling:
    """The tiling of a product of so many rows. For ROPE n counts the lower halves of all heads, as does block_n."""
    wide, large = rows > 32, epilogue == PLAIN and n >= LARGE
    block_n, block_k, stages, warps = 64, 128, 4, 4
    # Splits share K until there are so many programs, each with so many steps at least: enough bytes in flight.
    programs, steps = 96 if wide else 128, 4
    if epilogue == ROPE:
        block_n, stages, programs = min(32, max(16, power_of_2(head_dim // 2))), 6, 96
    elif epilogue == GLU and wide:
        block_k = 64
        stages = 3 if -(-n // block_n) > _PROCESSORS else 4
    elif large and wide:
        block_n, block_k = 128, 64
        stages, warps = (3, 4) if rows > MAX_ROWS else (4, 8)
    elif epilogue == RESIDUAL and wide:
        stages, warps = (5, 8) if k > n else (4, 4)
    elif epilogue == RESIDUAL and k <= n:
        stages, steps = 6, 8
    elif epilogue == RESIDUAL and rows > 16:
        warps = 8
    elif epilogue == RESIDUAL:
        programs, steps = 256, 16
    elif epilogue == PLAIN and not wide and not large:
        block_n, block_k = 32, 256
    block_k = block_k * 2 // itemsize
    splits, tiles = 1, -(-n // block_n)
    while epilogue != GLU and tiles * splits < programs and splits < 8 and k // (2 * splits) >= steps * block_k:
        splits *= 2
    if epilogue == RESIDUAL and tiles * splits > _PROCESSORS:
        stages = min(stages, 3)  # two programs share a processor's memory
    return Tiling(block_n, block_k, splits, stages, warps, wide and (large or epilogue == GLU))


class Rope(NamedTuple):
    """What the ROPE epilogue needs beside the product; see `specpipe_kernels.linear_rope_store_kv`."""

    cos: Tensor
    sin: Tensor
    positions: Tensor
    k_pages: Tensor
    v_pages: Tensor
    write_index: Tensor
    q_heads: int


def _launch(
    x: Tensor | Normed,
    given: Tensor | Fp8Weight,
    epilogue: int,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    norm_weight: Tensor | None = None,
    rope: Rope | None = None,
    tiles: Tiling | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    values, squares, eps = x if isinstance(x, Normed) else (x, None, 0.0)
    rows, k = values.shape
    fp8 = given if isinstance(given, Fp8Weight) and rows <= MAX_FP8_ROWS else None
    weight = full_weight(given) if fp8 is None else fp8.values
    assert rows <= MAX_GLU_ROWS and weight.is_contiguous() and values.stride(1) == 1
    n, dim, kv_heads, page_size = weight.shape[0] // (1 + (epilogue == GLU)), 0, 1, 1
    out_shape, halves = (rows, n), n
    if rope is not None:
        _, kv_heads, page_size, dim = rope.k_pages.shape
        out_shape, halves = (rows, rope.q_heads * dim), n // 2
    cut = tiles or tiling(rows, halves, k, epilogue=epilogue, itemsize=values.element_size(), head_dim=dim)
    if fp8 is not None and tiles is None:
        cut = cut._replace(stages=cut.stages + 2)  # half the bytes a stage: more of them in flight
    count = n // dim * cdiv(dim // 2, cut.block_n) if rope is not None else cdiv(n, cut.block_n)
    block_m = max(16, power_of_2(rows))
    out = values.new_empty(out_shape) if out is None else out
    scaled = torch.empty_like(out) if norm_weight is not None else out
    parts = out.new_empty(count, rows, dtype=torch.float32) if norm_weight is not None else out
    part = cut.block_n * block_m * (2 if epilogue in (GLU, ROPE) else 1)
    scratch = out.new_empty(count * cut.splits * part if cut.splits > 1 else 1, dtype=torch.float32)
    PARTS = 0 if squares is None else squares.shape[0]
    cos, sin, positions, k_pages, v_pages, index, q_heads = rope or (out, out, out, out, out, out, 0)
    x_in: Any = values
    w_in: Any = weight
    if cut.by_descriptor and _has_descriptors(values, weight):
        x_in = TensorDescriptor.from_tensor(values, [block_m, cut.block_k])
        w_in = TensorDescriptor.from_tensor(weight, [cut.block_n, cut.block_k])
    _linear_kernel[(count, cut.splits)](
        x_in, values if squares is None else squares, w_in, weight if fp8 is None else fp8.scale,
        weight if bias is None else bias,
        out if residual is None else residual, weight if norm_weight is None else norm_weight, out, scaled, parts,
        scratch, arrival_counters(values.device), cos, sin, positions, k_pages, v_pages, index,
        rows, cos.shape[0] - 1, eps, values.stride(0), 0 if residual is None else residual.stride(0),
        N=n, K=k, BLOCK_M=block_m, BLOCK_N=cut.block_n, BLOCK_K=cut.block_k, SPLITS=cut.splits,
        PARTS=PARTS, PARTS_PAD=power_of_2(max(1, PARTS)), EPILOGUE=epilogue, BIAS=bias is not None,
        NORM=norm_weight is not None, Q_HEADS=q_heads, KV_HEADS=kv_heads, D=dim, PAGE_SIZE=page_size,
        FP8=fp8 is not None, STAGES=cut.stages, BY_DESCRIPTOR=x_in is not values,
        EARLY=_is_early(epilogue, cut, block_m, PARTS), num_warps=cut.warps, num_stages=cut.stages,
        **launch_options(values),
    )  # fmt: skip
    return out, scaled, parts


def _is_early(epilogue: int, cut: Tiling, block_m: int, parts: int) -> bool:
    """Whether registers hold what the epilogue reads beside the sums."""
    tile_values = {ROPE: 4, RESIDUAL: 1}.get(epilogue, 0) * cut.block_n * block_m
    part_values = power_of_2(parts) * block_m if parts else 0
    return tile_values + part_values <= _EARLY_VALUES * 32 * cut.warps


def _has_descriptors(*tensors: Tensor) -> bool:
    """A descriptor wants rows of whole 16 bytes."""
    return all(t.data_ptr() % 16 == 0 and t.stride(0) * t.element_size() % 16 == 0 for t in tensors)


def _is_narrow(values: Tensor, limit: int = MAX_ROWS) -> bool:
    """Whether the bytes of the weights decide; fp32 products gain nothing from a matrix unit here."""
    return values.shape[0] <= limit and values.element_size() == 2


def _complete(x: Tensor | Normed) -> Tensor:
    if isinstance(x, Normed):
        assert x.squares is None, "rows normed for a narrow product in a wide one"
        return x.values
    return x


def linear(
    x: Tensor | Normed, weight: Tensor | Fp8Weight, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """See `specpipe_kernels.linear`."""
    values = x.values if isinstance(x, Normed) else x
    outputs = (weight.values if isinstance(weight, Fp8Weight) else weight).shape[0]
    if not values.shape[0]:  # a prefill asks for no logits
        return values.new_empty(0, outputs) if out is None else out
    if _is_narrow(values, MAX_GLU_ROWS if outputs >= LARGE else MAX_ROWS):
        return _launch(x, weight, PLAIN, bias=bias, out=out)[0]
    if bias is None and out is not None:
        return torch.mm(_complete(x), full_weight(weight).t(), out=out)
    product = functional.linear(_complete(x), full_weight(weight), bias)
    return product if out is None else out.copy_(product)


def linear_glu(x: Tensor | Normed, weight: Tensor | Fp8Weight) -> Tensor:
    """See `specpipe_kernels.linear_glu`."""
    values = x.values if isinstance(x, Normed) else x
    if _is_narrow(values, MAX_GLU_ROWS):
        return _launch(x, weight, GLU)[0]
    return silu_mul(functional.linear(_complete(x), full_weight(weight)))


def linear_residual(
    x: Tensor, weight: Tensor | Fp8Weight, residual: Tensor, norm_weight: Tensor | None, eps: float
) -> tuple[Tensor, Normed]:
    """See `specpipe_kernels.linear_residual`."""
    if _is_narrow(x):
        out, scaled, parts = _launch(x, weight, RESIDUAL, residual=residual, norm_weight=norm_weight)
        return out, Normed(scaled, parts, eps)
    product = functional.linear(x, full_weight(weight))
    if norm_weight is None:
        out = product.add_(residual)
        return out, Normed(out, None, eps)
    out, normed = add_rms_norm(product, residual, norm_weight, eps)
    return out, Normed(normed, None, eps)


def linear_rope_store_kv(
    x: Tensor | Normed,
    weight: Tensor | Fp8Weight,
    bias: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    write_index: Tensor,
    *,
    q_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """See `specpipe_kernels.linear_rope_store_kv`."""
    values = x.values if isinstance(x, Normed) else x
    if _is_narrow(values) and q_norm is None:
        rope = Rope(cos, sin, positions, k_pages, v_pages, write_index, q_heads)
        return _launch(x, weight, ROPE, bias=bias, rope=rope)[0].view(values.shape[0], q_heads, -1)
    return rope_store_kv(
        linear(x, weight, bias), cos, sin, positions, k_pages, v_pages, write_index, q_heads=q_heads, q_norm=q_norm,
        k_norm=k_norm, eps=eps,
    )  # fmt: skip
