"""The sampling operations: the contracts of both implementations, argument checks, dispatch."""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.backend import implementation
from specpipe_kernels.types import METHODS, Bounds, Method, Purpose, RejectionOutput, Sampled, SamplingTensors


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
    """Draw one token from each row of `logits`.

    Args:
        logits: [R, V] bf16, fp16 or fp32, before temperature, any row stride.
        sampling: of R rows.
        positions: [R] int64, absolute position of the token being drawn.
        purpose: the random stream: DRAFT for proposals (INVARIANT with that method), BONUS for plain decoding.
        index: of the token in its round. INVARIANT ignores it.
        vocab_size: draw from the first so many entries only, as a draft whose vocabulary is padded beyond the target's
            must. The logits given to `rejection_sample` are then to be cut likewise.
        out: [R] int64 of any stride, where the tokens go: a column of a round's drafts.

    Rows of temperature 0 take the largest logit, the lowest index among equals. An unsound row gives token -1.
    """
    if logits.dim() != 2 or logits.stride(1) != 1:
        raise ValueError(f"logits {list(logits.shape)} of strides {logits.stride()}; expected [R, V], V contiguous")
    _check_rows(logits.shape[0], positions=positions, **_tensors(sampling))
    if vocab_size is not None and vocab_size < 1:
        raise ValueError(f"vocab_size={vocab_size}; expected 1 or more")
    function = implementation("sample", logits)
    result: Sampled = function(
        logits, sampling, positions, purpose=Purpose(purpose), index=index, vocab_size=vocab_size, out=out
    )
    return result


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
    """Verify the drafts of R rows and draw the token that follows the accepted ones.

    Args:
        target_logits: [R * (K+1), V], before temperature; position i of row r is at r * (K+1) + i, or cu_rows[r] + i.
            It follows i drafts: it verifies draft i, or draws the bonus token.
        draft_tokens: [R, K] int64; K may be 0 (plain decoding). From a -1 on nothing is accepted.
        num_draft_tokens: [R] int32, K_i of each row, 0 to K.
        positions: [R] int64, absolute position of the first token that this round emits.
        sampling: of R rows; applied to p and q alike.
        draft_logits: [D, K, Vd], before temperature: exactly what `sample` drew the drafts from. None: one-hot
            proposals (n-gram, greedy draft). A token beyond either vocabulary has probability 0 there.
        draft_rows: [R] int, the row of draft_logits of each request; None: r.
        draft_lse: [D, K] fp32, the `lse` that `sample` gave with each draft: saves reading draft_logits again, but for
            one row a rejection. None: computed here.
        draft_bounds: [D, K] each, the `bounds` that `sample` gave with each draft: saves finding them again. None:
            computed here, where `sampling.truncated`.
        cu_rows: [R+1] int, first row of each request in target_logits [sum(K_i + 1), V].
        bonus_tokens: [R] int64, what follows where all drafts are accepted: row K_i of a request's logits is then not
            read. None: drawn here.
        method: standard (arXiv 2211.17192), block (arXiv 2403.10444, Algorithm 2), invariant (arXiv 2408.07978; reads
            no draft_logits) or synthetic (accepts at given rates; its output is not the target's).
        synthetic_rates: [K] fp32, unconditional acceptance rates, non-increasing; exactly with method synthetic.
        counts: [4, K+1] int64, added to in place, by position of a sound request: drafts reached, drafts accepted,
            rejections (a token was recovered), bonus tokens.

    An unsound row (see `Status`) emits nothing. Raises ValueError for shapes that do not fit together.
    """
    if draft_tokens.dim() != 2:
        raise ValueError(f"draft_tokens {list(draft_tokens.shape)}; expected [R, K]")
    requests, k = draft_tokens.shape
    if target_logits.dim() != 2 or target_logits.stride(1) != 1:
        raise ValueError(f"target_logits {list(target_logits.shape)}; expected 2 dimensions, the last contiguous")
    if cu_rows is None and target_logits.shape[0] != requests * (k + 1):
        raise ValueError(
            f"target_logits has {target_logits.shape[0]} rows; expected R * (K+1) = {requests * (k + 1)}, or cu_rows"
        )
    _check_rows(requests, num_draft_tokens=num_draft_tokens, positions=positions, **_tensors(sampling))
    _check_draft(draft_logits, draft_rows, cu_rows, requests, k)
    if bonus_tokens is not None:
        _check_rows(requests, bonus_tokens=bonus_tokens)
    for name, given in zip(("logit", "token"), draft_bounds or (), strict=False):
        _check_of_drafts(f"draft_bounds.{name}", given, draft_logits)
    if draft_lse is not None:
        _check_of_drafts("draft_lse", draft_lse, draft_logits)
    if counts is not None and (counts.shape != (4, k + 1) or counts.dtype != torch.int64 or not counts.is_contiguous()):
        raise ValueError(f"counts {list(counts.shape)} {counts.dtype}; expected [4, K+1] = [4, {k + 1}] torch.int64")
    if method not in METHODS:
        raise ValueError(f"method={method!r}; expected one of {', '.join(METHODS)}")
    if (synthetic_rates is not None) != (method == "synthetic"):
        raise ValueError(f"method={method!r} with synthetic_rates={synthetic_rates}; they go together")
    if synthetic_rates is not None and synthetic_rates.shape != (k,):
        raise ValueError(f"synthetic_rates {list(synthetic_rates.shape)}; expected [K] = [{k}]")
    result: RejectionOutput = implementation("rejection_sample", target_logits)(
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
    return result


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
    """Draw [N] int64 tokens from max(p - q, 0), for callers that hold probabilities. `rejection_sample` needs none.

    Args:
        target_probs: p, [N, V] fp32, any row stride.
        draft_probs: q, [N, V] fp32; None: one-hot proposals, named by draft_token_ids.
        draft_token_ids: [N] int; read only without draft_probs.
        inverse_noise: [M, V] fp32 reciprocals of unit exponentials; None draws them from the stream RECOVERED.
        noise_rows: [N] int, the row of inverse_noise of each row; None: its own number.
        seeds, positions: [N] int64; exactly without inverse_noise.
        indices: [N] int, index in the round; None: 0.

    Where nothing is left of p, p itself is drawn from; a row with NaN, or of zeros, gives -1.
    """
    if target_probs.dim() != 2 or target_probs.stride(1) != 1:
        raise ValueError(f"target_probs {list(target_probs.shape)}; expected [N, V], V contiguous")
    if draft_probs is not None and (draft_probs.shape != target_probs.shape or draft_probs.stride(1) != 1):
        raise ValueError(f"draft_probs {list(draft_probs.shape)}; expected {list(target_probs.shape)}, V contiguous")
    if draft_probs is None and draft_token_ids is None:
        raise ValueError("neither draft_probs nor draft_token_ids given; expected one: q is needed")
    keyed = seeds is not None and positions is not None
    if keyed == (inverse_noise is not None):
        raise ValueError("expected either inverse_noise or both seeds and positions")
    rows = {"draft_token_ids": draft_token_ids, "noise_rows": noise_rows, "seeds": seeds}
    rows |= {"positions": positions, "indices": indices}
    _check_rows(target_probs.shape[0], **{name: x for name, x in rows.items() if x is not None})
    tokens: Tensor = implementation("sample_recovered_tokens", target_probs)(
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


def synthetic_rates(num_speculative_tokens: int, acceptance_length: float) -> tuple[float, ...]:
    """Unconditional rates of K positions that sum to acceptance_length - 1: ones first, then the fraction, then zeros.

    Raises ValueError unless 1 <= acceptance_length <= K + 1.
    """
    if not 1 <= acceptance_length <= num_speculative_tokens + 1:
        raise ValueError(f"acceptance_length={acceptance_length}; expected 1 to K + 1 = {num_speculative_tokens + 1}")
    return tuple(min(1.0, max(0.0, acceptance_length - 1 - i)) for i in range(num_speculative_tokens))


def _tensors(sampling: SamplingTensors) -> dict[str, Tensor]:
    names = ("temperature", "top_k", "top_p", "min_p", "seed")
    return {f"sampling.{name}": getattr(sampling, name) for name in names}


def _check_rows(rows: int, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.shape != (rows,):
            raise ValueError(f"{name} {list(tensor.shape)}; expected one entry per row: [{rows}]")


def _check_of_drafts(name: str, given: Tensor, draft_logits: Tensor | None) -> None:
    if draft_logits is None or given.shape != draft_logits.shape[:2]:
        raise ValueError(f"{name} {list(given.shape)}; expected [D, K], an entry for each row of draft_logits")


def _check_draft(
    draft_logits: Tensor | None, draft_rows: Tensor | None, cu_rows: Tensor | None, requests: int, k: int
) -> None:
    if cu_rows is not None and cu_rows.shape != (requests + 1,):
        raise ValueError(f"cu_rows {list(cu_rows.shape)}; expected [R+1] = [{requests + 1}]")
    if draft_rows is not None and draft_rows.shape != (requests,):
        raise ValueError(f"draft_rows {list(draft_rows.shape)}; expected [R] = [{requests}]")
    if draft_logits is None:
        return
    if draft_logits.dim() != 3 or draft_logits.shape[1] != k or (k and draft_logits.stride(2) != 1):
        raise ValueError(f"draft_logits {list(draft_logits.shape)}; expected [D, K={k}, Vd], Vd contiguous")
    if draft_rows is None and draft_logits.shape[0] < requests:
        raise ValueError(f"draft_logits has {draft_logits.shape[0]} rows for {requests} requests; expected draft_rows")
