"""Draw one token a row with Triton: one launch, after the passes that truncation needs.

A span of the vocabulary is a program, which reads it for the log-sum-exp and again, from cache, for the draw; the last
program of a row combines its spans.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.triton_ops.pdl import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.triton_ops.rows import (
    Rows,
    arrivals,
    cut_of,
    floats,
    int32s,
    inverse_temperature,
    is_last,
    row_pointer,
)
from specpipe_kernels.triton_ops.tiles import (
    best_tokens,
    draw_from_span,
    largest_of_span,
    mass_of_span,
    row_lse,
    span_of,
)
from specpipe_kernels.triton_ops.truncation_bounds import truncation_bounds
from specpipe_kernels.types import Purpose, Sampled, SamplingTensors


@triton.jit(do_not_specialize=["index", "parts", "steps", "stride_out"])
def _sample_kernel(
    logits, row_map, temperature, seeds, positions, bound_logit, bound_token,
    part_top, part_mass, part_reference, part_score, part_token, counters,
    out_token, out_lse, out_status, out_emitted, out_accepted,
    stride_row, stride_out, vocab, parts, steps, index, purpose: tl.constexpr,
    HAS_MAP: tl.constexpr, TRUNCATED: tl.constexpr, ALL_GREEDY: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(PDL)
    item = tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    temp = tl.load(temperature + item)
    seed = tl.load(seeds + item)
    position = tl.load(positions + item)
    inverse = inverse_temperature(temp)
    row = row_pointer(logits, row_map, item, tl.zeros([], tl.int32), stride_row, stride_row, HAS_MAP)
    begin, end = span_of(part, steps, vocab, BLOCK)
    partial = item.to(tl.int64) * parts + part
    if ALL_GREEDY:
        temp = temp * 0.0
    if temp > 0.0:
        top, mass, reference = mass_of_span(
            row, begin, end, vocab, inverse, bound_logit, bound_token, item, TRUNCATED, BLOCK
        )
        tl.store(part_mass + partial, mass)
        tl.store(part_reference + partial, reference)
        score, token, _ = draw_from_span(
            row, begin, end, vocab, inverse, bound_logit, bound_token, item, seed, position, index, purpose,
            TRUNCATED, BLOCK,
        )  # fmt: skip
    else:
        top, token = largest_of_span(row, begin, end, vocab, BLOCK)
        score = top
    tl.store(part_top + partial, top)
    tl.store(part_score + partial, score)
    tl.store(part_token + partial, token)
    let_next_start(PDL)
    if is_last(counters, item, parts):
        items = item + tl.arange(0, 1)
        mask = items == item
        status, lse = row_lse(part_top, part_mass, part_reference, items, inverse, parts, mask, PARTS)
        drawn = best_tokens(part_score, part_token, items, parts, mask, PARTS)
        tl.store(out_token + items.to(tl.int64) * stride_out, tl.where(status == 0, drawn, -1).to(tl.int64))
        tl.store(out_lse + items, tl.where(temp > 0.0, lse, 0.0))
        tl.store(out_status + items, status)
        if out_emitted is not None:
            tl.store(out_emitted + items, (status == 0).to(tl.int32))
            tl.store(out_accepted + items, tl.zeros_like(status))


def sample(
    logits: Tensor,
    sampling: SamplingTensors,
    positions: Tensor,
    *,
    purpose: Purpose,
    index: int = 0,
    vocab_size: int | None = None,
    out: Tensor | None = None,
    row_map: Tensor | None = None,
    emitted: Tensor | None = None,
    accepted: Tensor | None = None,
) -> Sampled:
    """See `specpipe_kernels.sample`.

    row_map [R] int: the row of logits of each request; None: its own number. emitted and accepted [R] int32, if given,
    are filled as `rejection_sample` does for a round without drafts.
    """
    logits = logits[:, :vocab_size]
    count, vocab = sampling.temperature.shape[0], logits.shape[1]
    tokens = torch.empty(count, dtype=torch.int64, device=logits.device) if out is None else out
    drawn = Sampled(tokens, floats(logits, count), int32s(logits, count))
    if count == 0:
        return drawn
    rows = Rows(logits, row_map, logits.stride(0), logits.stride(0), vocab, count, 1)
    bounds = truncation_bounds(rows, sampling) if sampling.truncated and not sampling.all_greedy else None
    cut = cut_of(vocab, count)
    values = [floats(logits, count, cut.parts) for _ in range(4)]
    _sample_kernel[(count * cut.parts,)](
        logits, row_map, sampling.temperature, sampling.seed, positions, *(bounds or (None, None)),
        *values, int32s(logits, count, cut.parts), arrivals(logits, count), *drawn, emitted, accepted,
        logits.stride(0), tokens.stride(0), vocab, cut.parts, cut.steps,
        0 if purpose == Purpose.INVARIANT else index, int(purpose),
        HAS_MAP=row_map is not None, TRUNCATED=bounds is not None, ALL_GREEDY=sampling.all_greedy,
        BLOCK=cut.tile, PARTS=cut.parts_pad, num_warps=cut.warps, **launch_options(logits),
    )  # fmt: skip
    return drawn
