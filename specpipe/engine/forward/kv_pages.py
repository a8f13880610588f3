"""KV memory on the device: the page tensors of every attention module.

The tensors are attributes of the attention module: transformers passes that module, and nothing else of ours that
differs between layers, to the attention function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from specpipe.engine.forward.attention_batch import AttentionSpec


class KVPages(NamedTuple):
    """The KV memory of one attention module."""

    k: Tensor
    """[pages, Hkv, page_size, D] keys."""
    v: Tensor
    """[pages, Hkv, page_size, D] values."""


def attach_pages(module: nn.Module, pages: KVPages) -> None:
    """Makes the pages the KV memory of an attention module."""
    module.k_pages, module.v_pages = pages


def pages_of(module: nn.Module) -> KVPages:
    """Returns the KV memory that was attached to an attention module."""
    return KVPages(cast(Tensor, module.k_pages), cast(Tensor, module.v_pages))


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
) -> None:
    """Allocates the pages of every attention module and attaches them. Zeroed: a masked NaN would poison P·V."""
    for module, spec in attention.items():
        k = torch.zeros(num_pages, spec.heads, page_size, spec.key_dim, dtype=dtype, device=device)
        v = torch.zeros(num_pages, spec.heads, page_size, spec.value_dim, dtype=dtype, device=device)
        attach_pages(module, KVPages(k, v))
