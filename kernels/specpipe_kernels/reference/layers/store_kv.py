"""Stores keys and values in paged KV memory, in plain torch."""

from __future__ import annotations

from torch import Tensor


def store_kv(key: Tensor, value: Tensor, k_pages: Tensor, v_pages: Tensor, write_index: Tensor) -> None:
    """See `specpipe_kernels.store_kv`."""
    page_size = k_pages.shape[2]
    page = write_index.div(page_size, rounding_mode="floor")
    offset = write_index.remainder(page_size)
    k_pages[page, :, offset] = key.to(k_pages.dtype)
    v_pages[page, :, offset] = value.to(v_pages.dtype)
