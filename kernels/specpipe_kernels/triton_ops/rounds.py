"""What stands between the forwards of a round: one program a batch row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.triton_ops.pdl import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.triton_ops.sizes import power_of_2
from specpipe_kernels.types import Fed, OpenedRows, RejectionOutput, SlotTensors

TABLE_BLOCK = 256


@triton.jit(do_not_specialize=["k", "width", "stride_table"])
def _open_rows_kernel(
    length, draft_valid, limit, active, block_table, temperature, top_k, top_p, min_p, seed, slots,
    out_length, out_room, out_draft_room, out_table, out_temperature, out_top_k, out_top_p, out_min_p, out_seed,
    k, width, stride_table, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    wait_for_inputs(PDL)
    slot = tl.load(slots + row)
    tokens = tl.load(length + slot)
    fits = tl.minimum(tl.maximum(tl.load(limit + slot) - tokens - 1, 0), k)
    room = tl.where(tl.load(active + slot) != 0, fits, 0).to(tl.int32)
    tl.store(out_length + row, tokens)
    tl.store(out_room + row, room)
    tl.store(out_draft_room + row, tl.where(tl.load(draft_valid + slot) >= tokens - 2, room, 0))
    tl.store(out_temperature + row, tl.load(temperature + slot))
    tl.store(out_top_k + row, tl.load(top_k + slot))
    tl.store(out_top_p + row, tl.load(top_p + slot))
    tl.store(out_min_p + row, tl.load(min_p + slot))
    tl.store(out_seed + row, tl.load(seed + slot))
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        page = tl.load(block_table + slot * stride_table + column, mask=column < width, other=0)
        tl.store(out_table + row.to(tl.int64) * width + column, page, mask=column < width)
    let_next_start(PDL)


def open_rows(state: SlotTensors, slots: Tensor, *, k: int, width: int) -> OpenedRows:
    """See `specpipe_kernels.open_rows`."""
    count = slots.shape[0]

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=slots.device)

    out = OpenedRows(
        lengths=empty(count, dtype=torch.int64),
        room=empty(count, dtype=torch.int32),
        draft_room=empty(count, dtype=torch.int32),
        block_tables=empty(count, width, dtype=torch.int32),
        temperature=empty(count, dtype=torch.float32),
        top_k=empty(count, dtype=torch.int32),
        top_p=empty(count, dtype=torch.float32),
        min_p=empty(count, dtype=torch.float32),
        seed=empty(count, dtype=torch.int64),
    )
    _open_rows_kernel[(count,)](
        state.length, state.draft_valid, state.limit, state.active.view(torch.uint8), state.block_table,
        state.temperature, state.top_k, state.top_p, state.min_p, state.seed, slots, *out,
        k, width, state.block_table.stride(0), BLOCK=TABLE_BLOCK, num_warps=1, **launch_options(slots),
    )  # fmt: skip
    return out


@triton.jit(
    do_not_specialize=["shift", "width", "last", "drafts_per_row", "stride_draft", "stride_tokens"],
    do_not_specialize_on_alignment=["drafts"],  # a column of the draft tokens so far
)
def _feed_rows_kernel(
    tokens, slots, lengths, drafts, out_tokens, out_positions, out_starts, out_next,
    shift, width, last, drafts_per_row, stride_draft, stride_tokens, T_PAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    wait_for_inputs(PDL)
    slot = tl.load(slots + row)
    length = tl.load(lengths + row)
    start = length + shift
    column = tl.arange(0, T_PAD)
    position = start + column
    wanted = column < width
    committed = tl.maximum(tl.minimum(position, length - 1), 0)
    token = tl.load(tokens + slot * stride_tokens + committed, mask=wanted, other=0)
    if drafts is not None:
        at = tl.maximum(tl.minimum(position - length, drafts_per_row - 1), 0)
        draft = tl.load(drafts + row * stride_draft + at, mask=wanted & (position >= length), other=-1)
        token = tl.where(draft >= 0, draft, token)
    tl.store(out_tokens + row * width + column, token, mask=wanted)
    tl.store(out_positions + row * width + column, tl.minimum(tl.maximum(position, 0), last), mask=wanted)
    tl.store(out_starts + row, start)
    tl.store(out_next + row, start + width)
    let_next_start(PDL)


def feed_rows(
    state: SlotTensors, slots: Tensor, lengths: Tensor, drafts: Tensor | None, *, shift: int, width: int, last: int
) -> Fed:
    """See `specpipe_kernels.feed_rows`."""
    count = slots.shape[0]
    out = Fed(*(torch.empty(n, dtype=torch.int64, device=slots.device) for n in (count * width,) * 2 + (count,) * 2))
    _feed_rows_kernel[(count,)](
        state.tokens, slots, lengths, drafts, *out, shift, width, last,
        0 if drafts is None else drafts.shape[1], 0 if drafts is None else drafts.stride(0), state.tokens.stride(0),
        T_PAD=power_of_2(width), num_warps=1, **launch_options(slots),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["k", "stops", "stride_tokens"])
def _commit_rows_kernel(
    tokens, length, draft_valid, limit, active, stop_ids, slots, lengths,
    verdict_tokens, verdict_emitted, verdict_accepted, verdict_status, proposed, packed, k, stops, stride_tokens,
    DRAFTED: tl.constexpr, K_PAD: tl.constexpr, E_PAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    wait_for_inputs(PDL)
    slot = tl.load(slots + row)
    before = tl.load(lengths + row)
    was_active = tl.load(active + slot) != 0
    accepted = tl.load(verdict_accepted + row).to(tl.int64)
    status = tl.load(verdict_status + row).to(tl.int64)
    i = tl.arange(0, K_PAD)
    e = tl.arange(0, E_PAD)
    token = tl.load(verdict_tokens + row * (k + 1) + i, mask=i <= k, other=-1)
    stop = tl.load(stop_ids + slot * stops + e, mask=e < stops, other=-1)
    emitted = tl.where(was_active, tl.load(verdict_emitted + row), 0)
    is_stop = (tl.max((token[:, None] == stop[None, :]).to(tl.int32), 1) > 0) & (i < emitted)
    first_stop = tl.min(tl.where(is_stop, i, k + 1))
    emitted = tl.minimum(emitted, first_stop + 1).to(tl.int64)
    token = tl.where(i < emitted, token, -1)
    # Columns past the emission land beyond the new length, where no one reads.
    tl.store(tokens + slot * stride_tokens + before + i, tl.maximum(token, 0), mask=i <= k)
    after = before + emitted
    ended = (first_stop <= k) | (after >= tl.load(limit + slot)) | (status > 0)
    valid = before
    if DRAFTED:
        # d_k was never fed, and what follows the first rejected draft is stale.
        valid = tl.load(draft_valid + slot)
        valid = tl.where(was_active & (valid >= before - 2), before + tl.minimum(accepted, k - 1), valid)
    tl.debug_barrier()  # every lane has read the slot before one writes it
    tl.store(length + slot, after)
    tl.store(active + slot, (was_active & ~ended).to(tl.uint8))
    if DRAFTED:
        tl.store(draft_valid + slot, valid)
    out = packed + row * (k + 5)
    tl.store(out + i, token, mask=i <= k)
    tl.store(out + k + 1, emitted)
    tl.store(out + k + 2, accepted)
    tl.store(out + k + 3, tl.load(proposed + row).to(tl.int64))
    tl.store(out + k + 4, status)
    let_next_start(PDL)


def commit_rows(
    state: SlotTensors, slots: Tensor, lengths: Tensor, verdict: RejectionOutput, proposed: Tensor, *, drafted: bool
) -> Tensor:
    """See `specpipe_kernels.commit_rows`."""
    count, width = verdict.tokens.shape
    packed = torch.empty(count, width + 4, dtype=torch.int64, device=slots.device)
    stops = state.stop_ids.shape[1]
    _commit_rows_kernel[(count,)](
        state.tokens, state.length, state.draft_valid, state.limit, state.active.view(torch.uint8), state.stop_ids,
        slots, lengths, *verdict[:4], proposed, packed, width - 1, stops, state.tokens.stride(0),
        DRAFTED=drafted, K_PAD=power_of_2(width), E_PAD=power_of_2(stops), num_warps=1,
        **launch_options(slots),
    )  # fmt: skip
    return packed
