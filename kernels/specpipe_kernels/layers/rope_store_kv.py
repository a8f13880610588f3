"""Rotary position embedding and KV store in one pass over the output of the QKV projection."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.layers.layer_args import HeadNorms, HeadSizes, RopeArgs
from specpipe_kernels.layers.quantized.page_entries import to_page_entries
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv, power_of_2
from specpipe_kernels.types import UNSCALED, KVScales

HEADS = 8  # heads of one token that a program processes


@triton.jit
def _head_scale(low, high, eps, D: tl.constexpr):
    """Returns rsqrt of the mean square of every head [HEADS, 1], from its halves [HEADS, D / 2]."""
    return tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / D + eps)[:, None]


@triton.jit
def _rope_store_kernel(
    qkv, rope, norms, q_out, last_position, eps, stride_qkv,
    SIZES: tl.constexpr, HALF_PAD: tl.constexpr, HEADS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    Q_HEADS: tl.constexpr = SIZES.q_heads
    KV_HEADS: tl.constexpr = SIZES.kv_heads
    D: tl.constexpr = SIZES.dim
    PAGE_SIZE: tl.constexpr = SIZES.page_size
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    HALF: tl.constexpr = D // 2
    lane = tl.arange(0, HALF_PAD)
    in_half = lane < HALF
    # Loaded before the wait: memory that the previous launch does not write.
    position = tl.minimum(tl.maximum(tl.load(rope.positions + token), 0), last_position)
    c_low = tl.load(rope.cos + position * D + lane, mask=in_half, other=0.0).to(tl.float32)[None, :]
    c_high = tl.load(rope.cos + position * D + HALF + lane, mask=in_half, other=0.0).to(tl.float32)[None, :]
    s_low = tl.load(rope.sin + position * D + lane, mask=in_half, other=0.0).to(tl.float32)[None, :]
    s_high = tl.load(rope.sin + position * D + HALF + lane, mask=in_half, other=0.0).to(tl.float32)[None, :]
    index = tl.load(rope.write_index + token)
    wait_for_inputs(PDL)
    let_next_start(PDL)
    is_q = head < Q_HEADS
    is_k = (head >= Q_HEADS) & (head < Q_HEADS + KV_HEADS)
    is_v = (head >= Q_HEADS + KV_HEADS) & (head < Q_HEADS + 2 * KV_HEADS)
    mask = (is_q | is_k | is_v)[:, None] & in_half[None, :]
    at = qkv + token * stride_qkv + head[:, None] * D + lane[None, :]
    low_in = tl.load(at, mask=mask, other=0.0)
    high_in = tl.load(at + HALF, mask=mask, other=0.0)
    low = low_in.to(tl.float32)
    high = high_in.to(tl.float32)
    if norms.q is not None:
        scale = _head_scale(low, high, eps, D)
        weight_low = tl.where(
            is_q[:, None],
            tl.load(norms.q + lane, mask=in_half, other=0.0)[None, :],
            tl.load(norms.k + lane, mask=in_half, other=0.0)[None, :],
        )
        weight_high = tl.where(
            is_q[:, None],
            tl.load(norms.q + HALF + lane, mask=in_half, other=0.0)[None, :],
            tl.load(norms.k + HALF + lane, mask=in_half, other=0.0)[None, :],
        )
        low = low * scale * weight_low.to(tl.float32)
        high = high * scale * weight_high.to(tl.float32)
    rotated_low = (low * c_low - high * s_low).to(q_out.dtype.element_ty)
    rotated_high = (high * c_high + low * s_high).to(q_out.dtype.element_ty)

    q_at = q_out + (token * Q_HEADS + head[:, None]) * D + lane[None, :]
    q_mask = is_q[:, None] & in_half[None, :]
    tl.store(q_at, rotated_low, mask=q_mask)
    tl.store(q_at + HALF, rotated_high, mask=q_mask)

    page, offset = index // PAGE_SIZE, index % PAGE_SIZE
    base = (page * KV_HEADS * PAGE_SIZE + offset) * D
    k_head = head - Q_HEADS
    k_at = rope.k_pages + base + k_head[:, None] * (PAGE_SIZE * D) + lane[None, :]
    k_mask = is_k[:, None] & in_half[None, :]
    if rope.k_scale is not None:
        k_scale = tl.load(rope.k_scale + k_head, mask=is_k, other=1.0)[:, None]
        v_scale = tl.load(rope.v_scale + k_head - KV_HEADS, mask=is_v, other=1.0)[:, None]
        rotated_low = to_page_entries(rotated_low, k_scale)
        rotated_high = to_page_entries(rotated_high, k_scale)
        low_in = to_page_entries(low_in, v_scale)
        high_in = to_page_entries(high_in, v_scale)
    tl.store(k_at, rotated_low, mask=k_mask)
    tl.store(k_at + HALF, rotated_high, mask=k_mask)
    v_at = rope.v_pages + base + (k_head - KV_HEADS)[:, None] * (PAGE_SIZE * D) + lane[None, :]
    v_mask = is_v[:, None] & in_half[None, :]
    tl.store(v_at, low_in, mask=v_mask)
    tl.store(v_at + HALF, high_in, mask=v_mask)


def rope_store_kv(
    qkv: Tensor,
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
    scales: KVScales = UNSCALED,
) -> Tensor:
    """Rotates and stores a projection qkv [M, (Hq + 2 Hkv) * D]; returns the rotated queries [M, Hq, D].

    The second half of `specpipe_kernels.linear_rope_store_kv`, which documents the other arguments.
    """
    tokens = qkv.shape[0]
    _, kv_heads, page_size, dim = k_pages.shape
    assert qkv.shape[1] == (q_heads + 2 * kv_heads) * dim and qkv.stride(1) == 1 and dim % 2 == 0
    assert cos.is_contiguous() and sin.is_contiguous() and k_pages.is_contiguous() and v_pages.is_contiguous()
    out = qkv.new_empty(tokens, q_heads, dim)
    if tokens:
        _rope_store_kernel[(tokens, cdiv(q_heads + 2 * kv_heads, HEADS))](
            qkv, RopeArgs(cos, sin, positions, k_pages, v_pages, write_index, *scales), HeadNorms(q_norm, k_norm), out,
            cos.shape[0] - 1, eps, qkv.stride(0), SIZES=HeadSizes(q_heads, kv_heads, dim, page_size),
            HALF_PAD=power_of_2(dim // 2), HEADS=HEADS, num_warps=2, **launch_options(qkv),
        )  # fmt: skip
    return out
