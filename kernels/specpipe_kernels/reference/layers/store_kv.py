"""Stores keys and values in paged KV memory, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.types import UNSCALED, KVScales

LARGEST = 448.0  # of float8_e4m3fn


def store_kv(
    key: Tensor, value: Tensor, k_pages: Tensor, v_pages: Tensor, write_index: Tensor, scales: KVScales = UNSCALED
) -> None:
    """See `specpipe_kernels.store_kv`."""
    page_size = k_pages.shape[2]
    page = write_index.div(page_size, rounding_mode="floor")
    offset = write_index.remainder(page_size)
    for entries, pages, scale in ((key, k_pages, scales.k), (value, v_pages, scales.v)):
        if scale is None:
            pages[page, :, offset] = entries.to(pages.dtype)
        else:  # index_put has no 8-bit floating point on some devices
            pages.view(torch.uint8)[page, :, offset] = to_pages(entries, scale).view(torch.uint8)


def to_pages(entries: Tensor, scale: Tensor) -> Tensor:
    """Returns entries [N, Hkv, D] over the scale [Hkv] of their head, rounded to float8_e4m3fn, saturating."""
    scaled = entries.to(torch.float32) * scale.reciprocal()[:, None]
    return scaled.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
