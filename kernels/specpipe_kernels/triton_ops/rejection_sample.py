"""Verify drafts with Triton: raw logits in, tokens out, no probabilities in memory, no host sync.

Scan p (and q) for their statistics, accept, then draw one token from the row where verification stopped.
"""

from __future__ import annotations

from torch import Tensor

from specpipe_kernels.triton_ops.accept import Side, accept, prefix
from specpipe_kernels.triton_ops.residual import block_mass, draw_last
from specpipe_kernels.triton_ops.rows import Rows
from specpipe_kernels.triton_ops.scan_rows import scan_rows
from specpipe_kernels.triton_ops.truncation_bounds import truncation_bounds
from specpipe_kernels.types import Method, Purpose, RejectionOutput, SamplingTensors


def rejection_sample(
    target_logits: Tensor,
    draft_tokens: Tensor,
    num_draft_tokens: Tensor,
    positions: Tensor,
    sampling: SamplingTensors,
    *,
    draft_logits: Tensor | None = None,
    draft_rows: Tensor | None = None,
    cu_rows: Tensor | None = None,
    method: Method = "standard",
    synthetic_rates: Tensor | None = None,
) -> RejectionOutput:
    """See `specpipe_kernels.rejection_sample`."""
    requests, k = draft_tokens.shape
    stride = target_logits.stride(0)
    p_rows = Rows(
        logits=target_logits,
        row_map=cu_rows,
        stride_group=stride if cu_rows is not None else stride * (k + 1),
        stride_row=stride,
        vocab=target_logits.shape[1],
        requests=requests,
        width=k + 1,
        draft_tokens=draft_tokens,
        num_drafts=num_draft_tokens,
        bonus=True,
    )
    invariant = method == "invariant"
    p = _side(p_rows, sampling, positions, Purpose.INVARIANT if invariant else None)
    q = None
    if draft_logits is not None and k and not invariant and not sampling.all_greedy:
        q_rows = p_rows._replace(
            logits=draft_logits,
            row_map=draft_rows,
            stride_group=draft_logits.stride(0),
            stride_row=draft_logits.stride(1),
            vocab=draft_logits.shape[2],
            width=k,
            bonus=False,
        )
        q = _side(q_rows, sampling, positions, None)
    done = invariant or sampling.all_greedy
    log_probs = prefix(p, q, sampling) if k and not done and method != "synthetic" else None
    mass = weight = None
    if method == "block" and log_probs is not None:
        weight = log_probs[2]
        mass = block_mass(p, q, sampling, log_probs[0], weight)
    out, drafts = accept(
        p, q, sampling, positions, method=method, log_probs=log_probs, block_mass=mass, rates=synthetic_rates
    )
    if not done:
        draw_last(p, q, sampling, positions, out, drafts, weight)
    return out


def _side(rows: Rows, sampling: SamplingTensors, positions: Tensor, purpose: Purpose | None) -> Side:
    bounds = truncation_bounds(rows, sampling) if sampling.truncated and not sampling.all_greedy else None
    return Side(rows, bounds, scan_rows(rows, sampling, positions, bounds, purpose=purpose))
