"""Stores keys and values in paged KV memory: one program per token, all heads at once."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.layers.layer_args import StoreArgs, StoreSizes
from specpipe_kernels.layers.quantized.page_entries import to_page_entries
from specpipe_kernels.runtime.sizes import power_of_2
from specpipe_kernels.types import UNSCALED, KVScales


@triton.jit
def _copy_token(tensors, token, slot, SIZES: tl.constexpr):
    """Copies the heads of one token to their place in the pages."""
    HEADS: tl.constexpr = SIZES.heads
    DIM: tl.constexpr = SIZES.dim
    PAGE_SIZE: tl.constexpr = SIZES.page_size
    head = tl.arange(0, SIZES.heads_pad)[:, None]
    dim = tl.arange(0, SIZES.dim_pad)[None, :]
    mask = (head < HEADS) & (dim < DIM)
    x_at = tensors.source + token * tensors.stride_n + head * tensors.stride_h + dim * tensors.stride_d
    x = tl.load(x_at, mask=mask)
    place = (slot // PAGE_SIZE) * (HEADS * PAGE_SIZE * DIM) + (slot % PAGE_SIZE) * DIM
    at = tensors.pages + place + head * (PAGE_SIZE * DIM) + dim
    if tensors.scale is not None:
        scale = tl.load(tensors.scale + head, mask=head < HEADS, other=1.0)
        tl.store(at, to_page_entries(x, scale), mask=mask)
    else:
        tl.store(at, x.to(tensors.pages.dtype.element_ty), mask=mask)


@triton.jit
def _store_kv_kernel(keys, values, write_index, K_SIZES: tl.constexpr, V_SIZES: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(write_index + token)
    _copy_token(keys, token, slot, K_SIZES)
    _copy_token(values, token, slot, V_SIZES)


def store_kv(
    key: Tensor, value: Tensor, k_pages: Tensor, v_pages: Tensor, write_index: Tensor, scales: KVScales = UNSCALED
) -> None:
    """See `specpipe_kernels.store_kv`."""
    tokens, heads, k_dim = key.shape
    v_dim, page_size = value.shape[2], k_pages.shape[2]
    assert k_pages.is_contiguous() and v_pages.is_contiguous() and write_index.is_contiguous()
    assert value.shape[:2] == (tokens, heads) and write_index.shape == (tokens,)
    assert k_pages.shape[1:] == (heads, page_size, k_dim) and v_pages.shape[1:] == (heads, page_size, v_dim)
    if tokens == 0:
        return
    heads_pad = power_of_2(heads)
    _store_kv_kernel[(tokens,)](
        StoreArgs(key, k_pages, scales.k, *key.stride()),
        StoreArgs(value, v_pages, scales.v, *value.stride()),
        write_index,
        K_SIZES=StoreSizes(heads, k_dim, page_size, heads_pad, power_of_2(k_dim)),
        V_SIZES=StoreSizes(heads, v_dim, page_size, heads_pad, power_of_2(v_dim)),
    )
