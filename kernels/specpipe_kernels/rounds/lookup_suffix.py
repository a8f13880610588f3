"""Finds the texts that hold the last tokens of rows and what most of them continue with, one program a row.

All segments are searched at once, each in steps of PROBES + 1 parts: a step waits for memory twice.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import power_of_2
from specpipe_kernels.types import NEIGHBOURS, OCCURRENCES, SUFFIX_TOKENS, Followed, SlotTensors, SuffixIndex

PROBES = 8
"""Entries of a segment that a step compares. 1, 64 and 256 rows over 4 million tokens on an H200, µs with four warps:
2 16.8, 17.5, 21.7; 4 16.6, 17.4, 21.3; 8 13.9, 14.8, 19.7; eight warps: 8 15.2, 16.1, 22.4; 16 15.1, 16.0, 22.7."""
NUM_WARPS = 4


@triton.jit
def _contexts(index, suffix, at, valid, depth, N: tl.constexpr):
    """Returns the tokens before `at` [G, E] and true where they differ from the suffix, both [G, E, D]."""
    inside = valid[:, :, None] & (depth < N)[None, None, :]
    context = tl.load(index.tokens + (at[:, :, None] - 1 - depth[None, None, :]), mask=inside, other=0)
    return context, (context != suffix[None, None, :]) & inside


@triton.jit
def _insertion(index, suffix, base, count, depth, steps, PROBES: tl.constexpr, N: tl.constexpr):
    """Returns the number of entries [G] that are not behind the suffix. base, count [G]: first address, entries."""
    part = tl.arange(0, PROBES)
    begin = tl.zeros_like(count)
    end = count
    for _ in range(steps):
        size = end - begin
        probe = begin[:, None] + (part + 1)[None, :] * size[:, None] // (PROBES + 1)
        valid = (size > 0)[:, None] & (probe >= 0)
        at = base[:, None] + tl.load(index.places + base[:, None] + probe, mask=valid, other=N)
        context, differs = _contexts(index, suffix, at, valid, depth, N)
        departs = tl.min(tl.where(differs, depth[None, None, :], N), 2)
        behind = differs & (depth[None, None, :] == departs[:, :, None]) & (context > suffix[None, None, :])
        precedes = (tl.sum(behind.to(tl.int32), 2) == 0) & valid
        passed = tl.sum(precedes.to(tl.int32), 1)
        end = begin + (passed + 1) * size // (PROBES + 1)
        begin = tl.where(passed > 0, begin + passed * size // (PROBES + 1) + 1, begin)
    return begin


@triton.jit
def _majority(index, chosen, count, k, C: tl.constexpr):
    """Returns the address of an occurrence with which most of them agree longest, and the number of such tokens.

    chosen: `count` addresses of occurrences.
    """
    i = tl.arange(0, C)
    row = tl.load(chosen + i[:, None], mask=(i < count)[:, None], other=0)
    column = tl.load(chosen + i[None, :], mask=(i < count)[None, :], other=0)
    same = (i < count)[:, None] & (i < count)[None, :]
    agreed = tl.zeros([C], tl.int32)
    for j in range(tl.where(count > 0, k, 0)):
        own = tl.load(index.tokens + row + j)
        same = same & (own == tl.load(index.tokens + column + j)) & (own >= 0)
        agreed += (2 * tl.sum(same.to(tl.int32), 1) > count).to(tl.int32)
    longest, best = tl.max(agreed, 0, return_indices=True)
    return tl.load(chosen + best), longest


@triton.jit(do_not_specialize=["k", "min_match", "groups", "steps", "width", "stride_tokens"])
def _lookup_suffix_kernel(
    tokens, index, slots, lengths, max_drafts, out, chosen, k, min_match, groups, steps, width, stride_tokens,
    N: tl.constexpr, D: tl.constexpr, G: tl.constexpr, NEIGHBOURS: tl.constexpr, PROBES: tl.constexpr,
    C: tl.constexpr, K_PAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    wait_for_inputs(PDL)
    length = tl.load(lengths + row)
    fits = tl.load(max_drafts + row)
    depth = tl.arange(0, D)
    column = length - 1 - depth
    own = tokens + tl.load(slots + row) * stride_tokens
    suffix = tl.load(own + column, mask=(column >= 0) & (depth < N), other=-2).to(tl.int32)
    age = tl.arange(0, G)
    segment = tl.where(age < groups, (tl.load(index.newest) - age + groups) % groups, 0)  # the newest one first
    count = tl.where((age < groups) & (fits > 0), tl.load(index.num_sorted + segment), 0)
    base = segment * width

    first = _insertion(index, suffix, base, count, depth, tl.where(fits > 0, steps, 0), PROBES, N)
    entry = first[:, None] + (NEIGHBOURS - 1 - tl.arange(0, 2 * NEIGHBOURS))[None, :]
    inside = (entry >= 0) & (entry < count[:, None])
    at = base[:, None] + tl.load(index.places + base[:, None] + entry, mask=inside, other=N)
    _, differs = _contexts(index, suffix, at, inside, depth, N)
    matched = tl.where(inside, tl.min(tl.where(differs, depth[None, None, :], N), 2), 0)
    longest = tl.max(tl.max(matched, 1), 0)
    found = tl.reshape((matched == longest) & (longest >= min_match), [G * 2 * NEIGHBOURS]).to(tl.int32)
    rank = tl.cumsum(found, 0) - 1
    occurrences = tl.minimum(tl.sum(found, 0), C)
    chosen += row * C
    tl.store(chosen + rank, tl.reshape(at, [G * 2 * NEIGHBOURS]), mask=(found > 0) & (rank < C))
    tl.debug_barrier()  # every thread sees the addresses

    start, agreed = _majority(index, chosen, occurrences, k, C)
    drafts = tl.minimum(agreed, fits)
    i = tl.arange(0, K_PAD)
    draft = tl.load(index.tokens + start + i, mask=i < drafts, other=-1)
    tl.store(out.tokens + row * k + i, draft.to(tl.int64), mask=i < k)
    tl.store(out.num_tokens + row, drafts)
    tl.store(out.matched + row, longest)
    let_next_start(PDL)


def lookup_suffix(
    state: SlotTensors,
    index: SuffixIndex,
    slots: Tensor,
    lengths: Tensor,
    max_drafts: Tensor,
    *,
    k: int,
    min_match: int,
) -> Followed:
    """See `specpipe_kernels.lookup_suffix`."""
    rows, (groups, width) = slots.shape[0], index.places.shape
    out = Followed(
        torch.empty(rows, k, dtype=torch.int64, device=slots.device),
        torch.empty(rows, dtype=torch.int32, device=slots.device),
        torch.empty(rows, dtype=torch.int32, device=slots.device),
    )
    chosen = torch.empty(rows, OCCURRENCES, dtype=torch.int64, device=slots.device)
    _lookup_suffix_kernel[(rows,)](
        state.tokens, index, slots, lengths, max_drafts, out, chosen, k, min_match, groups, _steps(width), width,
        state.tokens.stride(0),
        N=SUFFIX_TOKENS, D=power_of_2(SUFFIX_TOKENS), G=power_of_2(groups), NEIGHBOURS=NEIGHBOURS, PROBES=PROBES,
        C=OCCURRENCES, K_PAD=power_of_2(k), num_warps=NUM_WARPS, **launch_options(slots),
    )  # fmt: skip
    return out


def _steps(entries: int) -> int:
    """Returns the steps after which a search in `entries` has ended: one leaves a part of PROBES + 1 parts, or less."""
    steps = 0
    while entries:
        entries, steps = entries // (PROBES + 1), steps + 1
    return steps
