"""Log-probabilities of given tokens with Triton, in one launch.

A program scans a span of one row; the last one of a row combines the spans.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.sampling.device.kernel_args import NO_BOUNDS, SpanStatistics
from specpipe_kernels.sampling.device.logit_rows import floats, int32s, is_last, load_tile, row_tiling
from specpipe_kernels.sampling.device.row_spans import (
    best_tokens,
    largest_of_span,
    log_prob,
    mass_of_span,
    row_lse,
    span_of,
    status_of_score,
)
from specpipe_kernels.types import TokenScores


@triton.jit(do_not_specialize=["stride", "parts", "steps"])
def _score_tokens_kernel(
    logits, tokens, spans, largest, counters, out, bounds, stride, vocab, parts, steps,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(PDL)
    inverse = tl.full([], 1.0, tl.float32)  # 1 / temperature
    item = tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    row = logits + item.to(tl.int64) * stride
    begin, end = span_of(part, steps, vocab, BLOCK)
    partial = item.to(tl.int64) * parts + part
    x = load_tile(row, begin + tl.arange(0, BLOCK), vocab)
    mass, reference = mass_of_span(row, x, begin, end, vocab, inverse, bounds, item, False, BLOCK)
    best, token = largest_of_span(row, x, begin, end, vocab, BLOCK)  # a second pass, which the cache serves
    tl.store(spans.scores + partial, mass)
    tl.store(spans.references + partial, reference)
    tl.store(largest.scores + partial, best)
    tl.store(largest.tokens + partial, token)
    let_next_start(PDL)
    if ~is_last(counters, item, parts):
        return
    items = item + tl.arange(0, 1)
    here = items == item
    _, reference, log_mass = row_lse(spans.scores, spans.references, items, inverse, parts, here, PARTS)
    score, greedy = best_tokens(largest.scores, largest.tokens, items, parts, here, PARTS)
    status = status_of_score(score)
    own = tl.load(tokens + items).to(tl.int32)
    x = load_tile(row, own, vocab)
    tl.store(out.logprobs + items, tl.where(status == 0, log_prob(x, reference, 1.0, log_mass), float("nan")))
    tl.store(out.is_greedy + items, (status == 0) & (greedy == own))


def score_tokens(logits: Tensor, tokens: Tensor) -> TokenScores:
    """See `specpipe_kernels.score_tokens`."""
    rows, vocab = logits.shape
    cut = row_tiling(logits.device, vocab, rows)
    out = TokenScores(floats(logits, rows), torch.empty(rows, dtype=torch.bool, device=logits.device))
    masses = SpanStatistics(floats(logits, rows, cut.parts), floats(logits, rows, cut.parts), None)
    largest = SpanStatistics(floats(logits, rows, cut.parts), None, int32s(logits, rows, cut.parts))
    _score_tokens_kernel[(rows * cut.parts,)](
        logits, tokens, masses, largest, arrivals(logits, rows), out, NO_BOUNDS, logits.stride(0), vocab,
        cut.parts, cut.steps,
        BLOCK=cut.tile, PARTS=cut.parts_pad, num_warps=cut.warps, **launch_options(logits),
    )  # fmt: skip
    return out
