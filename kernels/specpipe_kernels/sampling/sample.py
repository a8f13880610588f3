"""Draw of one token per row with Triton: one launch, after the passes that truncation needs.

A program computes the masses of some chunks of a row; with a single chunk, also the draw inside it. The last program of
a row combines them. INVARIANT draws in one level: an argmax over all entries, which each program takes over its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.sampling.device.fast_math import LOG2_E
from specpipe_kernels.sampling.device.kernel_args import ChunkStatistics, StreamArgs
from specpipe_kernels.sampling.device.logit_rows import (
    LogitRows,
    best_of,
    doubles,
    floats,
    int32s,
    inverse_temperature,
    is_last,
    load_part,
    load_tile,
    row_pointer,
)
from specpipe_kernels.sampling.device.philox import chunk_gumbel
from specpipe_kernels.sampling.device.row_spans import (
    common_scores,
    draw_from_span,
    largest_of_span,
    span_of,
    status_of,
)
from specpipe_kernels.sampling.device.vocab_chunks import (
    chunk_tiling,
    draw_from_chunk,
    load_log_masses,
    select_chunk,
    store_masses,
)
from specpipe_kernels.sampling.truncation.truncation_bounds import truncation_bounds
from specpipe_kernels.types import Purpose, Sampled, SamplingTensors

MAX_REGISTERS = 64  # more would leave too few warps to hide memory latency
_INVARIANT = tl.constexpr(int(Purpose.INVARIANT))


class DrawResults(NamedTuple):
    """Results of R draws besides their tokens."""

    lse: Tensor
    """[R] fp64."""
    status: Tensor
    """[R] int32."""
    emitted: Tensor | None
    """[R] int32: tokens of a round without drafts; None: not stored."""
    accepted: Tensor | None
    """[R] int32: 0; None: not stored."""


@triton.jit(
    do_not_specialize=["index", "parts", "per", "stride_out"],
    do_not_specialize_on_alignment=["out_token"],  # a column of the draft tokens
)
def _sample_kernel(
    source, streams, statistics, out_token, out, stride_out, chunks, parts, per, index, purpose: tl.constexpr,
    ALL_GREEDY: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    TRUNCATED: tl.constexpr = source.bounds.logit is not None
    wait_for_inputs(PDL)
    let_next_start(PDL)
    item = tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    temp = tl.load(streams.temperature + item)
    seed = tl.load(streams.seeds + item)
    position = tl.load(streams.positions + item)
    inverse = inverse_temperature(temp)
    row = row_pointer(source, item, tl.zeros([], tl.int32))
    begin, end = span_of(part, per, source.vocab, BLOCK)
    row64 = item.to(tl.int64)
    partial = row64 * parts + part
    masses = statistics.masses + row64 * chunks
    if ALL_GREEDY:
        temp = temp * 0.0
    if temp > 0.0:
        if per == 1:
            x = load_tile(row, begin + tl.arange(0, BLOCK), source.vocab)
            mass, reference, score, token = draw_from_chunk(
                x, begin, inverse, source.bounds, item, seed, position, index, purpose, TRUNCATED, BLOCK
            )
            tl.store(masses + part, mass)
            tl.store(statistics.scores + partial, score)
            tl.store(statistics.tokens + partial, token)
        else:
            reference = store_masses(
                row, begin, end, source.vocab, inverse, source.bounds, item, masses, TRUNCATED, BLOCK
            )
            if purpose == _INVARIANT:
                x = load_tile(row, begin + tl.arange(0, BLOCK), source.vocab)
                score, token, zero = draw_from_span(
                    row, x, begin, end, source.vocab, inverse, source.bounds, item, seed, position, index, purpose,
                    TRUNCATED, BLOCK,
                )  # fmt: skip
                score += (zero - reference) * (inverse * LOG2_E)
                tl.store(statistics.scores + partial, score)
                tl.store(statistics.tokens + partial, token)
        tl.store(statistics.references + partial, reference)
    else:
        x = load_tile(row, begin + tl.arange(0, BLOCK), source.vocab)
        top, token = largest_of_span(row, x, begin, end, source.vocab, BLOCK)
        tl.store(statistics.scores + partial, top)
        tl.store(statistics.tokens + partial, token)
    # Computed before the atomic below, so that the last program does not add it to its latency.
    lane = tl.arange(0, CHUNKS)
    noise = chunk_gumbel(seed, position, index, purpose, lane)
    if ~is_last(statistics.arrivals, item, parts):
        return
    used = lane < parts
    tokens = load_part(statistics.tokens + row64 * parts + lane, used, 0)
    scores = load_part(statistics.scores + row64 * parts + lane, used, float("-inf"))
    lse = tl.zeros([], tl.float64)
    if temp > 0.0:
        status, largest, log_masses = load_log_masses(
            statistics.masses, statistics.references, item, inverse, chunks, parts, per, CHUNKS
        )  # fmt: skip
        lse = largest.to(tl.float64) * inverse.to(tl.float64) + tl.log(tl.sum(tl.exp(log_masses))).to(tl.float64)
        if purpose == _INVARIANT:
            references = load_part(statistics.references + row64 * parts + lane, used, 0.0)
            _, drawn = best_of(common_scores(scores, references, inverse, 0), tokens)
        else:
            labels = tokens
            if per > 1:
                labels = lane
            _, drawn = select_chunk(log_masses, noise, labels)
            if per > 1:
                begin = drawn * BLOCK
                x = load_tile(row, begin + tl.arange(0, BLOCK), source.vocab)
                _, _, _, drawn = draw_from_chunk(
                    x, begin, inverse, source.bounds, item, seed, position, index, purpose,
                    TRUNCATED, BLOCK,
                )  # fmt: skip
    else:
        status = status_of(scores, 0)
        _, drawn = best_of(scores, tokens)
    tl.store(out_token + row64 * stride_out, tl.where(status == 0, drawn, -1).to(tl.int64))
    tl.store(out.lse + item, lse)
    tl.store(out.status + item, status)
    if out.emitted is not None:
        tl.store(out.emitted + item, (status == 0).to(tl.int32))
        tl.store(out.accepted + item, tl.zeros([], tl.int32))


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
    receive the counts of a round without drafts.
    """
    logits = logits[:, :vocab_size]
    count, vocab = sampling.temperature.shape[0], logits.shape[1]
    tokens = torch.empty(count, dtype=torch.int64, device=logits.device) if out is None else out
    rows = LogitRows(logits, row_map, logits.stride(0), logits.stride(0), vocab, count, 1)
    truncated = sampling.truncated and not sampling.all_greedy and count > 0
    bounds = truncation_bounds(rows, sampling) if truncated else None
    drawn = Sampled(tokens, doubles(logits, count), int32s(logits, count), bounds)
    if count == 0:
        return drawn
    cut = chunk_tiling(logits.device, vocab, count)
    statistics = ChunkStatistics(
        floats(logits, count, cut.chunks), floats(logits, count, cut.parts), int32s(logits, count, cut.parts),
        arrivals(logits, count), floats(logits, count, cut.parts),
    )  # fmt: skip
    _sample_kernel[(count * cut.parts,)](
        rows.args(bounds), StreamArgs(sampling.temperature, sampling.seed, positions), statistics,
        tokens, DrawResults(drawn.lse, drawn.status, emitted, accepted),
        tokens.stride(0), cut.chunks, cut.parts, cut.per, 0 if purpose == Purpose.INVARIANT else index, int(purpose),
        ALL_GREEDY=sampling.all_greedy, BLOCK=cut.block, CHUNKS=cut.chunks_pad, num_warps=cut.warps,
        maxnreg=MAX_REGISTERS, **launch_options(logits),
    )  # fmt: skip
    return drawn
