"""Log-probabilities of given tokens, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.types import TokenScores


def score_tokens(logits: Tensor, tokens: Tensor) -> TokenScores:
    """See `specpipe_kernels.score_tokens`."""
    logits = logits.float()
    own = logits.gather(1, tokens[:, None])[:, 0]
    valid = logits.amax(1).isfinite()
    logprobs = (own - logits.logsumexp(1)).masked_fill(~valid, torch.nan)
    return TokenScores(logprobs, (logits.argmax(1) == tokens) & valid)
