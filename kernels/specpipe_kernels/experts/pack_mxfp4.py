"""Layout of mxfp4 weights: from that of checkpoints to words that products convert where they are, and back."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from specpipe_kernels.types import Mxfp4Weight

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Absolute values of the codes; the highest of the four bits is the sign."""


def pack_mxfp4(blocks: Tensor, scales: Tensor) -> Mxfp4Weight:
    """Returns the weights of a checkpoint.

    Args:
        blocks: [E, N, K / 32, 16] uint8: two values a byte, that of the lower column in the low nibble.
        scales: [E, N, K / 32] uint8: exponents plus 127. 255 (NaN) is read as 2^128.
    """
    experts, rows, count, _ = blocks.shape
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)  # [E, N, K / 32, 32]
    missing = -count % 4
    codes = functional.pad(codes, (0, 0, 0, missing)).unflatten(2, (-1, 4)).to(torch.int32)
    words = codes[..., 0, :] | codes[..., 1, :] << 4 | codes[..., 2, :] << 8 | codes[..., 3, :] << 12
    quads = functional.pad(scales, (0, missing)).contiguous().view(torch.int32)
    return Mxfp4Weight(words.to(torch.int16).view(experts, rows, -1), quads)


def unpack_mxfp4(weight: Mxfp4Weight, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns the values [E, N, columns] of mxfp4 weights."""
    words = weight.words.to(torch.int32).unflatten(-1, (-1, 1, 32))
    shifts = torch.arange(0, 16, 4, device=words.device)[:, None]
    table = torch.tensor([*E2M1, *(-x for x in E2M1)], device=words.device)
    values = table[(words >> shifts & 15).long()]  # [E, N, blocks, 4, 32]
    exponents = weight.exponents.contiguous().view(torch.uint8).unflatten(-1, (-1, 4)).int()
    return torch.ldexp(values, exponents[..., None] - 127).flatten(2)[..., :columns].to(dtype)
