"""Writes a round's emitted tokens to its slots, one program a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import power_of_2
from specpipe_kernels.sampling.device.kernel_args import VerdictArgs
from specpipe_kernels.types import RejectionOutput, SlotTensors


@triton.jit(do_not_specialize=["source", "draft_steps", "k", "stops", "stride_tokens"])
def _commit_rows_kernel(
    state, slots, lengths, verdict, proposed, sources, packed, source, draft_steps, k, stops, stride_tokens,
    DRAFTED: tl.constexpr, K_PAD: tl.constexpr, E_PAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    wait_for_inputs(PDL)
    slot = tl.load(slots + row)
    before = tl.load(lengths + row)
    was_active = tl.load(state.active + slot) != 0
    drafts = tl.load(proposed + row).to(tl.int64)
    accepted = tl.load(verdict.accepted + row).to(tl.int64)
    status = tl.load(verdict.status + row).to(tl.int64)
    i = tl.arange(0, K_PAD)
    e = tl.arange(0, E_PAD)
    token = tl.load(verdict.tokens + row * (k + 1) + i, mask=i <= k, other=-1)
    stop = tl.load(state.stop_ids + slot * stops + e, mask=e < stops, other=-1)
    emitted = tl.where(was_active, tl.load(verdict.emitted + row), 0)
    is_stop = (tl.max((token[:, None] == stop[None, :]).to(tl.int32), 1) > 0) & (i < emitted)
    first_stop = tl.min(tl.where(is_stop, i, k + 1))
    emitted = tl.minimum(emitted, first_stop + 1).to(tl.int64)
    token = tl.where(i < emitted, token, -1)
    # Columns past the emission land beyond the new length, where nothing is read.
    tl.store(state.tokens + slot * stride_tokens + before + i, tl.maximum(token, 0), mask=i <= k)
    after = before + emitted
    ended = (first_stop <= k) | (after >= tl.load(state.limit + slot)) | (status > 0)
    valid = tl.load(state.draft_valid + slot)
    if DRAFTED:
        # The draft model never processed its last draft, and its KV behind the first rejected draft is stale.
        advances = was_active & (drafts > 0) & (valid >= before - 2)
        valid = tl.where(advances, before + tl.minimum(accepted, draft_steps - 1), valid)
    if sources is not None:
        source = tl.load(sources + row)
    tl.debug_barrier()  # all threads have read the slot before any thread writes it
    tl.store(state.length + slot, after)
    tl.store(state.active + slot, (was_active & ~ended).to(tl.uint8))
    if DRAFTED:
        tl.store(state.draft_valid + slot, valid)
    out = packed + row * (k + 7)
    tl.store(out + i, token, mask=i <= k)
    tl.store(out + k + 1, emitted)
    tl.store(out + k + 2, accepted)
    tl.store(out + k + 3, drafts)
    tl.store(out + k + 4, status)
    tl.store(out + k + 5, tl.where(drafts > 0, source, 0).to(tl.int64))
    tl.store(out + k + 6, valid)
    let_next_start(PDL)


def commit_rows(
    state: SlotTensors,
    slots: Tensor,
    lengths: Tensor,
    verdict: RejectionOutput,
    proposed: Tensor,
    *,
    sources: Tensor | int,
    draft_steps: int,
) -> Tensor:
    """See `specpipe_kernels.commit_rows`."""
    count, width = verdict.tokens.shape
    packed = torch.empty(count, width + 6, dtype=torch.int64, device=slots.device)
    stops = state.stop_ids.shape[1]
    by_row, source = (None, sources) if isinstance(sources, int) else (sources, 0)
    _commit_rows_kernel[(count,)](
        state.with_bytes(), slots, lengths, VerdictArgs(*verdict[:4]), proposed, by_row,
        packed, source, draft_steps, width - 1, stops, state.tokens.stride(0),
        DRAFTED=draft_steps > 0, K_PAD=power_of_2(width), E_PAD=power_of_2(stops), num_warps=1, **launch_options(slots),
    )  # fmt: skip
    return packed
