"""Stores keys and values in paged KV memory: one program per token, all heads at once."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.sizes import power_of_2


@triton.jit
def _copy_token(
    source, pages, token, slot, stride_n, stride_h, stride_d, HEADS: tl.constexpr, DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr, HEADS_PAD: tl.constexpr, DIM_PAD: tl.constexpr,
):  # fmt: skip
    head = tl.arange(0, HEADS_PAD)[:, None]
    dim = tl.arange(0, DIM_PAD)[None, :]
    mask = (head < HEADS) & (dim < DIM)
    x = tl.load(source + token * stride_n + head * stride_h + dim * stride_d, mask=mask)
    place = (slot // PAGE_SIZE) * (HEADS * PAGE_SIZE * DIM) + (slot % PAGE_SIZE) * DIM
    tl.store(pages + place + head * (PAGE_SIZE * DIM) + dim, x.to(pages.dtype.element_ty), mask=mask)


@triton.jit
def _store_kv_kernel(
    key, value, k_pages, v_pages, write_index,
    k_stride_n, k_stride_h, k_stride_d, v_stride_n, v_stride_h, v_stride_d,
    HEADS: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
    HEADS_PAD: tl.constexpr, K_PAD: tl.constexpr, V_PAD: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(write_index + token)
    _copy_token(
        key, k_pages, token, slot, k_stride_n, k_stride_h, k_stride_d, HEADS, K_DIM, PAGE_SIZE, HEADS_PAD, K_PAD
    )
    _copy_token(
        value, v_pages, token, slot, v_stride_n, v_stride_h, v_stride_d, HEADS, V_DIM, PAGE_SIZE, HEADS_PAD, V_PAD
    )


def store_kv(key: Tensor, value: Tensor, k_pages: Tensor, v_pages: Tensor, write_index: Tensor) -> None:
    """See `specpipe_kernels.store_kv`."""
    tokens, heads, k_dim = key.shape
    v_dim, page_size = value.shape[2], k_pages.shape[2]
    assert k_pages.is_contiguous() and v_pages.is_contiguous() and write_index.is_contiguous()
    assert value.shape[:2] == (tokens, heads) and write_index.shape == (tokens,)
    assert k_pages.shape[1:] == (heads, page_size, k_dim) and v_pages.shape[1:] == (heads, page_size, v_dim)
    if tokens == 0:
        return
    _store_kv_kernel[(tokens,)](
        key, value, k_pages, v_pages, write_index, *key.stride(), *value.stride(),
        HEADS=heads, K_DIM=k_dim, V_DIM=v_dim, PAGE_SIZE=page_size, HEADS_PAD=power_of_2(heads),
        K_PAD=power_of_2(k_dim), V_PAD=power_of_2(v_dim),
    )  # fmt: skip
