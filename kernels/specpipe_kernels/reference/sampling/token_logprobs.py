"""Log-probabilities of emitted tokens, in plain torch. R rows, K drafts at most, V vocabulary entries."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.reference.sampling.kept_logits import kept_logits, select_rows
from specpipe_kernels.types import Bounds, SamplingTensors, TokenLogprobs


def token_logprobs(
    target_logits: Tensor,
    out_tokens: Tensor,
    num_emitted: Tensor,
    sampling: SamplingTensors,
    *,
    top_n: int = 0,
    cu_rows: Tensor | None = None,
    bounds: Bounds | None = None,
) -> TokenLogprobs:
    """See `specpipe_kernels.token_logprobs`."""
    requests, width = out_tokens.shape
    column = torch.arange(width, device=out_tokens.device)
    starts = torch.arange(requests, device=column.device) * width if cu_rows is None else cu_rows[:-1]
    rows = (starts[:, None] + column).clamp(max=target_logits.shape[0] - 1)
    logits = target_logits[rows.flatten()].float()
    if not sampling.all_greedy:
        of_rows = select_rows(sampling, torch.arange(requests * width, device=column.device) // width)
        bounds = bounds and Bounds(*(x.flatten() for x in bounds))
        logits = torch.where(of_rows.temperature[:, None] > 0, kept_logits(logits, of_rows, bounds), logits)
    log_p = logits.log_softmax(-1).view(requests, width, -1)
    not_emitted = (column >= num_emitted[:, None])[:, :, None]
    vocab = log_p.shape[-1]
    own = log_p.gather(-1, out_tokens.clamp(0, vocab - 1)[:, :, None])
    own = own.masked_fill(out_tokens[:, :, None] >= vocab, -torch.inf).masked_fill(not_emitted, torch.nan)
    top, tokens = (x[:, :, :top_n] for x in log_p.sort(dim=-1, descending=True, stable=True))
    none_left = not_emitted | (top == -torch.inf)
    return TokenLogprobs(own[:, :, 0], tokens.masked_fill(none_left, -1), top.masked_fill(none_left, torch.nan))
