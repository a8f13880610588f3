"""KV memory on the device: the page tensors of every attention module.

The tensors are attributes of the attention module: transformers passes that module, and nothing else of ours that
differs between layers, to the attention function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from specpipe.engine.forward.attention_batch import AttentionSpec
from specpipe_kernels import UNSCALED, KVScales

_COPIED_AT_ONCE = 32
"""Pages: bounds the temporary memory of a copy, 8 MB a page for Llama-3.1-8B in bfloat16."""


class KVPages(NamedTuple):
    """The KV memory of one attention module."""

    k: Tensor
    """[pages, Hkv, page_size, D] keys."""
    v: Tensor
    """[pages, Hkv, page_size, D] values."""
    scales: KVScales = UNSCALED
    """Of pages in 8 bits."""


def attach_pages(module: nn.Module, pages: KVPages) -> None:
    """Makes the pages the KV memory of an attention module."""
    module.k_pages, module.v_pages = pages.k, pages.v
    cast(Any, module).kv_scales = pages.scales


def pages_of(module: nn.Module) -> KVPages:
    """Returns the KV memory that was attached to an attention module."""
    return KVPages(cast(Tensor, module.k_pages), cast(Tensor, module.v_pages), cast(KVScales, module.kv_scales))


def page_bytes(layers: Iterable[AttentionSpec], page_size: int, dtype: torch.dtype) -> int:
    """Returns the bytes of one page over all layers. page_size in tokens."""
    elements = sum(spec.heads * (spec.key_dim + spec.value_dim) for spec in layers)
    return elements * page_size * dtype.itemsize


def allocate_pages(
    attention: Mapping[nn.Module, AttentionSpec],
    num_pages: int,
    page_size: int,
    dtype: torch.dtype,
    device: torch.device,
    scales: Mapping[nn.Module, KVScales],
) -> list[Tensor]:
    """Allocates the pages of every attention module and attaches them. Zeroed: a masked NaN would poison P·V.

    dtype: of the pages. scales: of pages in 8 bits, else empty.

    Returns the memory behind them, one tensor [n, num_pages, Hkv, page_size, D] for the n keys and values that have the
    same Hkv and D: most models have one tensor alone.
    """
    shapes = [(spec.heads, dim) for spec in attention.values() for dim in (spec.key_dim, spec.value_dim)]
    memory = {
        (heads, dim): torch.zeros(count, num_pages, heads, page_size, dim, dtype=dtype, device=device)
        for (heads, dim), count in Counter(shapes).items()
    }
    free = {shape: iter(pages) for shape, pages in memory.items()}
    for module, spec in attention.items():
        k, v = (next(free[spec.heads, dim]) for dim in (spec.key_dim, spec.value_dim))
        attach_pages(module, KVPages(k, v, scales.get(module, UNSCALED)))
    return list(memory.values())


def copy_pages(memory: Iterable[Tensor], source: Tensor, target: Tensor) -> None:
    """Copies pages source[i] to target[i] in all layers. memory: as `allocate_pages` returns it.

    source, target [n] int64; no page is in both, and none twice in target.
    """
    for pages in memory:
        if pages.itemsize == 1:
            pages = pages.view(torch.uint8)
        for some, to in zip(source.split(_COPIED_AT_ONCE), target.split(_COPIED_AT_ONCE), strict=True):
            pages.index_copy_(1, to, pages.index_select(1, some))
