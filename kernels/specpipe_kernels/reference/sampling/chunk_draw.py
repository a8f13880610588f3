"""Draws a token in two levels: a chunk of the vocabulary by its mass, then a token of it. N rows, V entries.

Each level is an argmax of log-weights plus Gumbel noise, so P(x) = P(chunk of x) P(x | chunk), exactly the weights'
distribution, with noise for one chunk instead of the whole vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels import types
from specpipe_kernels.reference.sampling.philox import chunk_gumbel, gumbel


def draw(log_weights: Tensor, seed: Tensor, position: Tensor, index: Tensor | int, purpose: Tensor | int) -> Tensor:
    """Draws [N] int64 tokens in proportion to exp(log_weights [N, V] fp32); the other arguments select the noise.

    A row of NaN, or without weight, gives any id below V.
    """
    rows, vocab = log_weights.shape
    chunks, size = -(-vocab // types.CHUNK), min(types.CHUNK, vocab)
    padded = torch.nn.functional.pad(log_weights, (0, chunks * size - vocab), value=-torch.inf)
    by_chunk = padded.view(rows, chunks, size)
    noise = chunk_gumbel(seed, position, index, purpose, chunks)
    chunk = noise.add_(by_chunk.logsumexp(-1)).argmax(-1)
    inside = by_chunk.take_along_dim(chunk[:, None, None], 1)[:, 0]
    token = gumbel(seed, position, index, purpose, size, first=chunk * size).add_(inside).argmax(-1)
    return (token + chunk * size).clamp_(max=vocab - 1)
