"""Log-probabilities of given tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.runtime.backend import implementation
from specpipe_kernels.types import TokenScores


def score_tokens(logits: Tensor, tokens: Tensor) -> TokenScores:
    """Returns log softmax(logits)[n, tokens[n]] for each row, and if the token is the one that greedy decoding takes.

    Args:
        logits: [N, V] bf16, fp16 or fp32, the last dimension contiguous. They are read in their own format, without a
            copy in fp32; sums are in fp32.
        tokens: [N] int64, 0 to V - 1.

    Greedy decoding takes the largest logit, the lowest token id among equals. A row with NaN or +inf has the
    log-probability NaN. Raises ValueError for shapes that do not fit together.
    """
    if logits.dim() != 2 or logits.stride(1) != 1:
        raise ValueError(f"logits {list(logits.shape)}; expected 2 dimensions, the last contiguous")
    if tokens.shape != logits.shape[:1]:
        raise ValueError(f"tokens {list(tokens.shape)}; expected one for each row of logits: [{logits.shape[0]}]")
    if not len(tokens):
        return TokenScores(torch.empty(0, device=logits.device), torch.empty(0, dtype=torch.bool, device=logits.device))
    result: TokenScores = implementation("sampling.score_tokens", logits)(logits, tokens)
    return result
