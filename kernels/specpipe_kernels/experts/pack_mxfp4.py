"""Layout of mxfp4 weights: from that of checkpoints to words that products convert where they are, and back."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from specpipe_kernels.weights import Mxfp4Weight

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Absolute values of the codes; the highest of the four bits is the sign."""
BITS = ((15, 8, 7, 6), (12, 5, 4, 3), (9, 2, 1, 0), (14, 13, 11, 10))
"""Places of a code's bits in a word, the sign first, for each quarter of a block of 128 columns."""


_BIAS = 62
"""Stored exponents are those of bf16 factors that leave 2^64 to the sums of a product (`mxfp4_tile`)."""
_LOWEST, _HIGHEST = 60, 193


def pack_mxfp4(blocks: Tensor, scales: Tensor) -> Mxfp4Weight:
    """Returns the weights of a checkpoint.

    Args:
        blocks: [E, N, K / 32, 16] uint8: two values a byte, that of the lower column in the low nibble.
        scales: [E, N, K / 32] uint8: exponents plus 127, in 60 … 193; others are read as the next of these.
    """
    count = blocks.shape[2]
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)  # [E, N, K / 32, 32]
    missing = -count % 4
    codes = functional.pad(codes, (0, 0, 0, missing)).unflatten(2, (-1, 4)).to(torch.int32)
    words = torch.zeros_like(codes[..., 0, :])
    for quarter, places in enumerate(BITS):
        for bit, place in enumerate(places):
            words |= (codes[..., quarter, :] >> (3 - bit) & 1) << place
    stored = scales.clamp(_LOWEST, _HIGHEST) + _BIAS
    quads = functional.pad(stored, (0, missing)).contiguous().view(torch.int32)
    return Mxfp4Weight(words.to(torch.int16).transpose(1, 2).contiguous(), quads.transpose(1, 2).contiguous())


def unpack_mxfp4(weight: Mxfp4Weight, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns the values [E, N, columns] of mxfp4 weights."""
    words = weight.words.transpose(1, 2).to(torch.int32)  # [E, N, blocks, 32]
    codes = torch.stack([_code(words, places) for places in BITS], dim=-2)  # [E, N, blocks, 4, 32]
    table = torch.tensor([*E2M1, *(-x for x in E2M1)], device=words.device)
    values = table[codes.long()]
    exponents = weight.exponents.contiguous().view(torch.uint8).unflatten(-1, (-1, 4)).transpose(1, 2).int()
    return torch.ldexp(values, exponents[..., None] - (127 + _BIAS)).flatten(2)[..., :columns].to(dtype)


def _code(words: Tensor, places: tuple[int, int, int, int]) -> Tensor:
    """Returns the codes whose bits are at these places of the words, int32."""
    sign, upper, middle, lower = places
    return words >> sign << 3 & 8 | words >> upper << 2 & 4 | words >> middle << 1 & 2 | words >> lower & 1
