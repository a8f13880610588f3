"""Draws the tokens that replace rejected drafts, from probabilities, in plain torch. N rows, V vocabulary entries."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.reference.sampling.chunk_draw import draw
from specpipe_kernels.types import Purpose


def sample_recovered_tokens(
    target_probs: Tensor,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor | None,
    *,
    inverse_noise: Tensor | None,
    noise_rows: Tensor | None,
    seeds: Tensor | None,
    positions: Tensor | None,
    indices: Tensor | None,
) -> Tensor:
    """See `specpipe_kernels.sample_recovered_tokens`."""
    p, vocab = target_probs.float(), target_probs.shape[1]
    if draft_probs is not None:
        residual = (p - draft_probs).clamp_(min=0)
    else:
        assert draft_token_ids is not None
        token = torch.arange(vocab, device=p.device)
        residual = p.masked_fill(token == draft_token_ids[:, None], 0.0)
    empty = residual.amax(-1, keepdim=True) == 0
    weights = torch.where(empty, p, residual)
    if inverse_noise is not None:
        noise = inverse_noise if noise_rows is None else inverse_noise[noise_rows.long()]
        drawn = (weights * noise).argmax(-1)
    else:
        assert seeds is not None and positions is not None
        drawn = draw(weights.log(), seeds, positions, 0 if indices is None else indices, Purpose.RECOVERED)
    return torch.where(weights.amax(-1) > 0, drawn, -1)
