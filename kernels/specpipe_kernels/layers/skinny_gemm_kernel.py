"""The skinny GEMM kernel: x [M, K] times w [N, K] transposed for few rows, bound by the bytes of the weights.

A program owns BLOCK_N rows of the weights and streams them once; the M rows of x (at most MAX_ROWS, or MAX_GLU_ROWS
where two weights share a tile of x) are the short side of its matrix tile. Where N alone gives too few programs to
saturate the memory, SPLITS programs share K; the last one to arrive adds the parts in a fixed order, so that results do
not depend on timing. Weights in 8 bits (up to MAX_FP8_ROWS) are converted in registers; their scales, one per output,
are applied to the sums.

Epilogues fuse the element-wise work of a decoder layer:
- GLU: a program owns the same rows of the gate and of the up projection and multiplies the results;
- RESIDUAL: the residual is added, and an RMS norm is left pending: the kernel writes h, h * norm_weight, and the sum of
  h² over each program's columns. The next product scales its sums by rsqrt(mean h² + eps);
- ROPE: a program owns both halves of a rotation, one tile of the matrix unit; queries are rotated, keys and values are
  stored in their pages.

With PREFETCH, the epilogue's inputs are loaded before the products, which hides their latency; registers must suffice.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specpipe_kernels.runtime.dependent_launch import let_next_start, wait_for_inputs

PLAIN, GLU, RESIDUAL, ROPE = 0, 1, 2, 3
"""Epilogues."""


@triton.jit
def _load_squares(squares, m, rows, PARTS: tl.constexpr, PARTS_PAD: tl.constexpr):
    """Returns [PARTS_PAD, M]: partial sums of the squares of rows m."""
    part = tl.arange(0, PARTS_PAD)
    at = squares + part[:, None] * rows + m[None, :]
    return tl.load(at, mask=(part[:, None] < PARTS) & (m[None, :] < rows), other=0.0)


@triton.jit
def _load_rotations(cos, sin, position, last_position, lane, mask, D: tl.constexpr):
    """Returns cos and sin of the lower half of a head, then of its upper half, each [lanes, M]."""
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
    """Rotates q and k, and stores the halves low and high [lanes, M] of a head of every token in q_out or the pages."""
    HALF: tl.constexpr = D // 2
    if head < Q_HEADS + KV_HEADS:
        # Rounded before the rotation, as if the projection had been stored.
        low = low.to(q_out.dtype.element_ty).to(tl.float32)
        high = high.to(q_out.dtype.element_ty).to(tl.float32)
        rotated = low * c_low.to(tl.float32) - high * s_low.to(tl.float32)
        high = high * c_high.to(tl.float32) + low * s_high.to(tl.float32)
        low = rotated
    if head < Q_HEADS:
        base = q_out + (m[None, :].to(tl.int64) * Q_HEADS + head) * D
    else:
        kv_head = (head - Q_HEADS) % KV_HEADS
        place = ((index // PAGE_SIZE * KV_HEADS + kv_head) * PAGE_SIZE + index % PAGE_SIZE) * D
        base = (k_pages if head < Q_HEADS + KV_HEADS else v_pages) + place[None, :]
    tl.store(base + lane[:, None], low.to(q_out.dtype.element_ty), mask=mask)
    tl.store(base + lane[:, None] + HALF, high.to(q_out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows", "last_position"])
def _skinny_gemm_kernel(
    x, squares, weight, weight_scale, bias, residual, norm_weight, out, out_scaled, out_squares, scratch, arrivals,
    cos, sin, positions, k_pages, v_pages, write_index,
    rows, last_position, eps, stride_x, stride_residual,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr, PARTS: tl.constexpr, PARTS_PAD: tl.constexpr, EPILOGUE: tl.constexpr, BIAS: tl.constexpr,
    NORM: tl.constexpr, Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE_SIZE: tl.constexpr,
    FP8: tl.constexpr, STAGES: tl.constexpr, BY_DESCRIPTOR: tl.constexpr, PREFETCH: tl.constexpr, PDL: tl.constexpr,
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
    # Loaded before the wait: memory that the previous launch does not write.
    if BIAS:
        bias_low = tl.load(bias + n, mask=in_n, other=0.0)
        if GLU or ROPE:
            bias_high = tl.load(bias + n + other_n, mask=in_n, other=0.0)
    if FP8:
        scale_low = tl.load(weight_scale + n, mask=in_n, other=0.0)
        if GLU or ROPE:
            scale_high = tl.load(weight_scale + n + other_n, mask=in_n, other=0.0)
    if NORM:
        norm_scale = tl.load(norm_weight + n, mask=in_n, other=0.0)
    if ROPE:
        position = tl.load(positions + m, mask=in_m, other=0)
        index = tl.load(write_index + m, mask=in_m, other=0)
        rotated_mask = mask & (head < Q_HEADS + KV_HEADS)
        if PREFETCH:
            c_low, s_low, c_high, s_high = _load_rotations(cos, sin, position, last_position, lane, rotated_mask, D)
    wait_for_inputs(PDL)
    if EPILOGUE == 2:
        residual_at = residual + m[None, :].to(tl.int64) * stride_residual + n[:, None]
        if PREFETCH:
            residual_tile = tl.load(residual_at, mask=mask, other=0.0)
    if PREFETCH and PARTS > 0:
        sums = _load_squares(squares, m, rows, PARTS, PARTS_PAD)

    acc = tl.zeros([TILE_N, BLOCK_M], tl.float32)
    acc_high = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        first_k = first + step * BLOCK_K
        if BY_DESCRIPTOR:
            # The loads are adjacent, so that Triton makes them arrive at one barrier.
            x_rows = x.load([0, first_k])
            w_tile = weight.load([tile * BLOCK_N, first_k])
            if GLU:
                w_high = weight.load([tile * BLOCK_N + N, first_k])
            x_tile = x_rows.T
        else:
            k = first_k + k_lanes
            w_mask = in_tile[:, None] & (k[None, :] < K)
            x_at = x + m[None, :].to(tl.int64) * stride_x + k[:, None]
            x_tile = tl.load(x_at, mask=(m[None, :] < rows) & (k[:, None] < K), other=0.0)
            w_at = weight + tile_n.to(tl.int64)[:, None] * K + k[None, :]
            w_tile = tl.load(w_at, mask=w_mask, other=0.0)
            if GLU:
                w_high = tl.load(w_at + N * K, mask=w_mask, other=0.0)
        acc = tl.dot(w_tile.to(x_tile.dtype), x_tile, acc, input_precision="ieee")
        if GLU:
            acc_high = tl.dot(w_high.to(x_tile.dtype), x_tile, acc_high, input_precision="ieee")
    let_next_start(PDL)

    if SPLITS > 1:
        PART: tl.constexpr = TILE_N * BLOCK_M * (2 if GLU else 1)
        entry = tile_lanes[:, None] * BLOCK_M + m[None, :]
        own_part = scratch + (tile * SPLITS + split) * PART + entry
        tl.store(own_part, acc)
        if GLU:
            tl.store(own_part + BLOCK_N * BLOCK_M, acc_high)
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals + tile, 1, sem="acq_rel")
        if arrived < SPLITS - 1:
            return
        tl.store(arrivals + tile, 0)
        acc = tl.zeros([TILE_N, BLOCK_M], tl.float32)
        acc_high = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for other in tl.static_range(SPLITS):
            other_part = scratch + (tile * SPLITS + other) * PART + entry
            acc += tl.load(other_part, cache_modifier=".cg")
            if GLU:
                acc_high += tl.load(other_part + BLOCK_N * BLOCK_M, cache_modifier=".cg")

    if ROPE:
        acc, acc_high = acc.reshape(2, BLOCK_N, BLOCK_M).permute(1, 2, 0).split()
    if FP8:
        acc *= scale_low[:, None]
        if GLU or ROPE:
            acc_high *= scale_high[:, None]
    if PARTS > 0:
        if not PREFETCH:
            sums = _load_squares(squares, m, rows, PARTS, PARTS_PAD)
        scale = tl.rsqrt(tl.sum(sums, 0) / K + eps)
        acc *= scale[None, :]
        acc_high *= scale[None, :]
    if BIAS:
        acc += bias_low.to(tl.float32)[:, None]
        if GLU or ROPE:
            acc_high += bias_high.to(tl.float32)[:, None]
    if ROPE:
        if not PREFETCH:
            c_low, s_low, c_high, s_high = _load_rotations(cos, sin, position, last_position, lane, rotated_mask, D)
        _store_rotated(
            acc, acc_high, c_low, s_low, c_high, s_high, lane, mask, head, m, out, k_pages, v_pages, index,
            Q_HEADS, KV_HEADS, D, PAGE_SIZE,
        )  # fmt: skip
        return
    if GLU:
        acc = acc / (1.0 + tl.exp(-acc)) * acc_high
    if EPILOGUE == 2:
        if not PREFETCH:
            residual_tile = tl.load(residual_at, mask=mask, other=0.0)
        acc += residual_tile.to(tl.float32)
    value = acc.to(out.dtype.element_ty)
    tl.store(out + m[None, :].to(tl.int64) * N + n[:, None], value, mask=mask)
    if NORM:
        h = tl.where(mask, value.to(tl.float32), 0.0)
        scaled = (h * norm_scale.to(tl.float32)[:, None]).to(out.dtype.element_ty)
        tl.store(out_scaled + m[None, :].to(tl.int64) * N + n[:, None], scaled, mask=mask)
        tl.store(out_squares + tile * rows + m, tl.sum(h * h, 0), mask=in_m)
