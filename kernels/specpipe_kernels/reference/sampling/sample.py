"""Draws one token per row, in plain torch. N rows, V vocabulary entries."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.reference.sampling.chunk_draw import draw
from specpipe_kernels.reference.sampling.kept_logits import bounds_of, kept_logits, log_shift, status_of
from specpipe_kernels.reference.sampling.philox import gumbel
from specpipe_kernels.types import Purpose, Sampled, SamplingTensors


def sample(
    logits: Tensor,
    sampling: SamplingTensors,
    positions: Tensor,
    *,
    purpose: Purpose,
    index: int = 0,
    vocab_size: int | None = None,
    out: Tensor | None = None,
) -> Sampled:
    """See `specpipe_kernels.sample`."""
    logits = logits[:, :vocab_size]
    tokens = logits.argmax(-1, keepdim=True)
    status = status_of(logits.gather(-1, tokens)[:, 0])
    tokens = tokens[:, 0]
    lse, bounds = torch.zeros_like(sampling.temperature, dtype=torch.float64), None
    if not sampling.all_greedy:
        random = sampling.temperature > 0
        bounds = bounds_of(logits, sampling)
        kept = kept_logits(logits, sampling, bounds)
        lse = torch.where(random, log_shift(logits, sampling) + kept.logsumexp(-1), lse)
        if purpose == Purpose.INVARIANT:
            drawn = gumbel(sampling.seed, positions, 0, purpose, logits.shape[1]).add_(kept).argmax(-1)
        else:
            drawn = draw(kept, sampling.seed, positions, index, purpose)
        tokens = torch.where(random, drawn, tokens)
    tokens = tokens.masked_fill(status != 0, -1)
    return Sampled(tokens if out is None else out.copy_(tokens), lse, status, bounds)
