"""Draws the tokens that replace rejected drafts, from probabilities. N rows, V vocabulary entries.

With given noise, an argmax of max(p - q, 0) / noise. The noise is passed as reciprocals, because a division per entry
costs more than the rest. With keyed noise the draw has two levels: programs compute masses of chunks, and the last
program of a row draws a chunk and then a token of it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.sampling.device.logit_rows import (
    NOWHERE,
    best_of,
    floats,
    int32s,
    is_last,
    load_part,
    row_tiling,
)
from specpipe_kernels.sampling.device.philox import chunk_gumbel, exponential_tile
from specpipe_kernels.sampling.device.row_spans import larger, span_of
from specpipe_kernels.sampling.device.vocab_chunks import chunk_tiling, select_chunk
from specpipe_kernels.types import Purpose

_RECOVERED = tl.constexpr(int(Purpose.RECOVERED))


@triton.jit
def _row_of(target_probs, draft_probs, draft_token_ids, row, stride_target, stride_draft, ONE_HOT: tl.constexpr):
    """Returns the addresses of p and q of a row and its draft. With ONE_HOT there is no q, otherwise no draft."""
    row64 = row.to(tl.int64)
    p_row = target_probs + row64 * stride_target
    q_row = p_row
    draft = row
    if ONE_HOT:
        draft = tl.load(draft_token_ids + row).to(tl.int32)
    else:
        q_row = draft_probs + row64 * stride_draft
    return p_row, q_row, draft


@triton.jit
def _weights(p_row, q_row, draft, offsets, vocab, residual, ONE_HOT: tl.constexpr):
    """Returns max(p - q, 0) of a tile, or p where `residual` is false; NaN where p or q is."""
    inside = offsets < vocab
    p = tl.load(p_row + offsets, mask=inside, other=0.0).to(tl.float32)
    if ONE_HOT:
        left = tl.where(offsets == draft, p - p, p)
    else:
        left = p - tl.load(q_row + offsets, mask=inside, other=0.0).to(tl.float32)
    return larger(tl.where(residual, left, p), 0.0)


@triton.jit
def _best_of_span(
    p_row, q_row, draft, noise, begin, end, vocab, residual, ONE_HOT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Returns a span's largest weight times noise (NaN if a weight is, 0 without weight) and its lowest token id."""
    best = tl.zeros([BLOCK], tl.float32)
    token = tl.full([BLOCK], NOWHERE, tl.int32)
    for start in range(begin, end, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        inverse = tl.load(noise + offsets, mask=offsets < vocab, other=0.0)
        score = _weights(p_row, q_row, draft, offsets, vocab, residual, ONE_HOT) * inverse
        token = tl.where(score > best, offsets, token)
        best = larger(score, best)
    invalid = tl.max(tl.where(best != best, 1, 0))
    score, drawn = best_of(best, token)
    return tl.where(invalid == 1, float("nan"), score), drawn


@triton.jit(do_not_specialize=["parts", "steps"])
def _recover_kernel(
    target_probs, draft_probs, draft_token_ids, inverse_noise, noise_rows, part_score, part_token, counters, out,
    stride_target, stride_draft, stride_noise, vocab, parts, steps,
    ONE_HOT: tl.constexpr, HAS_ROWS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Stores the best entry of the residual of a span; the last program of a row stores the row's token."""
    wait_for_inputs(PDL)
    row = tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    row64 = row.to(tl.int64)
    p_row, q_row, draft = _row_of(target_probs, draft_probs, draft_token_ids, row, stride_target, stride_draft, ONE_HOT)
    noise_row = row64
    if HAS_ROWS:
        noise_row = tl.load(noise_rows + row).to(tl.int64)
    noise = inverse_noise + noise_row * stride_noise
    begin, end = span_of(part, steps, vocab, BLOCK)
    score, token = _best_of_span(p_row, q_row, draft, noise, begin, end, vocab, True, ONE_HOT, BLOCK)
    tl.store(part_score + row64 * parts + part, score)
    tl.store(part_token + row64 * parts + part, token)
    let_next_start(PDL)
    if ~is_last(counters, row, parts):
        return
    lane = tl.arange(0, PARTS)
    scores = load_part(part_score + row64 * parts + lane, lane < parts, 0.0)
    invalid = tl.max(tl.where(scores != scores, 1, 0))
    best, drawn = best_of(scores, load_part(part_token + row64 * parts + lane, lane < parts, NOWHERE))
    if best == 0.0:
        # The residual is empty: this program alone draws from p.
        best, drawn = _best_of_span(p_row, q_row, draft, noise, 0, vocab, vocab, False, ONE_HOT, BLOCK)
    tl.store(out + row, tl.where((invalid == 1) | (best == 0.0), -1, drawn).to(tl.int64))


@triton.jit
def _store_masses(
    p_row, q_row, draft, begin, end, vocab, masses, residual, ONE_HOT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    for start in range(begin, end, BLOCK):
        weights = _weights(p_row, q_row, draft, start + tl.arange(0, BLOCK), vocab, residual, ONE_HOT)
        tl.store(masses + start // BLOCK, tl.sum(weights))


@triton.jit(do_not_specialize=["parts", "per"])
def _recover_keyed_kernel(
    target_probs, draft_probs, draft_token_ids, seeds, positions, indices, chunk_mass, counters, out,
    stride_target, stride_draft, vocab, chunks, parts, per,
    ONE_HOT: tl.constexpr, HAS_INDICES: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Stores masses of some chunks of the residual, NaN where p or q is; the last program of a row draws its token."""
    wait_for_inputs(PDL)
    row = tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    row64 = row.to(tl.int64)
    p_row, q_row, draft = _row_of(target_probs, draft_probs, draft_token_ids, row, stride_target, stride_draft, ONE_HOT)
    masses = chunk_mass + row64 * chunks
    begin, end = span_of(part, per, vocab, BLOCK)
    _store_masses(p_row, q_row, draft, begin, end, vocab, masses, True, ONE_HOT, BLOCK)
    let_next_start(PDL)
    if ~is_last(counters, row, parts):
        return
    seed = tl.load(seeds + row)
    position = tl.load(positions + row)
    index = tl.zeros([], tl.int32)
    if HAS_INDICES:
        index = tl.load(indices + row).to(tl.int32)
    lane = tl.arange(0, CHUNKS)
    mass = load_part(masses + lane, lane < chunks, 0.0)
    invalid = tl.max(tl.where(mass != mass, 1, 0))
    residual = tl.max(tl.where(mass > 0.0, 1, 0)) == 1
    if ~residual:
        # The residual is empty: this program alone draws from p.
        _store_masses(p_row, q_row, draft, 0, vocab, vocab, masses, False, ONE_HOT, BLOCK)
        tl.debug_barrier()
        mass = load_part(masses + lane, lane < chunks, 0.0)
    log_masses = tl.where(mass > 0.0, tl.log(mass), float("-inf"))
    _, chunk = select_chunk(log_masses, chunk_gumbel(seed, position, index, _RECOVERED, lane), lane)
    offsets = chunk * BLOCK + tl.arange(0, BLOCK)
    weights = _weights(p_row, q_row, draft, offsets, vocab, residual, ONE_HOT)
    noise = exponential_tile(seed, position, index, _RECOVERED, chunk * BLOCK, BLOCK)
    best, drawn = best_of(weights / noise, offsets)
    tl.store(out + row, tl.where((invalid == 1) | (best == 0.0), -1, drawn).to(tl.int64))


def sample_recovered_tokens(
    target_probs: Tensor,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor | None,
    *,
    inverse_noise: Tensor | None,
    noise_rows: Tensor | None,
    seeds: Tensor | None,
    positions: Tensor | None,
    indices: Tensor | None,
) -> Tensor:
    """See `specpipe_kernels.sample_recovered_tokens`."""
    rows, vocab = target_probs.shape
    out = torch.empty(rows, dtype=torch.int64, device=target_probs.device)
    if rows == 0:
        return out
    q_stride = 0 if draft_probs is None else draft_probs.stride(0)
    if inverse_noise is None:
        keyed = chunk_tiling(target_probs.device, vocab, rows, waves=2)
        _recover_keyed_kernel[(rows * keyed.parts,)](
            target_probs, draft_probs, draft_token_ids, seeds, positions, indices,
            floats(target_probs, rows, keyed.chunks), arrivals(target_probs, rows), out,
            target_probs.stride(0), q_stride, vocab, keyed.chunks, keyed.parts, keyed.per,
            ONE_HOT=draft_probs is None, HAS_INDICES=indices is not None, BLOCK=keyed.block, CHUNKS=keyed.chunks_pad,
            num_warps=keyed.warps, **launch_options(target_probs),
        )  # fmt: skip
        return out
    cut = row_tiling(target_probs.device, vocab, rows)
    _recover_kernel[(rows * cut.parts,)](
        target_probs, draft_probs, draft_token_ids, inverse_noise, noise_rows,
        floats(target_probs, rows, cut.parts), int32s(target_probs, rows, cut.parts), arrivals(target_probs, rows), out,
        target_probs.stride(0), q_stride, inverse_noise.stride(0), vocab, cut.parts, cut.steps,
        ONE_HOT=draft_probs is None, HAS_ROWS=noise_rows is not None, BLOCK=cut.tile, PARTS=cut.parts_pad,
        num_warps=cut.warps, **launch_options(target_probs),
    )  # fmt: skip
    return out
