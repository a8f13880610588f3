"""Draws the tokens that replace rejected drafts, from probabilities."""

from __future__ import annotations

from torch import Tensor

from specpipe_kernels.operations.checks import check_rows
from specpipe_kernels.runtime.backend import implementation


def sample_recovered_tokens(
    target_probs: Tensor,
    draft_probs: Tensor | None = None,
    draft_token_ids: Tensor | None = None,
    *,
    inverse_noise: Tensor | None = None,
    noise_rows: Tensor | None = None,
    seeds: Tensor | None = None,
    positions: Tensor | None = None,
    indices: Tensor | None = None,
) -> Tensor:
    """Draws [N] int64 tokens from max(p - q, 0), for callers that have probabilities; `rejection_sample` takes logits.

    Args:
        target_probs: p, [N, V] fp32, any row stride.
        draft_probs: q, [N, V] fp32; None: one-hot proposals at draft_token_ids.
        draft_token_ids: [N] int; read only without draft_probs.
        inverse_noise: [M, V] fp32 reciprocals of unit exponentials; None draws them from the stream RECOVERED.
        noise_rows: [N] int, the row of inverse_noise of each row; None: its own number.
        seeds, positions: [N] int64; required without inverse_noise, refused with it.
        indices: [N] int, index in the round; None: 0.

    A row without residual draws from p itself; a row with NaN, or of zeros, gives -1. Raises ValueError for shapes that
    do not fit together.
    """
    if target_probs.dim() != 2 or target_probs.stride(1) != 1:
        raise ValueError(f"target_probs {list(target_probs.shape)}; expected [N, V], V contiguous")
    if draft_probs is not None and (draft_probs.shape != target_probs.shape or draft_probs.stride(1) != 1):
        raise ValueError(f"draft_probs {list(draft_probs.shape)}; expected {list(target_probs.shape)}, V contiguous")
    if draft_probs is None and draft_token_ids is None:
        raise ValueError("neither draft_probs nor draft_token_ids given; expected one of them as q")
    keyed = seeds is not None and positions is not None
    if keyed == (inverse_noise is not None):
        raise ValueError("expected either inverse_noise or both seeds and positions")
    rows = {"draft_token_ids": draft_token_ids, "noise_rows": noise_rows, "seeds": seeds}
    rows |= {"positions": positions, "indices": indices}
    check_rows(target_probs.shape[0], **{name: x for name, x in rows.items() if x is not None})
    tokens: Tensor = implementation("sampling.sample_recovered_tokens", target_probs)(
        target_probs,
        draft_probs,
        draft_token_ids,
        inverse_noise=inverse_noise,
        noise_rows=noise_rows,
        seeds=seeds,
        positions=positions,
        indices=indices,
    )
    return tokens
