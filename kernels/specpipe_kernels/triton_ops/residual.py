"""Passes over the vocabulary that look at p and q together: block verification's masses and the last token's draw.

Shapes: R requests, K drafts at most; one program takes one tile of the target's vocabulary.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.triton_ops.accept import Side
from specpipe_kernels.triton_ops.philox import gumbel_tile
from specpipe_kernels.triton_ops.rows import (
    best_of,
    count_drafts,
    floats,
    int32s,
    inverse_temperature,
    is_kept,
    load_tile,
    row_pointer,
)
from specpipe_kernels.types import Purpose, RejectionOutput, SamplingTensors

_RECOVERED = tl.constexpr(int(Purpose.RECOVERED))
_BONUS = tl.constexpr(int(Purpose.BONUS))
_SERIES_ABOVE = tl.constexpr(-0.25)


@triton.jit
def _log_probs(
    logits, row_map, stride_group, stride_row, vocab, bound_logit, bound_token, lse,
    request, position, item, offsets, inverse, HAS_MAP: tl.constexpr, TRUNCATED: tl.constexpr,
):  # fmt: skip
    """log-probabilities of a tile; -inf outside vocabulary and truncation."""
    row = row_pointer(logits, row_map, request, position, stride_group, stride_row, HAS_MAP)
    x = load_tile(row, offsets, vocab)
    kept = is_kept(x, offsets, bound_logit, bound_token, item, TRUNCATED)
    return tl.where(kept, x * inverse - tl.load(lse + item), float("-inf"))


@triton.jit
def log_residual(log_p, log_q):
    """log max(p - q, 0) = log p + log(-expm1(log q - log p)), without cancellation."""
    d = log_q - log_p
    near = tl.maximum(d, _SERIES_ABOVE)
    series = 1.0 + near * (1 / 5 + near * (1 / 30 + near * (1 / 210)))
    series = -near * (1.0 + near * (1 / 2 + near * (1 / 6 + near * (1 / 24) * series)))
    complement = tl.where(d > _SERIES_ABOVE, series, 1.0 - tl.exp(d))
    return tl.where(d < 0.0, log_p + tl.log(complement), float("-inf"))


@triton.jit(do_not_specialize=["k", "stride_draft"])
def _block_mass_kernel(
    p_logits, p_map, p_bound_logit, p_bound_token, p_lse,
    q_logits, q_map, q_bound_logit, q_bound_token, q_lse,
    draft_tokens, num_drafts, temperature, log_p, weight, out_mass,
    p_stride_group, p_stride_row, q_stride_group, q_stride_row, stride_draft, p_vocab, q_vocab, k,
    P_MAP: tl.constexpr, Q_MAP: tl.constexpr, ONE_HOT: tl.constexpr, TRUNCATED: tl.constexpr,
    K_PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """sum(max(p_i P - Q, 0)) over a tile, for position i = 1 .. K_i - 1; the position is `program_id(0) % k`."""
    item = tl.program_id(0)
    tile = tl.program_id(1)
    request = item // k
    i = item % k
    count = count_drafts(draft_tokens, stride_draft, num_drafts, request, K_PAD)
    temp = tl.load(temperature + request)
    if (i == 0) | (i >= count) | (temp == 0.0):
        return
    p_item = request * (k + 1) + i
    scale = tl.load(weight + p_item)
    out = out_mass + item.to(tl.int64) * tl.num_programs(1) + tile
    if ONE_HOT:
        tl.store(out, scale * (1.0 - tl.exp(tl.load(log_p + p_item))))
    else:
        inverse = inverse_temperature(temp)
        offsets = tile * BLOCK + tl.arange(0, BLOCK)
        p = _log_probs(
            p_logits, p_map, p_stride_group, p_stride_row, p_vocab, p_bound_logit, p_bound_token, p_lse,
            request, i, p_item, offsets, inverse, P_MAP, TRUNCATED,
        )  # fmt: skip
        q = _log_probs(
            q_logits, q_map, q_stride_group, q_stride_row, q_vocab, q_bound_logit, q_bound_token, q_lse,
            request, i, item, offsets, inverse, Q_MAP, TRUNCATED,
        )  # fmt: skip
        tl.store(out, tl.sum(tl.maximum(scale * tl.exp(p) - tl.exp(q), 0.0)))


@triton.jit(do_not_specialize=["k", "stride_draft"])
def _draw_tiles_kernel(
    p_logits, p_map, p_bound_logit, p_bound_token, p_lse,
    q_logits, q_map, q_bound_logit, q_bound_token, q_lse,
    draft_tokens, drafts, accepted, status, temperature, seeds, positions, weight,
    out_score, out_token,
    p_stride_group, p_stride_row, q_stride_group, q_stride_row, stride_draft, p_vocab, q_vocab, k,
    P_MAP: tl.constexpr, Q_MAP: tl.constexpr, ONE_HOT: tl.constexpr, TRUNCATED: tl.constexpr,
    WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Best entries of a tile: of the residual in [R, 0, T], of p in [R, 1, T]."""
    request = tl.program_id(0)
    tile = tl.program_id(1)
    temp = tl.load(temperature + request)
    if (temp == 0.0) | (tl.load(status + request) != 0):
        return
    i = tl.load(accepted + request)
    rejected = i < tl.load(drafts + request)
    inverse = inverse_temperature(temp)
    offsets = tile * BLOCK + tl.arange(0, BLOCK)
    p_item = request * (k + 1) + i
    log_p = _log_probs(
        p_logits, p_map, p_stride_group, p_stride_row, p_vocab, p_bound_logit, p_bound_token, p_lse,
        request, i, p_item, offsets, inverse, P_MAP, TRUNCATED,
    )  # fmt: skip
    purpose = tl.where(rejected, _RECOVERED, _BONUS)
    noise = gumbel_tile(tl.load(seeds + request), tl.load(positions + request) + i, i, purpose, tile * BLOCK, BLOCK)
    tiles = tl.num_programs(1)
    out = request.to(tl.int64) * 2 * tiles + tile
    score, token = best_of(log_p + noise, offsets)
    tl.store(out_score + out + tiles, score)
    tl.store(out_token + out + tiles, token)
    residual = tl.full([BLOCK], float("-inf"), tl.float32)
    if rejected:
        if ONE_HOT:
            draft = tl.load(draft_tokens + request.to(tl.int64) * stride_draft + i)
            residual = tl.where(offsets == draft, float("-inf"), log_p)
        else:
            log_q = _log_probs(
                q_logits, q_map, q_stride_group, q_stride_row, q_vocab, q_bound_logit, q_bound_token, q_lse,
                request, i, request * k + i, offsets, inverse, Q_MAP, TRUNCATED,
            )  # fmt: skip
            if WEIGHTED:
                log_p += tl.log(tl.load(weight + p_item))
            residual = log_residual(log_p, log_q)
    score, token = best_of(residual + noise, offsets)
    tl.store(out_score + out, score)
    tl.store(out_token + out, token)


@triton.jit(do_not_specialize=["k"])
def _draw_kernel(
    scores, tokens, accepted, status, temperature, out_tokens, tiles, k, TILES: tl.constexpr
):  # fmt: skip
    """The last token of a random request: from the residual, or from p where nothing was rejected or p = q."""
    request = tl.program_id(0)
    if (tl.load(temperature + request) == 0.0) | (tl.load(status + request) != 0):
        return
    lane = tl.arange(0, TILES)
    used = lane < tiles
    partial = request.to(tl.int64) * 2 * tiles + lane
    score, token = best_of(
        tl.load(scores + partial, mask=used, other=float("-inf")), tl.load(tokens + partial, mask=used, other=0)
    )
    partial += tiles
    _, from_p = best_of(
        tl.load(scores + partial, mask=used, other=float("-inf")), tl.load(tokens + partial, mask=used, other=0)
    )
    last = tl.where(score > float("-inf"), token, from_p).to(tl.int64)
    tl.store(out_tokens + request.to(tl.int64) * (k + 1) + tl.load(accepted + request), last)


def block_mass(p: Side, q: Side | None, sampling: SamplingTensors, log_p: Tensor, weight: Tensor) -> Tensor:
    """[R * K, tiles]: S_i of block verification in parts, for the positions i >= 1 that have a draft."""
    rows, q_rows = p.rows, q.rows if q else p.rows
    k = rows.width - 1
    tiles = rows.tiles if q else 1
    out = floats(rows.logits, rows.requests * k, tiles)
    _block_mass_kernel[(rows.requests * k, tiles)](
        rows.logits, rows.row_map, *(p.bounds or (None, None)), p.scanned.lse,
        q_rows.logits, q_rows.row_map, *((q and q.bounds) or (None, None)), q.scanned.lse if q else None,
        rows.draft_tokens, rows.num_drafts, sampling.temperature, log_p, weight, out,
        rows.stride_group, rows.stride_row, q_rows.stride_group, q_rows.stride_row, rows.stride_draft,
        rows.vocab, q_rows.vocab, k,
        P_MAP=rows.row_map is not None, Q_MAP=q_rows.row_map is not None, ONE_HOT=q is None,
        TRUNCATED=p.bounds is not None, K_PAD=rows.k_pad, BLOCK=rows.tile, num_warps=8,
    )  # fmt: skip
    return out


def draw_last(
    p: Side,
    q: Side | None,
    sampling: SamplingTensors,
    positions: Tensor,
    out: RejectionOutput,
    drafts: Tensor,
    weight: Tensor | None,
) -> None:
    """Write the recovered or bonus token of every sound random request into out.tokens."""
    rows, q_rows = p.rows, q.rows if q else p.rows
    k, tiles = rows.width - 1, rows.tiles
    scores, tokens = floats(rows.logits, rows.requests, 2, tiles), int32s(rows.logits, rows.requests, 2, tiles)
    _draw_tiles_kernel[(rows.requests, tiles)](
        rows.logits, rows.row_map, *(p.bounds or (None, None)), p.scanned.lse,
        q_rows.logits, q_rows.row_map, *((q and q.bounds) or (None, None)), q.scanned.lse if q else None,
        rows.draft_tokens, drafts, out.num_accepted, out.status, sampling.temperature, sampling.seed, positions,
        weight, scores, tokens,
        rows.stride_group, rows.stride_row, q_rows.stride_group, q_rows.stride_row, rows.stride_draft,
        rows.vocab, q_rows.vocab, k,
        P_MAP=rows.row_map is not None, Q_MAP=q_rows.row_map is not None, ONE_HOT=q is None,
        TRUNCATED=p.bounds is not None, WEIGHTED=weight is not None, BLOCK=rows.tile, num_warps=8,
    )  # fmt: skip
    _draw_kernel[(rows.requests,)](
        scores, tokens, out.num_accepted, out.status, sampling.temperature, out.tokens, tiles, k,
        TILES=triton.next_power_of_2(tiles), num_warps=1,
    )  # fmt: skip
