"""Verification of drafts with Triton: raw logits in, tokens out, no probabilities in memory, no host synchronisation.

Two launches: scan and accept, then draw one token from the row where verification stopped. `invariant` and greedy
rounds need the first only, `block` a third one between them. Large batches of `invariant` are scanned position by
position.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.sampling.device.kernel_args import DraftArgs, StreamArgs, VerdictArgs
from specpipe_kernels.sampling.device.logit_rows import LogitRows, int32s
from specpipe_kernels.sampling.sample import sample
from specpipe_kernels.sampling.truncation.truncation_bounds import truncation_bounds
from specpipe_kernels.sampling.verification.accept_blocks import accept_blocks
from specpipe_kernels.sampling.verification.accept_drafts import accept_drafts
from specpipe_kernels.sampling.verification.decide_blocks import decide_blocks
from specpipe_kernels.sampling.verification.distributions import Distribution
from specpipe_kernels.sampling.verification.draw_final_token import draw_final_token
from specpipe_kernels.sampling.verification.match_drafts import match_drafts
from specpipe_kernels.types import Bounds, Method, Purpose, RejectionOutput, SamplingTensors

# Entries of one position of all requests from which `invariant` scans position by position: its noise then costs more
# than further launches. The other methods only read rows and gain nothing from it (docs/notebook.md).
STAGED_FROM = 8_000_000


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
    """See `specpipe_kernels.rejection_sample`."""
    requests, k = draft_tokens.shape
    if k == 0:
        return _plain(target_logits, positions, sampling, cu_rows, bonus_tokens, method, counts)
    out = RejectionOutput(
        torch.empty((requests, k + 1), dtype=torch.int64, device=target_logits.device),
        int32s(target_logits, requests),
        int32s(target_logits, requests),
        int32s(target_logits, requests),
    )
    if requests == 0:
        return out
    stride = target_logits.stride(0)
    p_rows = LogitRows(
        logits=target_logits,
        row_map=cu_rows,
        stride_group=stride if cu_rows is not None else stride * (k + 1),
        stride_row=stride,
        vocab=target_logits.shape[1],
        requests=requests,
        width=k + 1,
        draft_tokens=draft_tokens,
        num_drafts=num_draft_tokens,
        bonus=bonus_tokens is None,
    )
    p = _distribution(p_rows, sampling)
    if p.bounds is not None and bonus_tokens is None:
        out = out._replace(bounds=Bounds(*(x.view(requests, k + 1) for x in p.bounds)))
    matches = method == "invariant" or sampling.all_greedy
    q = None
    if draft_logits is not None and not matches:
        q_rows = p_rows._replace(
            logits=draft_logits,
            row_map=draft_rows,
            stride_group=draft_logits.stride(0),
            stride_row=draft_logits.stride(1),
            vocab=draft_logits.shape[2],
            width=k,
            bonus=False,
        )
        if draft_bounds is not None and draft_rows is not None:
            draft_bounds = Bounds(*(_by_request(x, draft_rows, k) for x in draft_bounds))
        elif draft_rows is not None and sampling.truncated:
            # Requests with one-hot proposals have no row of q to find bounds in.
            q_rows = q_rows._replace(num_drafts=num_draft_tokens.masked_fill(draft_rows < 0, 0))
        q = _distribution(q_rows, sampling, draft_bounds)
    synthetic = method == "synthetic"
    proposals = DraftArgs(
        draft_tokens, num_draft_tokens, draft_lse if q else None, bonus_tokens, synthetic_rates if synthetic else None
    )
    streams = StreamArgs(sampling.temperature, sampling.seed, positions)
    verdict = VerdictArgs(*out[:4], counts)
    if matches and not synthetic:
        match_drafts(p, proposals, streams, verdict, all_greedy=sampling.all_greedy, stages=_stages(p_rows, method))
        return out
    accept = accept_blocks if method == "block" else accept_drafts
    scanned = accept(p, q, proposals, streams, verdict)
    if sampling.all_greedy:
        return out
    if q is not None and method == "block":
        decide_blocks(p, q, proposals, streams, verdict, scanned)
    draw_final_token(p, q, proposals, streams, verdict, scanned)
    return out


def _by_request(values: Tensor, draft_rows: Tensor, k: int) -> Tensor:
    """Returns [R, K]: the rows of values [D, up to K] that belong to R requests, padded with 0; any row for -1."""
    return torch.nn.functional.pad(values[draft_rows], (0, k - values.shape[1]))


def _stages(rows: LogitRows, method: Method) -> list[tuple[int, int]]:
    """Returns (first position, number of positions) of each scan. The last one covers the last draft and the bonus."""
    if method != "invariant" or rows.requests * rows.vocab < STAGED_FROM:
        return [(0, rows.width)]
    return [*((i, 1) for i in range(rows.width - 2)), (rows.width - 2, 2)]


def _plain(
    logits: Tensor,
    positions: Tensor,
    sampling: SamplingTensors,
    cu_rows: Tensor | None,
    bonus_tokens: Tensor | None,
    method: Method,
    counts: Tensor | None,
) -> RejectionOutput:
    """Returns the result of a round without drafts: the bonus token alone."""
    if bonus_tokens is not None:
        none = torch.zeros_like(bonus_tokens, dtype=torch.int32)
        if counts is not None:
            counts[3] += len(none)
        return RejectionOutput(bonus_tokens[:, None].clone(), none + 1, none, none.clone())
    purpose = Purpose.INVARIANT if method == "invariant" else Purpose.BONUS
    emitted, accepted = (int32s(logits, positions.shape[0]) for _ in range(2))
    drawn = sample(
        logits, sampling, positions, purpose=purpose, row_map=cu_rows, emitted=emitted, accepted=accepted
    )  # fmt: skip
    if counts is not None:
        counts[3] += emitted.sum()
    bounds = drawn.bounds and Bounds(*(x[:, None] for x in drawn.bounds))
    return RejectionOutput(drawn.tokens[:, None], emitted, accepted, drawn.status, bounds)


def _distribution(rows: LogitRows, sampling: SamplingTensors, bounds: Bounds | None = None) -> Distribution:
    """Adds truncation bounds to rows of logits. bounds: [>= requests, width] by request; computed if None."""
    if not sampling.truncated or sampling.all_greedy:
        return Distribution(rows, None)
    if bounds is None:
        return Distribution(rows, truncation_bounds(rows, sampling))
    return Distribution(rows, Bounds(*(x.contiguous() for x in bounds)))
