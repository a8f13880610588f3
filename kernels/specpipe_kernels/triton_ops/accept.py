"""How many drafts of a request are accepted: one program a request, from the statistics of its rows.

Shapes: R requests, K drafts at most; statistics of p per item r * (K+1) + i, of q per item r * K + i.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.triton_ops.philox import uniform
from specpipe_kernels.triton_ops.rows import Rows, count_drafts, floats, int32s, inverse_temperature, row_pointer
from specpipe_kernels.triton_ops.scan_rows import Scanned
from specpipe_kernels.triton_ops.truncation_bounds import Bounds
from specpipe_kernels.types import Method, Purpose, RejectionOutput, SamplingTensors

# How a random row is verified; a greedy one always matches its largest logits, but under SYNTHETIC.
MATCH, STANDARD, BLOCK, SYNTHETIC = (tl.constexpr(i) for i in range(4))
_ACCEPT = tl.constexpr(int(Purpose.ACCEPT))
_BLOCK = tl.constexpr(int(Purpose.BLOCK))


class Side(NamedTuple):
    """p or q: rows of logits, what truncation keeps of them, their statistics."""

    rows: Rows
    bounds: Bounds | None
    scanned: Scanned


@triton.jit
def draft_log_prob(
    logits, row_map, stride_group, stride_row, vocab, bound_logit, bound_token, lse,
    request, position, item, token, inverse, mask, HAS_MAP: tl.constexpr, TRUNCATED: tl.constexpr,
):  # fmt: skip
    """log-probability of draft tokens [K_PAD] at their positions; -inf outside mask, vocabulary and truncation."""
    inside = mask & (token >= 0) & (token < vocab)
    row = row_pointer(logits, row_map, request, position, stride_group, stride_row, HAS_MAP)
    x = tl.load(row + token, mask=inside, other=float("-inf")).to(tl.float32)
    if TRUNCATED:
        logit = tl.load(bound_logit + item, mask=inside, other=0.0)
        tied = (x == logit) & (token <= tl.load(bound_token + item, mask=inside, other=0))
        inside = inside & ((x > logit) | tied)
    return tl.where(inside, x * inverse - tl.load(lse + item, mask=mask, other=0.0), float("-inf"))


@triton.jit
def prefix_weights(log_p, log_q, count, K_PAD: tl.constexpr):
    """[K_PAD]: p_0 = 1, p_i = min(p_(i-1) P(x_i) / Q(x_i), 1); draft i is entry i - 1 of log_p and log_q."""
    i = tl.arange(0, K_PAD)
    ratio = tl.where(log_q > float("-inf"), tl.exp(log_p - log_q), 0.0)
    weights = tl.where(i == 0, 1.0, 0.0)
    last = 1.0
    for j in range(count):
        last = tl.minimum(last * tl.sum(tl.where(i == j, ratio, 0.0)), 1.0)
        weights = tl.where(i == j + 1, last, weights)
    return weights


@triton.jit(do_not_specialize=["k", "stride_draft"])
def _prefix_kernel(
    p_logits, p_map, p_bound_logit, p_bound_token, p_lse,
    q_logits, q_map, q_bound_logit, q_bound_token, q_lse,
    draft_tokens, num_drafts, temperature, out_log_p, out_log_q, out_weight,
    p_stride_group, p_stride_row, q_stride_group, q_stride_row, stride_draft, p_vocab, q_vocab, k,
    P_MAP: tl.constexpr, Q_MAP: tl.constexpr, ONE_HOT: tl.constexpr, TRUNCATED: tl.constexpr, K_PAD: tl.constexpr,
):  # fmt: skip
    """log p, log q of the drafts and the prefix weights, [R, K+1] each."""
    request = tl.program_id(0)
    i = tl.arange(0, K_PAD)
    count = count_drafts(draft_tokens, stride_draft, num_drafts, request, K_PAD)
    mask = i < count
    temp = tl.load(temperature + request)
    inverse = inverse_temperature(temp)
    token = tl.load(draft_tokens + request.to(tl.int64) * stride_draft + i, mask=mask, other=0)
    mask = i < tl.where(temp > 0.0, count, 0)
    item = request * (k + 1) + i
    log_p = draft_log_prob(
        p_logits, p_map, p_stride_group, p_stride_row, p_vocab, p_bound_logit, p_bound_token, p_lse,
        request, i, item, token, inverse, mask, P_MAP, TRUNCATED,
    )  # fmt: skip
    log_q = tl.zeros([K_PAD], tl.float32)
    if not ONE_HOT:
        log_q = draft_log_prob(
            q_logits, q_map, q_stride_group, q_stride_row, q_vocab, q_bound_logit, q_bound_token, q_lse,
            request, i, request * k + i, token, inverse, mask, Q_MAP, TRUNCATED,
        )  # fmt: skip
    weights = prefix_weights(log_p, log_q, count, K_PAD)
    tl.store(out_log_p + item, log_p, mask=i <= k)
    tl.store(out_log_q + item, log_q, mask=i <= k)
    tl.store(out_weight + item, weights, mask=i <= k)


@triton.jit(do_not_specialize=["k", "stride_draft"])
def _accept_kernel(
    draft_tokens, num_drafts, temperature, seeds, positions, rates,
    p_token, p_status, q_status, log_p, log_q, weight, mass,
    out_tokens, out_emitted, out_accepted, out_status, out_drafts,
    stride_draft, tiles, k,
    METHOD: tl.constexpr, ONE_HOT: tl.constexpr, K_PAD: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Counts, statuses, accepted tokens and, where nothing is left to draw, the last token too."""
    request = tl.program_id(0)
    i = tl.arange(0, K_PAD)
    count = count_drafts(draft_tokens, stride_draft, num_drafts, request, K_PAD)
    item = request * (k + 1) + i
    drafted = i < count
    token = tl.load(draft_tokens + request.to(tl.int64) * stride_draft + i, mask=drafted, other=-1)
    best = tl.load(p_token + item, mask=i <= count, other=-1)
    status = tl.load(p_status + item, mask=i <= count, other=0)
    seed = tl.load(seeds + request)
    position = tl.load(positions + request) + i
    temp = tl.load(temperature + request)
    random = i < tl.where(temp > 0.0, count, 0)
    accept = token == best
    if METHOD == SYNTHETIC:
        rate = tl.load(rates + i, mask=i < k, other=0.0)
        previous = tl.load(rates + i - 1, mask=(i > 0) & (i < k), other=1.0)
        conditional = tl.where(previous > 0.0, rate / previous, 0.0)
        accept = uniform(seed, position, i, _ACCEPT) < conditional
    if not ONE_HOT:
        q_bad = tl.load(q_status + request * k + i, mask=random, other=0)
        status = tl.where(status == 0, q_bad, status)
    if METHOD == STANDARD:
        p = tl.exp(tl.load(log_p + item, mask=drafted, other=float("-inf")))
        q = tl.exp(tl.load(log_q + item, mask=drafted, other=float("-inf")))
        passed = (uniform(seed, position, i, _ACCEPT) * q < p) & (q > 0.0)
        accept = tl.where(temp > 0.0, passed, accept)
    if METHOD == BLOCK:
        status = tl.where(i <= tl.where(temp > 0.0, count, -1), tl.max(status), status)
    accepted = tl.min(tl.where(accept & drafted & (status == 0), K_PAD, i))
    if METHOD == BLOCK:
        # Entry i of these is about the prefix of i + 1 drafts; its residual is that of draft i + 1.
        p = tl.load(weight + item + 1, mask=random, other=0.0)
        lane = tl.arange(0, TILES)
        partial = (request * k + i + 1).to(tl.int64)[:, None] * tiles + lane[None, :]
        with_next = (random & (i + 1 < count))[:, None] & (lane < tiles)[None, :]
        s = tl.sum(tl.load(mass + partial, mask=with_next, other=0.0), 1)
        h = tl.where(p < 1.0, s / (s + 1.0 - p), 1.0)
        h = tl.where(i + 1 == count, p, h)
        longest = tl.max(tl.where(drafted & (uniform(seed, position, i, _BLOCK) <= h), i + 1, 0))
        accepted = tl.where(temp > 0.0, longest, accepted)
    final_status = tl.sum(tl.where(i == accepted, status, 0))
    last = tl.sum(tl.where(i == accepted, best, 0))
    emitted = tl.where(i < accepted, token, tl.where(i == accepted, last, -1))
    sound = (final_status == 0).to(tl.int32)
    tl.store(out_tokens + item, tl.where(final_status == 0, emitted, -1), mask=i <= k)
    tl.store(out_emitted + request, (accepted + 1) * sound)
    tl.store(out_accepted + request, accepted * sound)
    tl.store(out_status + request, final_status)
    tl.store(out_drafts + request, count)


def prefix(p: Side, q: Side | None, sampling: SamplingTensors) -> tuple[Tensor, Tensor, Tensor]:
    """log p, log q of the drafts and p_i of block verification: [R, K+1] each."""
    rows = p.rows
    shape = (rows.requests, rows.width)
    out = floats(rows.logits, *shape), floats(rows.logits, *shape), floats(rows.logits, *shape)
    q_rows = q.rows if q else rows
    _prefix_kernel[(rows.requests,)](
        rows.logits, rows.row_map, *(p.bounds or (None, None)), p.scanned.lse,
        q_rows.logits, q_rows.row_map, *((q and q.bounds) or (None, None)), q.scanned.lse if q else None,
        rows.draft_tokens, rows.num_drafts, sampling.temperature, *out,
        rows.stride_group, rows.stride_row, q_rows.stride_group, q_rows.stride_row, rows.stride_draft,
        rows.vocab, q_rows.vocab, rows.width - 1,
        P_MAP=rows.row_map is not None, Q_MAP=q_rows.row_map is not None, ONE_HOT=q is None,
        TRUNCATED=p.bounds is not None, K_PAD=rows.k_pad, num_warps=1,
    )  # fmt: skip
    return out


def accept(
    p: Side,
    q: Side | None,
    sampling: SamplingTensors,
    positions: Tensor,
    *,
    method: Method,
    log_probs: tuple[Tensor, Tensor, Tensor] | None,
    block_mass: Tensor | None,
    rates: Tensor | None,
) -> tuple[RejectionOutput, Tensor]:
    """The round's output, its last tokens still to be drawn for random rows, and the number of drafts [R]."""
    rows = p.rows
    requests, k = rows.requests, rows.width - 1
    out = RejectionOutput(
        torch.empty((requests, k + 1), dtype=torch.int64, device=rows.logits.device),
        int32s(rows.logits, requests),
        int32s(rows.logits, requests),
        int32s(rows.logits, requests),
    )
    drafts = int32s(rows.logits, requests)
    match = k == 0 or method == "invariant" or (sampling.all_greedy and method != "synthetic")
    codes = {"standard": STANDARD, "block": BLOCK, "synthetic": SYNTHETIC}
    tiles = block_mass.shape[1] if block_mass is not None else 1
    _accept_kernel[(requests,)](
        rows.draft_tokens, rows.num_drafts, sampling.temperature, sampling.seed, positions, rates,
        p.scanned.token, p.scanned.status, q.scanned.status if q else None, *(log_probs or (None,) * 3), block_mass,
        *out, drafts, rows.stride_draft, tiles, k,
        METHOD=(MATCH if match else codes[method]).value, ONE_HOT=q is None,
        K_PAD=rows.k_pad, TILES=triton.next_power_of_2(tiles), num_warps=1,
    )  # fmt: skip
    return out, drafts
