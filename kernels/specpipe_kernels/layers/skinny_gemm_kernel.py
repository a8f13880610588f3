"""The skinny GEMM kernel: x [M, K] times w [N, K] transposed for few rows, bound by the bytes of the weights.

A program owns BLOCK_N rows of the weights and streams them once; the M rows of x (at most MAX_ROWS, or MAX_GLU_ROWS
where two weights share a tile of x) are the short side of its matrix tile. Where N alone gives too few programs to
saturate the memory, SPLITS programs share K; the last one to arrive adds the parts in a fixed order, so that results do
not depend on timing.

x and w in 8 bits go to the matrix unit as they are. Scales that change along K (of groups of columns of x, of blocks of
w) are applied to the sums of each step, the others to those of all steps.

Epilogues fuse the element-wise work of a decoder layer:
- GLU: a program owns the same rows of the gate and of the up projection and multiplies the results, which it may round
  to 8 bits;
- RESIDUAL: the residual is added, and an RMS norm is left pending: the kernel writes h, h * norm_weight (also in
  8 bits), and the sum of h² over each program's columns. The next product scales its sums by rsqrt(mean h² + eps);
- ROPE: a program owns both halves of a rotation, one tile of the matrix unit; queries are rotated, keys and values are
  stored in their pages. With norms of queries and keys it owns a whole head.

With PREFETCH, the epilogue's inputs are loaded before the products, which hides their latency; registers must suffice.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specpipe_kernels.layers.quantize_fp8 import fp8_scale, to_fp8
from specpipe_kernels.layers.quantized.int4_tile import multiply_int4
from specpipe_kernels.layers.quantized.page_entries import to_page_entries
from specpipe_kernels.runtime.dependent_launch import let_next_start, wait_for_inputs

PLAIN, GLU, RESIDUAL, ROPE = 0, 1, 2, 3
"""Epilogues."""


@triton.jit
def load_squares(squares, m, rows, PARTS: tl.constexpr, PARTS_PAD: tl.constexpr):
    """Returns [PARTS_PAD, M]: partial sums of the squares of rows m."""
    part = tl.arange(0, PARTS_PAD)
    at = squares + part[:, None] * rows + m[None, :]
    return tl.load(at, mask=(part[:, None] < PARTS) & (m[None, :] < rows), other=0.0)


@triton.jit
def _load_rotations(rope, position, last_position, lane, mask, D: tl.constexpr):
    """Returns cos and sin of the lower half of a head, then of its upper half, each [lanes, M]."""
    HALF: tl.constexpr = D // 2
    at = tl.minimum(tl.maximum(position, 0), last_position)[None, :] * D + lane[:, None]
    c_low = tl.load(rope.cos + at, mask=mask, other=0.0)
    s_low = tl.load(rope.sin + at, mask=mask, other=0.0)
    c_high = tl.load(rope.cos + at + HALF, mask=mask, other=0.0)
    s_high = tl.load(rope.sin + at + HALF, mask=mask, other=0.0)
    return c_low, s_low, c_high, s_high


@triton.jit
def _store_in_8_bits(low, high, lane, mask, head, m, q_out, rope, index, HEADS: tl.constexpr):
    """Stores halves [lanes, M] of a head of every token in q_out, or over their scale in the pages."""
    D: tl.constexpr = HEADS.dim
    HALF: tl.constexpr = D // 2
    low = low.to(q_out.dtype.element_ty)  # of the pages too, as if the projection had been stored
    high = high.to(q_out.dtype.element_ty)
    if head < HEADS.q_heads:
        q_at = q_out + (m[None, :].to(tl.int64) * HEADS.q_heads + head) * D + lane[:, None]
        tl.store(q_at, low, mask=mask)
        tl.store(q_at + HALF, high, mask=mask)
    else:
        kv_head = (head - HEADS.q_heads) % HEADS.kv_heads
        is_key = head < HEADS.q_heads + HEADS.kv_heads
        pages = rope.k_pages if is_key else rope.v_pages
        scale = tl.load((rope.k_scale if is_key else rope.v_scale) + kv_head)
        line = index // HEADS.page_size * HEADS.kv_heads + kv_head
        at = pages + ((line * HEADS.page_size + index % HEADS.page_size) * D)[None, :] + lane[:, None]
        tl.store(at, to_page_entries(low, scale), mask=mask)
        tl.store(at + HALF, to_page_entries(high, scale), mask=mask)


@triton.jit
def _store_rotated(
    low, high, rotations, norm_low, norm_high, head_eps, lane, mask, head, m, q_out, rope, index,
    HEADS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Rotates q and k, and stores the halves low and high [lanes, M] of a head of every token in q_out or the pages.

    NORM: the head is complete, and divided by its root mean square, times norm_low and norm_high [lanes], before.
    """
    Q_HEADS: tl.constexpr = HEADS.q_heads
    KV_HEADS: tl.constexpr = HEADS.kv_heads
    PAGE_SIZE: tl.constexpr = HEADS.page_size
    D: tl.constexpr = HEADS.dim
    HALF: tl.constexpr = D // 2
    c_low, s_low, c_high, s_high = rotations
    if head < Q_HEADS + KV_HEADS:
        # Rounded before the rotation, as if the projection had been stored.
        low = low.to(q_out.dtype.element_ty).to(tl.float32)
        high = high.to(q_out.dtype.element_ty).to(tl.float32)
        if NORM:
            scale = tl.rsqrt((tl.sum(low * low, 0) + tl.sum(high * high, 0)) / D + head_eps)[None, :]
            low *= scale * norm_low.to(tl.float32)[:, None]
            high *= scale * norm_high.to(tl.float32)[:, None]
        rotated = low * c_low.to(tl.float32) - high * s_low.to(tl.float32)
        high = high * c_high.to(tl.float32) + low * s_high.to(tl.float32)
        low = rotated
    if rope.k_scale is not None:
        _store_in_8_bits(low, high, lane, mask, head, m, q_out, rope, index, HEADS)
    else:
        if head < Q_HEADS:
            base = q_out + (m[None, :].to(tl.int64) * Q_HEADS + head) * D
        else:
            kv_head = (head - Q_HEADS) % KV_HEADS
            place = ((index // PAGE_SIZE * KV_HEADS + kv_head) * PAGE_SIZE + index % PAGE_SIZE) * D
            base = (rope.k_pages if head < Q_HEADS + KV_HEADS else rope.v_pages) + place[None, :]
        tl.store(base + lane[:, None], low.to(q_out.dtype.element_ty), mask=mask)
        tl.store(base + lane[:, None] + HALF, high.to(q_out.dtype.element_ty), mask=mask)


@triton.jit
def _outputs_of_tile(tile, N: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, ROPE: tl.constexpr):
    """Returns a tile's outputs n and their mask [BLOCK_N], its rows of the weight and their mask, and n in its head.

    With ROPE, the rows of the weight [2 * BLOCK_N] are a block of a head's lower half and then the same block of its
    upper half, which lies D / 2 rows below; n is the lower half. The last result is the head and [BLOCK_N] entries.
    """
    lanes = tl.arange(0, BLOCK_N)
    if ROPE:
        BLOCKS: tl.constexpr = (D // 2 + BLOCK_N - 1) // BLOCK_N
        tile_lanes = tl.arange(0, 2 * BLOCK_N)
        head = tile // BLOCKS
        lane = tile % BLOCKS * BLOCK_N + lanes
        n = head * D + lane
        in_n = lane < D // 2
        tile_lane = tile % BLOCKS * BLOCK_N + tile_lanes % BLOCK_N
        tile_n = head * D + tile_lane + tile_lanes // BLOCK_N * (D // 2)
        in_tile = tile_lane < D // 2
    else:
        head = tile
        lane = lanes
        n = tile * BLOCK_N + lanes
        in_n = n < N
        tile_n = n
        in_tile = in_n
    return n, in_n, tile_n, in_tile, head, lane


@triton.jit
def _load_outputs(source, n, in_n, PAIR: tl.constexpr):
    """Returns values [BLOCK_N] of the outputs n, and of those PAIR entries further; twice the same if PAIR is 0."""
    low = tl.load(source + n, mask=in_n, other=0.0)
    high = low
    if PAIR > 0:
        high = tl.load(source + n + PAIR, mask=in_n, other=0.0)
    return low, high


@triton.jit
def _load_rows(x, first_k, k_lanes, m, rows, stride_x, SIZES: tl.constexpr, TILES: tl.constexpr):
    """Returns the columns of a step of x, transposed: [BLOCK_K, BLOCK_M]."""
    if TILES.by_descriptor:
        x_rows = x.load([0, first_k])
        x_tile = x_rows.T
    else:
        k = first_k + k_lanes
        in_k = (k < SIZES.k) & (k_lanes < SIZES.step)
        at = x + m[None, :].to(tl.int64) * stride_x + k[:, None]
        x_tile = tl.load(at, mask=(m[None, :] < rows) & in_k[:, None], other=0.0)
    return x_tile


@triton.jit
def _load_weight(
    weight, tile, first_k, k_lanes, tile_n, in_tile, SIZES: tl.constexpr, TILES: tl.constexpr, GLU: tl.constexpr
):
    """Returns the columns of a step of the weight [TILE_N, BLOCK_K], and with GLU those of the up projection."""
    N: tl.constexpr = SIZES.n
    K: tl.constexpr = SIZES.k
    if TILES.by_descriptor:
        w_tile = weight.load([tile * TILES.block_n, first_k])
        w_high = w_tile
        if GLU:
            w_high = weight.load([tile * TILES.block_n + N, first_k])
    else:
        k = first_k + k_lanes
        in_k = (k < K) & (k_lanes < SIZES.step)
        at = weight + tile_n.to(tl.int64)[:, None] * K + k[None, :]
        mask = in_tile[:, None] & in_k[None, :]
        w_tile = tl.load(at, mask=mask, other=0.0)
        w_high = w_tile
        if GLU:
            w_high = tl.load(at + N * K, mask=mask, other=0.0)
    return w_tile, w_high


@triton.jit
def _row_scales(inputs, first_k, m, rows, SIZES: tl.constexpr):
    """Returns the scales of x [BLOCK_M] for a step; 1 where a row has one scale."""
    BLOCK_M: tl.constexpr = SIZES.block_m
    if SIZES.x_group > 0:
        at = inputs.x_scale + first_k // SIZES.x_group * rows + m
        scale = tl.load(at, mask=(m < rows) & (first_k < SIZES.k), other=0.0)
    else:
        scale = tl.full([BLOCK_M], 1.0, tl.float32)
    return scale


@triton.jit
def _weight_scales(inputs, first_k, tile_n, in_tile, SIZES: tl.constexpr, GLU: tl.constexpr):
    """Returns the scales of the weight [TILE_N, 1] for a step, and with GLU of the up projection; 1 with channels."""
    scale, scale_high = 1.0, 1.0
    if SIZES.scale_columns > 0:
        ROW: tl.constexpr = (SIZES.k + SIZES.scale_columns - 1) // SIZES.scale_columns
        at = inputs.weight_scale + first_k // SIZES.scale_columns
        mask = in_tile & (first_k < SIZES.k)
        scale = tl.load(at + tile_n // SIZES.scale_rows * ROW, mask=mask, other=0.0)[:, None]
        if GLU:
            high = at + (tile_n + SIZES.n) // SIZES.scale_rows * ROW
            scale_high = tl.load(high, mask=mask, other=0.0)[:, None]
    return scale, scale_high


@triton.jit
def _multiply(
    x, weight, inputs, tile, first, steps, k_lanes, m, rows, stride_x, tile_n, in_tile,
    SIZES: tl.constexpr, TILES: tl.constexpr, TILE_N: tl.constexpr, GLU: tl.constexpr,
):  # fmt: skip
    """Returns sums over a split of K [TILE_N, BLOCK_M], and with GLU those of the up projection [BLOCK_N, BLOCK_M].

    first: first entry of K. k_lanes [BLOCK_K] and first come from the kernel, ahead of its loads.

    In 8 bits the matrix unit keeps fewer than 24 bits of its sums: those of a step are added in fp32 outside of it.
    """
    BLOCK_M: tl.constexpr = SIZES.block_m
    BLOCK_N: tl.constexpr = TILES.block_n
    acc = tl.zeros([TILE_N, BLOCK_M], tl.float32)
    acc_high = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for step in tl.range(0, steps, num_stages=TILES.stages):
        first_k = first + step * SIZES.step
        # With descriptors, the loads are adjacent, so that Triton makes them arrive at one barrier.
        x_tile = _load_rows(x, first_k, k_lanes, m, rows, stride_x, SIZES, TILES)
        w_tile, w_high = _load_weight(weight, tile, first_k, k_lanes, tile_n, in_tile, SIZES, TILES, GLU)
        if SIZES.eight_bits:
            x_scale = _row_scales(inputs, first_k, m, rows, SIZES)[None, :]
            w_scale, w_scale_high = _weight_scales(inputs, first_k, tile_n, in_tile, SIZES, GLU)
            acc += tl.dot(w_tile, x_tile, out_dtype=tl.float32) * x_scale * w_scale
            if GLU:
                acc_high += tl.dot(w_high, x_tile, out_dtype=tl.float32) * x_scale * w_scale_high
        else:
            acc = tl.dot(w_tile, x_tile, acc, input_precision="ieee")
            if GLU:
                acc_high = tl.dot(w_high, x_tile, acc_high, input_precision="ieee")
    return acc, acc_high


@triton.jit
def store_sums(
    acc, acc_high, parts, tile, split, entry,
    OTHER: tl.constexpr, PART: tl.constexpr, SPLITS: tl.constexpr, mask=None,
):  # fmt: skip
    """Stores the sums of one split, and returns the number of splits of the tile that were stored before.

    entry, like acc: places in a part of PART values. acc_high lies OTHER values further; 0 where there is none.
    mask: sums that are needed; None: all.
    """
    own_part = parts.sums + (tile * SPLITS + split) * PART + entry
    tl.store(own_part, acc, mask=mask)
    if OTHER > 0:
        tl.store(own_part + OTHER, acc_high, mask=mask)
    tl.debug_barrier()
    return tl.atomic_add(parts.arrivals + tile, 1, sem="acq_rel")


@triton.jit
def add_splits(
    acc, acc_high, parts, tile, entry, OTHER: tl.constexpr, PART: tl.constexpr, SPLITS: tl.constexpr, mask=None
):
    """Returns the sums of all splits, added in order, in the shapes of acc and acc_high; resets the tile's counter.

    Sums outside of the mask are undefined.
    """
    tl.store(parts.arrivals + tile, 0)
    acc = tl.zeros(acc.shape, tl.float32)
    acc_high = tl.zeros(acc_high.shape, tl.float32)
    for other in tl.static_range(SPLITS):
        other_part = parts.sums + (tile * SPLITS + other) * PART + entry
        acc += tl.load(other_part, mask=mask, cache_modifier=".cg")
        if OTHER > 0:
            acc_high += tl.load(other_part + OTHER, mask=mask, cache_modifier=".cg")
    return acc, acc_high


@triton.jit
def _store_fp8(value, out, scales, tile, m, rows, n, mask, in_m, N: tl.constexpr):
    """Rounds [BLOCK_N, BLOCK_M] to 8 bits, with a scale for each token; stores both."""
    value = tl.where(mask, value, 0.0)
    scale = fp8_scale(tl.max(tl.abs(value), 0))
    tl.store(out + m[None, :].to(tl.int64) * N + n[:, None], to_fp8(value, scale[None, :]), mask=mask)
    tl.store(scales + tile * rows + m, scale, mask=in_m)


@triton.jit
def store_result(acc, outputs, norm_scale, tile, m, rows, n, mask, in_m, N: tl.constexpr):
    """Stores results [BLOCK_N, BLOCK_M] of the outputs n; with a pending norm also scaled values and squares."""
    value = acc.to(outputs.out.dtype.element_ty)
    tl.store(outputs.out + m[None, :].to(tl.int64) * N + n[:, None], value, mask=mask)
    if outputs.scaled is not None:
        h = tl.where(mask, value.to(tl.float32), 0.0)
        scaled = h * norm_scale.to(tl.float32)[:, None]
        if outputs.scale is not None:
            _store_fp8(scaled, outputs.scaled, outputs.scale, tile, m, rows, n, mask, in_m, N)
        else:
            at = outputs.scaled + m[None, :].to(tl.int64) * N + n[:, None]
            tl.store(at, scaled.to(outputs.out.dtype.element_ty), mask=mask)
        tl.store(outputs.squares + tile * rows + m, tl.sum(h * h, 0), mask=in_m)


@triton.jit(do_not_specialize=["rows", "last_position"])
def _skinny_gemm_kernel(
    x, weight, inputs, outputs, parts, rope, norms, rows, last_position, eps, head_eps, stride_x, stride_residual,
    SIZES: tl.constexpr, TILES: tl.constexpr, HEADS: tl.constexpr, EPILOGUE: tl.constexpr, PREFETCH: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    BLOCK_M: tl.constexpr = SIZES.block_m
    BLOCK_N: tl.constexpr = TILES.block_n
    SPLITS: tl.constexpr = TILES.splits
    PARTS: tl.constexpr = SIZES.parts
    D: tl.constexpr = HEADS.dim
    GLU: tl.constexpr = EPILOGUE == 1
    ROPE: tl.constexpr = EPILOGUE == 3
    TILE_N: tl.constexpr = 2 * BLOCK_N if ROPE else BLOCK_N
    HEAD_NORM: tl.constexpr = norms.q is not None
    PAIR: tl.constexpr = D // 2 if ROPE else (SIZES.n if GLU else 0)  # distance of the second output of a program
    tile = tl.program_id(0)
    split = tl.program_id(1)
    m = tl.arange(0, BLOCK_M)
    n, in_n, tile_n, in_tile, head, lane = _outputs_of_tile(tile, SIZES.n, BLOCK_N, D, ROPE)
    in_m = m < rows
    mask = in_n[:, None] & in_m[None, :]
    k_lanes = tl.arange(0, TILES.block_k)
    INT4: tl.constexpr = SIZES.scale_strides[0] + SIZES.scale_strides[1] > 0
    K: tl.constexpr = SIZES.k // 512 * 512 if INT4 else SIZES.k  # 4 bits: without short blocks
    steps = tl.cdiv(tl.cdiv(K, SIZES.step), SPLITS)
    first = split * steps * SIZES.step
    CHANNELS: tl.constexpr = inputs.weight_scale is not None and SIZES.scale_columns == 0
    # Loaded before the wait: memory that the previous launch does not write.
    if inputs.bias is not None:
        bias_low, bias_high = _load_outputs(inputs.bias, n, in_n, PAIR)
    if CHANNELS:
        scale_low, scale_high = _load_outputs(inputs.weight_scale, n, in_n, PAIR)
    norm_scale = 1.0
    if inputs.norm_weight is not None:
        norm_scale = tl.load(inputs.norm_weight + n, mask=in_n, other=0.0)
    if ROPE:
        position = tl.load(rope.positions + m, mask=in_m, other=0)
        index = tl.load(rope.write_index + m, mask=in_m, other=0)
        rotated_mask = mask & (head < HEADS.q_heads + HEADS.kv_heads)
        norm_low, norm_high = 1.0, 1.0
        if HEAD_NORM:
            norm_low, norm_high = _load_outputs(norms.q if head < HEADS.q_heads else norms.k, lane, in_n, PAIR)
        if PREFETCH:
            rotations = _load_rotations(rope, position, last_position, lane, rotated_mask, D)
    wait_for_inputs(PDL)
    if EPILOGUE == 2:
        residual_at = inputs.residual + m[None, :].to(tl.int64) * stride_residual + n[:, None]
        if PREFETCH:
            residual_tile = tl.load(residual_at, mask=mask, other=0.0)
    if PREFETCH and PARTS > 0:
        sums = load_squares(inputs.squares, m, rows, PARTS, SIZES.parts_pad)
    if INT4:
        acc, acc_high = multiply_int4(
            x, weight, inputs, first, steps, m, rows, stride_x, tile_n, in_tile, split == SPLITS - 1, SIZES, TILES,
            TILE_N, GLU, PDL,
        )  # fmt: skip
    else:
        acc, acc_high = _multiply(
            x, weight, inputs, tile, first, steps, k_lanes, m, rows, stride_x, tile_n, in_tile, SIZES, TILES, TILE_N,
            GLU,
        )  # fmt: skip
    let_next_start(PDL)
    if SPLITS > 1:
        PART: tl.constexpr = BLOCK_N * BLOCK_M * (2 if PAIR > 0 else 1)
        OTHER: tl.constexpr = BLOCK_N * BLOCK_M if GLU else 0
        entry = tl.arange(0, TILE_N)[:, None] * BLOCK_M + m[None, :]
        arrived = store_sums(acc, acc_high, parts, tile, split, entry, OTHER, PART, SPLITS)
        if arrived < SPLITS - 1:
            return
        acc, acc_high = add_splits(acc, acc_high, parts, tile, entry, OTHER, PART, SPLITS)

    if ROPE:
        acc, acc_high = acc.reshape(2, BLOCK_N, BLOCK_M).permute(1, 2, 0).split()
    if CHANNELS:
        acc *= scale_low[:, None]
        if PAIR > 0:
            acc_high *= scale_high[:, None]
    if PARTS > 0:
        if not PREFETCH:
            sums = load_squares(inputs.squares, m, rows, PARTS, SIZES.parts_pad)
        scale = tl.rsqrt(tl.sum(sums, 0) / SIZES.k + eps)
        acc *= scale[None, :]
        acc_high *= scale[None, :]
    if inputs.x_scale is not None and SIZES.x_group == 0:
        scale = tl.load(inputs.x_scale + m, mask=in_m, other=0.0)
        acc *= scale[None, :]
        acc_high *= scale[None, :]
    if inputs.bias is not None:
        acc += bias_low.to(tl.float32)[:, None]
        if PAIR > 0:
            acc_high += bias_high.to(tl.float32)[:, None]
    if ROPE:
        if not PREFETCH:
            rotations = _load_rotations(rope, position, last_position, lane, rotated_mask, D)
        _store_rotated(
            acc, acc_high, rotations, norm_low, norm_high, head_eps, lane, mask, head, m, outputs.out, rope, index,
            HEADS, HEAD_NORM,
        )  # fmt: skip
        return
    if GLU:
        if outputs.scale is not None:  # rounded first, as if the projections had been stored
            DTYPE: tl.constexpr = tl.float16 if SIZES.fp16 else tl.bfloat16
            acc = acc.to(DTYPE).to(tl.float32)
            acc_high = acc_high.to(DTYPE).to(tl.float32)
        acc = acc / (1.0 + tl.exp(-acc)) * acc_high
        if outputs.scale is not None:
            _store_fp8(acc, outputs.out, outputs.scale, tile, m, rows, n, mask, in_m, SIZES.n)
            return
    if EPILOGUE == 2:
        if not PREFETCH:
            residual_tile = tl.load(residual_at, mask=mask, other=0.0)
        acc += residual_tile.to(tl.float32)
    store_result(acc, outputs, norm_scale, tile, m, rows, n, mask, in_m, SIZES.n)
