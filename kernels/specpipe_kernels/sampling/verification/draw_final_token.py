"""Draw of the token after the accepted drafts, recovered or bonus, from the row where a request's verification stopped.

A program processes some chunks of that row; the last one of a request combines them. Requests are processed in reverse
order, because the rows that verification read last are still in L2; in order after block verification, which already
went in reverse.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.sampling.device.kernel_args import (
    NO_LOGITS,
    ChunkStatistics,
    DraftArgs,
    ScanResults,
    StreamArgs,
    VerdictArgs,
)
from specpipe_kernels.sampling.device.logit_rows import (
    floats,
    int32s,
    inverse_temperature,
    is_last,
    load_drafts,
    load_part,
    load_tile,
    row_pointer,
)
from specpipe_kernels.sampling.device.philox import chunk_gumbel
from specpipe_kernels.sampling.device.row_spans import span_of
from specpipe_kernels.sampling.device.vocab_chunks import (
    chunk_tiling,
    draw_from_chunk,
    load_log_masses,
    select_chunk,
    store_masses,
)
from specpipe_kernels.sampling.verification.distributions import Distribution, log_prob_scale
from specpipe_kernels.sampling.verification.emit import add_counts, emit
from specpipe_kernels.sampling.verification.residual import draw_from_residual, store_residual_masses
from specpipe_kernels.types import Purpose

# More registers would leave too few warps to hide memory latency. With few programs (SINGLE) latency matters most.
MAX_REGISTERS, SINGLE_REGISTERS = 64, 96
_RECOVERED = tl.constexpr(int(Purpose.RECOVERED))
_BONUS = tl.constexpr(int(Purpose.BONUS))


@triton.jit
def _residual_log_masses(masses, chunks, CHUNKS: tl.constexpr):
    """Returns [CHUNKS] logarithms of the chunks' masses."""
    lane = tl.arange(0, CHUNKS)
    mass = load_part(masses + lane, lane < chunks, 0.0)
    return tl.where(mass > 0.0, tl.log(mass), float("-inf"))


@triton.jit
def _load_chunk(row, q_row, begin, p_vocab, q_vocab, ONE_HOT: tl.constexpr, BLOCK: tl.constexpr):
    """Returns the logits of a chunk of p and q; those of p twice for one-hot proposals."""
    x = load_tile(row, begin + tl.arange(0, BLOCK), p_vocab)
    y = x
    if not ONE_HOT:
        y = load_tile(q_row, begin + tl.arange(0, BLOCK), q_vocab)
    return x, y


@triton.jit(do_not_specialize=["k", "stride_draft", "parts", "per", "requests"])
def _draw_kernel(
    p, q, proposals, streams, results, statistics, out, stride_draft, chunks, parts, per, k, requests,
    K_PAD: tl.constexpr, BONUS: tl.constexpr, SINGLE: tl.constexpr,
    BLOCK: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    ONE_HOT: tl.constexpr = q.logits is None
    TRUNCATED: tl.constexpr = p.bounds.logit is not None
    WEIGHTED: tl.constexpr = results.weight is not None
    request = tl.program_id(0) // parts
    if not WEIGHTED:
        request = requests - 1 - request
    part = tl.program_id(0) % parts
    begin, end = span_of(part, per, p.vocab, BLOCK)
    request64 = request.to(tl.int64)
    lane = tl.arange(0, K_PAD)
    # Loaded before the wait: verification does not write these.
    temp = tl.load(streams.temperature + request)
    seed = tl.load(streams.seeds + request)
    position = tl.load(streams.positions + request)
    count, drafts = load_drafts(proposals.tokens, stride_draft, proposals.counts, request, k, K_PAD)
    wait_for_inputs(PDL)
    let_next_start(PDL)
    status = tl.load(out.status + request)
    i = tl.load(out.accepted + request)
    item = request * (k + 1) + i
    items = request64 * (k + 1) + lane
    p_references = tl.load(results.p_reference + items, mask=lane <= k, other=0.0)
    p_log_masses = tl.load(results.p_log_mass + items, mask=lane <= k, other=0.0)
    q_references = tl.load(results.q_reference + items, mask=lane <= k, other=0.0)
    q_log_masses = tl.load(results.q_log_mass + items, mask=lane <= k, other=0.0)
    if WEIGHTED:
        p_log_masses -= tl.log(tl.load(results.weight + items, mask=lane <= k, other=1.0))
    if ~(temp > 0.0) | (status != 0):
        return
    position += i
    rejected = i < count
    if not BONUS and ~rejected:
        if out.counts is not None and part == 0:
            add_counts(out.counts, k, i, count, K_PAD)
        return
    purpose = tl.where(rejected, _RECOVERED, _BONUS)
    inverse = inverse_temperature(temp)
    q_item = request * k + i
    row = row_pointer(p, request, i)
    q_row = row
    q_vocab = p.vocab
    one_hot = True
    if not ONE_HOT:
        q_row = row_pointer(q, request, i)
        q_vocab = q.vocab
        one_hot = False
        if q.row_map is not None:
            one_hot = tl.load(q.row_map + request) < 0
            q_vocab = tl.where(one_hot, 0, q_vocab)  # reads no logits, which counts as -inf
    masses = statistics.masses + request64 * chunks
    partial = request64 * parts + part
    # Values of the residual; a bonus row has none.
    ended = (lane == i) & rejected
    p_scale = log_prob_scale(p_references, p_log_masses, ended, inverse)
    q_scale = log_prob_scale(q_references, q_log_masses, ended, inverse)
    draft = tl.sum(tl.where(ended & one_hot, drafts + 1, 0)) - 1  # -1 where q is not one-hot
    if rejected:
        if SINGLE:
            x, y = _load_chunk(row, q_row, begin, p.vocab, q_vocab, ONE_HOT, BLOCK)
            mass, token = draw_from_residual(
                x, y, begin, seed, position, i, draft,
                p_scale, p.bounds, item, q_scale, q.bounds, q_item,
                ONE_HOT, TRUNCATED, BLOCK,
            )  # fmt: skip
            tl.store(masses + part, mass)
            tl.store(statistics.tokens + partial, token)
        else:
            store_residual_masses(
                row, q_row, begin, end, p.vocab, q_vocab, masses, draft,
                p_scale, p.bounds, item, q_scale, q.bounds, q_item,
                ONE_HOT, TRUNCATED, BLOCK,
            )  # fmt: skip
    else:
        if SINGLE:
            x = load_tile(row, begin + tl.arange(0, BLOCK), p.vocab)
            mass, reference, _, token = draw_from_chunk(
                x, begin, inverse, p.bounds, item, seed, position, i, _BONUS,
                TRUNCATED, BLOCK,
            )  # fmt: skip
            tl.store(masses + part, mass)
            tl.store(statistics.tokens + partial, token)
        else:
            reference = store_masses(row, begin, end, p.vocab, inverse, p.bounds, item, masses, TRUNCATED, BLOCK)
        tl.store(statistics.references + partial, reference)
    # Computed before the atomic below, so that the last program does not add it to its latency.
    noise = chunk_gumbel(seed, position, i, purpose, tl.arange(0, CHUNKS))
    if ~is_last(statistics.arrivals, request, parts):
        return
    labels = tl.arange(0, CHUNKS)
    if SINGLE:
        labels = load_part(statistics.tokens + request64 * parts + labels, labels < parts, 0)
    has_residual = rejected  # p - q has mass
    if rejected:
        score, last = select_chunk(_residual_log_masses(masses, chunks, CHUNKS), noise, labels)
        has_residual = score > float("-inf")
        if ~has_residual:
            # p = q up to rounding: this program alone draws from p.
            store_masses(row, 0, p.vocab, p.vocab, inverse, p.bounds, item, masses, TRUNCATED, BLOCK)
            tl.debug_barrier()
            _, last = select_chunk(_residual_log_masses(masses, chunks, CHUNKS), noise, tl.arange(0, CHUNKS))
    else:
        status, _, log_masses = load_log_masses(
            statistics.masses, statistics.references, request, inverse, chunks, parts, per, CHUNKS
        )  # fmt: skip
        _, last = select_chunk(log_masses, noise, labels)
    if not SINGLE or (rejected & ~has_residual):
        begin = last * BLOCK
        if has_residual:
            x, y = _load_chunk(row, q_row, begin, p.vocab, q_vocab, ONE_HOT, BLOCK)
            _, last = draw_from_residual(
                x, y, begin, seed, position, i, draft,
                p_scale, p.bounds, item, q_scale, q.bounds, q_item,
                ONE_HOT, TRUNCATED, BLOCK,
            )  # fmt: skip
        else:
            x = load_tile(row, begin + tl.arange(0, BLOCK), p.vocab)
            _, _, _, last = draw_from_chunk(
                x, begin, inverse, p.bounds, item, seed, position, i, purpose,
                TRUNCATED, BLOCK,
            )  # fmt: skip
    if rejected:
        tl.store(out.tokens + item, last.to(tl.int64))
    else:
        emit(out, drafts, request, k, i, last, status, K_PAD)
    if out.counts is not None and status == 0:
        add_counts(out.counts, k, i, count, K_PAD)


def draw_final_token(
    p: Distribution,
    q: Distribution | None,
    proposals: DraftArgs,
    streams: StreamArgs,
    verdict: VerdictArgs,
    verified: ScanResults,
) -> None:
    """Completes `verdict` with the recovered or, unless given, the bonus token of every valid random request."""
    rows, like, requests = p.rows, p.rows.logits, p.rows.requests
    cut = chunk_tiling(like.device, rows.vocab, requests)
    single = cut.per == 1
    statistics = ChunkStatistics(
        floats(like, requests, cut.chunks), floats(like, requests, cut.parts), int32s(like, requests, cut.parts),
        arrivals(like, requests),
    )  # fmt: skip
    _draw_kernel[(requests * cut.parts,)](
        p.args, q.args if q else NO_LOGITS, DraftArgs(*proposals[:2]), streams, verified._replace(undecided=None),
        statistics, verdict, rows.stride_draft, cut.chunks, cut.parts, cut.per, rows.width - 1, requests,
        K_PAD=rows.k_pad, BONUS=proposals.bonus_tokens is None, SINGLE=single, BLOCK=cut.block, CHUNKS=cut.chunks_pad,
        num_warps=cut.warps, maxnreg=SINGLE_REGISTERS if single else MAX_REGISTERS, **launch_options(like),
    )  # fmt: skip
