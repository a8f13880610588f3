"""Counts of a slot's distinct tokens with Triton: one pass over them for each request that emits."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import power_of_2
from specpipe_kernels.sampling.device.distinct_tokens import block_of, duplicates_of, is_neutral, load_distinct
from specpipe_kernels.sampling.device.kernel_args import SlotTexts
from specpipe_kernels.types import Penalties


@triton.jit(do_not_specialize=["stride_slot", "stride_seen", "stride_new", "width"])
def _count_tokens_kernel(
    texts, penalties, new_tokens, stride_slot, stride_seen, stride_new, width,
    K_PAD: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(PDL)
    request = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, K_PAD)
    new = tl.load(new_tokens + request * stride_new + lane, mask=lane < width, other=-1)
    repetition = tl.load(penalties.repetition + request)
    presence = tl.load(penalties.presence + request)
    frequency = tl.load(penalties.frequency + request)
    if is_neutral(repetition, presence, frequency) | (tl.max(new) < 0):
        return
    slot = tl.load(texts.slots + request).to(tl.int64)
    length = tl.load(texts.lengths + request).to(tl.int32)
    entries = texts.seen + slot * stride_seen
    matched = tl.zeros([K_PAD], tl.int32)
    for start in range(0, length, BLOCK):
        entry, token = load_distinct(texts.tokens + slot * stride_slot, entries, start, length, BLOCK)
        same = (token[:, None] == new[None, :]).to(tl.int32)
        added = tl.sum(same, 1)
        matched = tl.maximum(matched, tl.max(same, 0))
        tl.store(entries + start + tl.arange(0, BLOCK), entry + added, mask=added > 0)
    occurrences, is_first = duplicates_of(new, K_PAD)
    tl.store(entries + length + lane, tl.where(is_first & (matched == 0), 1 + occurrences, 0), mask=new >= 0)
    let_next_start(PDL)


def count_tokens(
    tokens: Tensor, seen: Tensor, slots: Tensor, lengths: Tensor, penalties: Penalties, new_tokens: Tensor
) -> None:
    """See `specpipe_kernels.count_tokens`."""
    count, width = new_tokens.shape
    k_pad = power_of_2(max(1, width))
    _count_tokens_kernel[(count,)](
        SlotTexts(tokens, seen, slots, lengths), penalties, new_tokens,
        tokens.stride(0), seen.stride(0), new_tokens.stride(0), width, K_PAD=k_pad, BLOCK=block_of(k_pad),
        **launch_options(tokens),
    )  # fmt: skip
