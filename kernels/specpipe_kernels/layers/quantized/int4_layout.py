"""Bytes of 4-bit weights: each holds two entries that lie half a block apart.

Of 128 adjacent entries of a row, byte j of 64 holds entry j in its low half and entry j + 64 in its high half. The low
halves of a tile of bytes are then adjacent columns, and so are the high halves: products read the activations of each
with whole vector loads, and no entry moves between threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

INT4_BLOCK = 128
"""Entries that share a run of bytes. Those beyond the last whole block form one shorter block."""


def pack_int4(entries: Tensor) -> Tensor:
    """Returns bytes [N, K / 2] of entries [N, K] from 0 to 15; K is even."""
    whole = entries.shape[1] // INT4_BLOCK * INT4_BLOCK
    return torch.cat([_pack(entries[:, :whole], INT4_BLOCK), _pack(entries[:, whole:], entries.shape[1] - whole)], 1)


def unpack_int4(values: Tensor) -> Tensor:
    """Returns entries [N, K] uint8 of bytes [N, K / 2]."""
    whole = values.shape[1] * 2 // INT4_BLOCK * INT4_BLOCK // 2
    return torch.cat([_unpack(values[:, :whole], INT4_BLOCK), _unpack(values[:, whole:], values.shape[1] * 2)], 1)


def _pack(entries: Tensor, block: int) -> Tensor:
    """entries [N, K] with K a multiple of block → [N, K / 2]."""
    low, high = entries.to(torch.uint8).unflatten(1, (-1, 2, max(2, block) // 2)).unbind(2)
    return (low | high << 4).flatten(1)


def _unpack(values: Tensor, block: int) -> Tensor:
    """values [N, K / 2], the last block possibly shorter → [N, K]."""
    by_block = values.unflatten(1, (-1, min(block // 2, values.shape[1]))) if values.shape[1] else values[..., None]
    return torch.stack((by_block & 15, by_block >> 4), 2).flatten(1)
