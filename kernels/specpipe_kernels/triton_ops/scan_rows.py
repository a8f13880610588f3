"""One pass over rows of logits: largest entry, log-sum-exp and, with noise, the row's draw.

A tile of the vocabulary is a program; a second kernel combines the tiles of an item. Logits are read once, as they are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.triton_ops.philox import gumbel_tile
from specpipe_kernels.triton_ops.rows import (
    NOWHERE,
    Rows,
    best_of,
    count_positions,
    floats,
    int32s,
    inverse_temperature,
    is_kept,
    load_tile,
    row_pointer,
)
from specpipe_kernels.triton_ops.truncation_bounds import Bounds
from specpipe_kernels.types import Purpose, SamplingTensors


class Scanned(NamedTuple):
    """Per item; undefined for items that are not in use."""

    token: Tensor
    """[items] int64: the largest logit of a greedy row, the draw of a random one if there was noise."""
    lse: Tensor
    """[items] fp32: of the kept logits over temperature; 0 for greedy rows."""
    status: Tensor
    """[items] int32"""


@triton.jit
def _store_largest(x, top, offsets, partial, out_score, out_token):
    tl.store(out_score + partial, top)
    tl.store(out_token + partial, tl.min(tl.where(x == top, offsets, NOWHERE)))


@triton.jit(do_not_specialize=["width", "stride_draft", "index"])
def _scan_tiles_kernel(
    logits, row_map, draft_tokens, num_drafts, temperature, seeds, positions, bound_logit, bound_token,
    out_top, out_sum, out_score, out_token,
    stride_group, stride_row, stride_draft, vocab, width, index, purpose: tl.constexpr,
    HAS_MAP: tl.constexpr, BONUS: tl.constexpr, K_PAD: tl.constexpr, TRUNCATED: tl.constexpr,
    ALL_GREEDY: tl.constexpr, NOISE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0)
    tile = tl.program_id(1)
    request = item // width
    position = item % width
    if position >= count_positions(draft_tokens, stride_draft, num_drafts, request, K_PAD, BONUS):
        return
    row = row_pointer(logits, row_map, request, position, stride_group, stride_row, HAS_MAP)
    offsets = tile * BLOCK + tl.arange(0, BLOCK)
    x = load_tile(row, offsets, vocab)
    top = tl.max(x)
    unsound = tl.max(tl.where((x != x) | (x == float("inf")), 1, 0))
    partial = item.to(tl.int64) * tl.num_programs(1) + tile
    tl.store(out_top + partial, tl.where(unsound == 1, float("nan"), top))
    if ALL_GREEDY:
        _store_largest(x, top, offsets, partial, out_score, out_token)
    else:
        temp = tl.load(temperature + request)
        if temp == 0.0:
            _store_largest(x, top, offsets, partial, out_score, out_token)
        else:
            inverse = inverse_temperature(temp)
            kept = is_kept(x, offsets, bound_logit, bound_token, item, TRUNCATED)
            finite_top = tl.where(top > float("-inf"), top, 0.0)
            tl.store(out_sum + partial, tl.sum(tl.where(kept, tl.exp((x - finite_top) * inverse), 0.0)))
            if NOISE:
                at = tl.load(positions + request) + position
                noise = gumbel_tile(tl.load(seeds + request), at, index, purpose, tile * BLOCK, BLOCK)
                score, token = best_of(tl.where(kept, x * inverse + noise, float("-inf")), offsets)
                tl.store(out_score + partial, score)
                tl.store(out_token + partial, token)


@triton.jit(do_not_specialize=["width", "stride_draft"])
def _combine_tiles_kernel(
    draft_tokens, num_drafts, temperature, top, sums, scores, tokens, out_token, out_lse, out_status,
    stride_draft, tiles, width,
    BONUS: tl.constexpr, K_PAD: tl.constexpr, ALL_GREEDY: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0)
    request = item // width
    if item % width >= count_positions(draft_tokens, stride_draft, num_drafts, request, K_PAD, BONUS):
        return
    lane = tl.arange(0, TILES)
    used = lane < tiles
    partial = item.to(tl.int64) * tiles + lane
    tops = tl.load(top + partial, mask=used, other=float("-inf"))
    largest = tl.max(tops)
    unsound = tl.max(tl.where(tops != tops, 1, 0))
    status = tl.where(unsound == 1, 1, tl.where(largest == float("-inf"), 2, 0))
    tl.store(out_status + item, status)
    score = tl.load(scores + partial, mask=used, other=float("-inf"))
    _, token = best_of(score, tl.load(tokens + partial, mask=used, other=NOWHERE))
    tl.store(out_token + item, tl.where(status == 0, token, -1).to(tl.int64))
    lse = 0.0
    if not ALL_GREEDY:
        temp = tl.load(temperature + request)
        if temp > 0.0:
            inverse = inverse_temperature(temp)
            finite = tl.where(tops > float("-inf"), tl.exp((tops - largest) * inverse), 0.0)
            total = tl.sum(tl.load(sums + partial, mask=used, other=0.0) * finite)
            lse = largest * inverse + tl.log(total)
    tl.store(out_lse + item, lse)


def scan_rows(
    rows: Rows,
    sampling: SamplingTensors,
    positions: Tensor,
    bounds: Bounds | None,
    *,
    purpose: Purpose | None = None,
    index: int = 0,
) -> Scanned:
    """Draws with the stream `purpose` at positions [requests] + the position in the round; None draws nothing."""
    like, items, tiles = rows.logits, rows.items, rows.tiles
    top, sums, scores = floats(like, items, tiles), floats(like, items, tiles), floats(like, items, tiles)
    tokens = int32s(like, items, tiles)
    out = Scanned(torch.empty(items, dtype=torch.int64, device=like.device), floats(like, items), int32s(like, items))
    if items == 0:
        return out
    noise = purpose is not None and not sampling.all_greedy
    _scan_tiles_kernel[(items, tiles)](
        rows.logits, rows.row_map, rows.draft_tokens, rows.num_drafts,
        sampling.temperature, sampling.seed, positions, *(bounds or (None, None)),
        top, sums, scores, tokens,
        rows.stride_group, rows.stride_row, rows.stride_draft, rows.vocab, rows.width, index, int(purpose or 0),
        HAS_MAP=rows.row_map is not None, BONUS=rows.bonus, K_PAD=rows.k_pad, TRUNCATED=bounds is not None,
        ALL_GREEDY=sampling.all_greedy, NOISE=noise, BLOCK=rows.tile, num_warps=8,
    )  # fmt: skip
    _combine_tiles_kernel[(items,)](
        rows.draft_tokens, rows.num_drafts, sampling.temperature, top, sums, scores, tokens, *out,
        rows.stride_draft, tiles, rows.width,
        BONUS=rows.bonus, K_PAD=rows.k_pad, ALL_GREEDY=sampling.all_greedy,
        TILES=triton.next_power_of_2(tiles), num_warps=1,
    )  # fmt: skip
    return out
