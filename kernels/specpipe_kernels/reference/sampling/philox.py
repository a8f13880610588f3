"""Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) in int64 torch operations.

The key is a row's 64-bit seed, the counter (vocabulary index // 4, position, index in the round, purpose), and the word
vocabulary index % 4: one call serves four vocabulary entries. Chunks of the vocabulary have counters of their own, from
2**30 on. The generator is stateless: a draw depends on key and counter only.
"""

from __future__ import annotations

import torch
from torch import Tensor

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF
_BELOW_ONE = 1.0 - 2.0**-24
_CHUNK_COUNTERS = 2**30  # above every token id // 4
_SERIES_BELOW = 0.0625  # u**6 / 7, the first term left out of the series there, is below fp32's resolution

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Returns four 32-bit words per counter, as int64 in [0, 2**32), as are counters and keys, which broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # An int64 product wraps, but its 64 bits are those of the unsigned product.
        p0, p1 = c0 * _M0, c2 * _M1
        c0 = (((p1 >> 32) ^ c1) & _MASK) ^ k0
        c1 = p1 & _MASK
        c2 = (((p0 >> 32) ^ c3) & _MASK) ^ k1
        c3 = p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def uniform_of(words: Tensor) -> Tensor:
    """Maps 32-bit words to fp32 in the open interval (0, 1): at least 2**-33, with full relative precision near 0."""
    return words.float().add_(0.5).mul_(2.0**-32).clamp_(max=_BELOW_ONE)


def exponential_of(uniform: Tensor) -> Tensor:
    """Returns -log1p(-u) of fp32 u in (0, 1): small u give small exponentials at full precision."""
    series = uniform / 6
    for term in (5, 4, 3, 2, 1):
        series.add_(1 / term).mul_(uniform)
    return torch.where(uniform < _SERIES_BELOW, series, (1 - uniform).log_().neg_())


def _words(chunks: Tensor, seed: Tensor, position: Tensor, index: Tensor | int, purpose: Tensor | int) -> Words:
    index = index if isinstance(index, Tensor) else torch.full_like(position, index)
    purpose = purpose if isinstance(purpose, Tensor) else torch.full_like(position, purpose)
    counter = (chunks, position & _MASK, index.long(), purpose.long())
    return philox(counter, (seed & _MASK, (seed >> 32) & _MASK))


def uniform(seed: Tensor, position: Tensor, index: Tensor | int, purpose: Tensor | int) -> Tensor:
    """Returns one fp32 uniform in (0, 1) for every element of the int64 tensors, which broadcast."""
    return uniform_of(_words(torch.zeros_like(position), seed, position, index, purpose)[0])


def exponential(
    seed: Tensor,
    position: Tensor,
    index: Tensor | int,
    purpose: Tensor | int,
    vocab: int,
    *,
    first: Tensor | int = 0,
) -> Tensor:
    """Returns [N, vocab] fp32 unit exponentials; seed and position (index, purpose, first) are [N] int64.

    first: the token id of the first entry, a multiple of 4.
    """
    index, purpose, first = (x[:, None] if isinstance(x, Tensor) else x for x in (index, purpose, first))
    counters = first // 4 + torch.arange(-(-vocab // 4), device=seed.device)
    words = _words(counters, seed[:, None], position[:, None], index, purpose)
    uniforms = torch.stack([uniform_of(w) for w in words], dim=-1).flatten(1)[:, :vocab]
    return exponential_of(uniforms)


def gumbel(
    seed: Tensor,
    position: Tensor,
    index: Tensor | int,
    purpose: Tensor | int,
    vocab: int,
    *,
    first: Tensor | int = 0,
) -> Tensor:
    """Returns [N, vocab] fp32 standard Gumbel noise: argmax(log p + noise) is a draw from p."""
    return exponential(seed, position, index, purpose, vocab, first=first).log_().neg_()


def chunk_gumbel(seed: Tensor, position: Tensor, index: Tensor | int, purpose: Tensor | int, chunks: int) -> Tensor:
    """Returns [N, chunks] fp32 standard Gumbel noise of vocabulary chunks; seed, position (index, purpose) are [N]."""
    counters = _CHUNK_COUNTERS + torch.arange(chunks, device=seed.device)
    index, purpose = (x[:, None] if isinstance(x, Tensor) else x for x in (index, purpose))
    words = _words(counters, seed[:, None], position[:, None], index, purpose)
    return exponential_of(uniform_of(words[0])).log_().neg_()
