"""Log-probabilities of emitted tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.runtime.backend import implementation
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
    """Returns log-probabilities of the tokens that `rejection_sample` emitted, under p, never under the residual.

    p is the distribution that the drafts were verified against: `target_logits` (with penalties applied, if any) after
    temperature, top-k, top-p and min-p. For a greedy row it is the softmax at temperature 1. A token beyond V, which
    only synthetic acceptance emits, has -inf.

    Args:
        target_logits: the argument of `rejection_sample`.
        out_tokens: [R, K+1] int64, `tokens` of its result.
        num_emitted: [R] int32, `num_emitted` of its result, or less.
        sampling: the argument of `rejection_sample`.
        top_n: number of most likely tokens to return for each row, at most V. Ties go to the lowest id.
        cu_rows: the argument of `rejection_sample`.
        bounds: [R, K+1] each, `bounds` of its result, which saves computing them again. None: computed here, where
            rows are truncated.

    Reads emitted rows only. Raises ValueError for shapes that do not fit together.
    """
    if out_tokens.dim() != 2 or out_tokens.stride(1) != 1:
        raise ValueError(f"out_tokens {list(out_tokens.shape)}; expected [R, K+1], the last contiguous")
    requests, width = out_tokens.shape
    if target_logits.dim() != 2 or target_logits.stride(1) != 1:
        raise ValueError(f"target_logits {list(target_logits.shape)}; expected 2 dimensions, the last contiguous")
    if cu_rows is None and target_logits.shape[0] != requests * width:
        raise ValueError(f"target_logits has {target_logits.shape[0]} rows; expected R * (K+1) = {requests * width}")
    if cu_rows is not None and cu_rows.shape != (requests + 1,):
        raise ValueError(f"cu_rows {list(cu_rows.shape)}; expected [R+1] = [{requests + 1}]")
    if num_emitted.shape != (requests,) or sampling.temperature.shape != (requests,):
        raise ValueError(f"num_emitted {list(num_emitted.shape)}; expected one entry per row: [{requests}]")
    for name, bound in zip(("logit", "token"), bounds or (), strict=False):
        if bound.shape != (requests, width):
            raise ValueError(f"bounds.{name} {list(bound.shape)}; expected [R, K+1] = [{requests}, {width}]")
    if not 0 <= top_n <= target_logits.shape[1]:
        raise ValueError(f"top_n={top_n}; expected 0 to V = {target_logits.shape[1]}")
    if requests == 0:
        empty = target_logits.new_empty(0, width, top_n, dtype=torch.float32)
        return TokenLogprobs(empty.new_empty(0, width), empty.long(), empty)
    result: TokenLogprobs = implementation("sampling.token_logprobs", target_logits)(
        target_logits, out_tokens, num_emitted, sampling, top_n=top_n, cu_rows=cu_rows, bounds=bounds
    )
    return result
