"""Rotary position embedding and KV store, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.reference.layers.rms_norm import rms_norm
from specpipe_kernels.reference.layers.store_kv import store_kv
from specpipe_kernels.types import UNSCALED, KVScales


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
    kv_heads, dim = k_pages.shape[1], k_pages.shape[3]
    q, k, v = qkv.view(qkv.shape[0], -1, dim).split([q_heads, kv_heads, kv_heads], dim=1)
    if q_norm is not None and k_norm is not None:
        q, k = rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps)
    at = positions.clamp(0, cos.shape[0] - 1)
    c, s = cos[at][:, None].to(torch.float32), sin[at][:, None].to(torch.float32)
    store_kv(_rotate(k, c, s), v, k_pages, v_pages, write_index, scales)
    return _rotate(q, c, s).contiguous()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns x [M, heads, D] rotated by tables cos and sin [M, 1, D]."""
    h = x.to(torch.float32)
    low, high = h.chunk(2, dim=-1)
    return (h * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)
