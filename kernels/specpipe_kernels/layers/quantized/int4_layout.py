"""Bytes of 4-bit weights: 16 bits hold four entries that lie a quarter of a block apart.

Of 512 adjacent entries of a row, 16-bit word j of 128 holds the entries j, j + 128, j + 256 and j + 384, the first in
its lowest bits. A quarter of every word of a tile is then a tile of adjacent columns in 16 bits, the width of the
activations: products convert it where it is, no entry moves between threads, and a quarter is a group of 128 columns.
Behind the last 512, blocks of 128 entries are laid out in the same way, in 32 words each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.weights import QuantizedWeight

INT4_BLOCK = 512
"""Adjacent entries of a row in one run of words."""
INT4_SHORT_BLOCK = 128
"""The same behind the last whole block. What is left of K forms a block of its own, which products do not convert."""


def pack_int4(entries: Tensor) -> Tensor:
    """Returns bytes [N, K / 2] of entries [N, K] from 0 to 15; K is a multiple of 4."""
    return torch.cat([_pack(part).flatten(1) for part in _blocks(entries, 1)], 1)


def unpack_int4(values: Tensor) -> Tensor:
    """Returns entries [N, K] uint8 of bytes [N, K / 2]."""
    return torch.cat([_unpack(part).flatten(1) for part in _blocks(values, 2)], 1)


def has_int4_tiles(weight: QuantizedWeight) -> bool:
    """Returns true if products convert the weight: K is a multiple of 128, in groups of 32, 64 or 128 n columns."""
    rows, columns = weight.block
    fits = columns % 128 == 0 or columns in (32, 64)
    return weight.values.dtype == torch.uint8 and rows == 1 and fits and weight.shape[1] % INT4_SHORT_BLOCK == 0


def with_scales_by_group(weight: QuantizedWeight) -> QuantizedWeight:
    """Returns a 4-bit weight whose scales and zeros of one group of columns are adjacent in memory, as tiles read them.

    Shapes and values stay; weights in other formats are returned as they are.
    """
    if weight.values.dtype != torch.uint8:
        return weight
    zeros = None if weight.zeros is None else weight.zeros.t().contiguous().t()
    return weight._replace(scale=weight.scale.t().contiguous().t(), zeros=zeros)


def _blocks(rows: Tensor, entries: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns [N, blocks, elements] of rows [N, elements]: whole blocks, short ones, the rest. entries: per element."""
    size, short = INT4_BLOCK // entries, INT4_SHORT_BLOCK // entries
    whole = rows.shape[1] // size * size
    end = rows.shape[1] // short * short
    return rows[:, :whole].unflatten(1, (-1, size)), rows[:, whole:end].unflatten(1, (-1, short)), rows[:, None, end:]


def _pack(entries: Tensor) -> Tensor:
    """entries [N, blocks, entries of a block] → bytes [N, blocks, half as many]."""
    first, second, third, fourth = entries.to(torch.uint8).chunk(4, 2) if entries.numel() else [entries.byte()] * 4
    return torch.stack((first | second << 4, third | fourth << 4), 3).flatten(2)


def _unpack(values: Tensor) -> Tensor:
    """bytes [N, blocks, bytes of a block] → entries [N, blocks, twice as many]."""
    low, high = values.unflatten(2, (-1, 2)).unbind(3)
    return torch.cat((low & 15, low >> 4, high & 15, high >> 4), 2)
