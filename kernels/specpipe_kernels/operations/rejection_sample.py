"""Verifies the drafts of a round and draws the token that follows the accepted ones."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.operations.checks import check_rows, named_tensors
from specpipe_kernels.operations.strict import check_emission, check_rates, check_round, check_sampling, is_strict
from specpipe_kernels.runtime.backend import implementation
from specpipe_kernels.types import MAX_DRAFTS, METHODS, Bounds, Method, RejectionOutput, SamplingTensors


def rejection_sample(
    target_logits: Tensor,
    draft_tokens: Tensor,
    num_draft_tokens: Tensor,
    positions: Tensor,
    sampling: SamplingTensors,
    *,
    draft_logits: Tensor | None = None,
    draft_rows: Tensor | None = None,
    draft_lse: Tensor | None = None,
    draft_bounds: Bounds | None = None,
    cu_rows: Tensor | None = None,
    bonus_tokens: Tensor | None = None,
    method: Method = "standard",
    synthetic_rates: Tensor | None = None,
    counts: Tensor | None = None,
) -> RejectionOutput:
    """Verifies the drafts of R rows and draws the token that follows the accepted ones.

    Args:
        target_logits: [R * (K+1), V], before temperature; position i of row r is at r * (K+1) + i, or cu_rows[r] + i.
            It follows i drafts: it verifies draft i, or draws the bonus token.
        draft_tokens: [R, K] int64, K up to 32; 0 is plain decoding. No draft is accepted from the first -1 on.
        num_draft_tokens: [R] int32, K_i of each row, 0 to K.
        positions: [R] int64, absolute position of the first token that this round emits.
        sampling: of R rows; applied to p and q alike.
        draft_logits: [D, K, Vd], before temperature: exactly those that `sample` drew the drafts from. None: one-hot
            proposals (n-gram, greedy draft). A token beyond either vocabulary has probability 0 there.
        draft_rows: [R] int, the row of draft_logits of each request, -1 for one-hot proposals; None: r. With it,
            draft_logits and what belongs to them may have fewer than K positions: as many as any request that has them
            has drafts.
        draft_lse: [D, K] fp64, the `lse` that `sample` returned with each draft. It saves reading draft_logits, except
            for one row per rejection. None: computed here.
        draft_bounds: [D, K] each, the `bounds` that `sample` returned with each draft, which saves computing them
            again. None: computed here, where `sampling.truncated`.
        cu_rows: [R+1] int, first row of each request in target_logits [sum(K_i + 1), V].
        bonus_tokens: [R] int64, tokens that follow where all drafts are accepted: row K_i of a request's logits is then
            not read. None: drawn here.
        method: standard (arXiv 2211.17192), block (arXiv 2403.10444, Algorithm 2), invariant (arXiv 2408.07978; reads
            no draft_logits) or synthetic (accepts at given rates; its output is not the target's).
        synthetic_rates: [K] fp32, unconditional acceptance rates, between 0 and 1 and non-increasing (checked in strict
            mode, which reads them on the host); exactly with method synthetic.
        counts: [4, K+1] int64, incremented in place, by position of a valid request: drafts reached, drafts accepted,
            rejections (a token was recovered), bonus tokens.

    An invalid row (`Status`) emits nothing. Raises ValueError for shapes that do not fit together.
    """
    if draft_tokens.dim() != 2:
        raise ValueError(f"draft_tokens {list(draft_tokens.shape)}; expected [R, K]")
    requests, k = draft_tokens.shape
    if k > MAX_DRAFTS:
        raise ValueError(f"draft_tokens {list(draft_tokens.shape)}; expected at most {MAX_DRAFTS} drafts a row")
    if target_logits.dim() != 2 or target_logits.stride(1) != 1:
        raise ValueError(f"target_logits {list(target_logits.shape)}; expected 2 dimensions, the last contiguous")
    if cu_rows is None and target_logits.shape[0] != requests * (k + 1):
        raise ValueError(
            f"target_logits has {target_logits.shape[0]} rows; expected R * (K+1) = {requests * (k + 1)}, or cu_rows"
        )
    check_rows(requests, num_draft_tokens=num_draft_tokens, positions=positions, **named_tensors(sampling))
    _check_draft(draft_logits, draft_rows, cu_rows, requests, k)
    if bonus_tokens is not None:
        check_rows(requests, bonus_tokens=bonus_tokens)
    for name, bound in zip(("logit", "token"), draft_bounds or (), strict=False):
        _check_per_draft(f"draft_bounds.{name}", bound, draft_logits)
    if draft_lse is not None:
        _check_per_draft("draft_lse", draft_lse, draft_logits)
    if counts is not None and (counts.shape != (4, k + 1) or counts.dtype != torch.int64 or not counts.is_contiguous()):
        raise ValueError(f"counts {list(counts.shape)} {counts.dtype}; expected [4, K+1] = [4, {k + 1}] torch.int64")
    if method not in METHODS:
        raise ValueError(f"method={method!r}; expected one of {', '.join(METHODS)}")
    if (synthetic_rates is not None) != (method == "synthetic"):
        raise ValueError(
            f"method={method!r} with synthetic_rates={synthetic_rates}; expected rates exactly with method 'synthetic'"
        )
    if synthetic_rates is not None and synthetic_rates.shape != (k,):
        raise ValueError(f"synthetic_rates {list(synthetic_rates.shape)}; expected [K] = [{k}]")
    strict = is_strict(target_logits)
    if strict:
        if synthetic_rates is not None:
            check_rates(synthetic_rates)
        check_sampling(sampling)
        check_round(
            target_logits, draft_tokens, num_draft_tokens, cu_rows, draft_rows, draft_logits, draft_lse, bonus_tokens
        )
    result: RejectionOutput = implementation("sampling.rejection_sample", target_logits)(
        target_logits,
        draft_tokens,
        num_draft_tokens,
        positions,
        sampling,
        draft_logits=draft_logits,
        draft_rows=draft_rows,
        draft_lse=draft_lse,
        draft_bounds=draft_bounds,
        cu_rows=cu_rows,
        bonus_tokens=bonus_tokens,
        method=method,
        synthetic_rates=synthetic_rates,
        counts=counts,
    )
    if strict:
        check_emission(result, num_draft_tokens)
    return result


def synthetic_rates(num_speculative_tokens: int, acceptance_length: float) -> tuple[float, ...]:
    """Returns K unconditional acceptance rates that sum to acceptance_length - 1: ones, then a fraction, then zeros.

    acceptance_length is the number of tokens per round, the final token included. Raises ValueError unless it is
    between 1 and K + 1.
    """
    if not 1 <= acceptance_length <= num_speculative_tokens + 1:
        raise ValueError(f"acceptance_length={acceptance_length}; expected 1 to K + 1 = {num_speculative_tokens + 1}")
    return tuple(min(1.0, max(0.0, acceptance_length - 1 - i)) for i in range(num_speculative_tokens))


def _check_per_draft(name: str, tensor: Tensor, draft_logits: Tensor | None) -> None:
    if draft_logits is None or tensor.shape != draft_logits.shape[:2]:
        raise ValueError(f"{name} {list(tensor.shape)}; expected [D, K], an entry for each row of draft_logits")


def _check_draft(
    draft_logits: Tensor | None, draft_rows: Tensor | None, cu_rows: Tensor | None, requests: int, k: int
) -> None:
    if cu_rows is not None and cu_rows.shape != (requests + 1,):
        raise ValueError(f"cu_rows {list(cu_rows.shape)}; expected [R+1] = [{requests + 1}]")
    if draft_rows is not None and draft_rows.shape != (requests,):
        raise ValueError(f"draft_rows {list(draft_rows.shape)}; expected [R] = [{requests}]")
    if draft_logits is None:
        return
    fits = draft_logits.dim() == 3 and (k if draft_rows is None else 0) <= draft_logits.shape[1] <= k
    if not fits or (k and draft_logits.stride(2) != 1):
        raise ValueError(f"draft_logits {list(draft_logits.shape)}; expected [D, K={k}, Vd], Vd contiguous")
    if draft_rows is None and draft_logits.shape[0] < requests:
        raise ValueError(f"draft_logits has {draft_logits.shape[0]} rows for {requests} requests; expected draft_rows")
