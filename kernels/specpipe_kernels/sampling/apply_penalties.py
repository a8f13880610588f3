"""Penalties with Triton: a program goes over a slot's distinct tokens and edits one row of logits, each entry once.

The bytes moved grow with the length of the text, not with the vocabulary.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import power_of_2
from specpipe_kernels.sampling.device.distinct_tokens import block_of, duplicates_of, is_neutral, load_distinct
from specpipe_kernels.sampling.device.kernel_args import SlotTexts
from specpipe_kernels.types import Penalties


@triton.jit
def _edit(row, token, outputs, mask, repetition, presence, frequency):
    """Applies penalties to the logits of distinct tokens, which occur `outputs` times in the output."""
    at = row + tl.where(mask, token, 0)
    x = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    x = tl.where(x > 0.0, tl.div_rn(x, tl.zeros_like(x) + repetition), x * repetition)
    x -= frequency * outputs.to(tl.float32)
    x -= tl.where(outputs > 0, presence, 0.0)
    tl.store(at, x.to(row.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["stride_slot", "stride_seen", "stride_draft", "width", "first"])
def _apply_penalties_kernel(
    logits, row_map, texts, penalties, drafts, stride_row, stride_slot, stride_seen, stride_draft, vocab, width, first,
    K_PAD: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    DRAFTED: tl.constexpr = drafts is not None
    wait_for_inputs(PDL)
    request = (tl.program_id(0) // width).to(tl.int64)
    i = tl.program_id(0) % width
    repetition = tl.load(penalties.repetition + request)
    presence = tl.load(penalties.presence + request)
    frequency = tl.load(penalties.frequency + request)
    if is_neutral(repetition, presence, frequency):
        return
    index = request * width + i
    if row_map is not None:
        index = tl.load(row_map + request).to(tl.int64) + i
        if index >= tl.load(row_map + request + 1):
            return
    row = logits + index * stride_row
    slot = tl.load(texts.slots + request).to(tl.int64)
    length = tl.load(texts.lengths + request).to(tl.int32)
    lane = tl.arange(0, K_PAD)
    draft = tl.full([K_PAD], -1, tl.int64)
    if DRAFTED:
        draft = tl.load(drafts + request * stride_draft + lane, mask=lane < first + i, other=-1)
    matched = tl.zeros([K_PAD], tl.int32)
    for start in range(0, length, BLOCK):
        entry, token = load_distinct(
            texts.tokens + slot * stride_slot, texts.seen + slot * stride_seen, start, length, BLOCK
        )
        outputs = entry - 1
        if DRAFTED:
            same = (token[:, None] == draft[None, :]).to(tl.int32)
            outputs += tl.sum(same, 1)
            matched = tl.maximum(matched, tl.max(same, 0))
        _edit(row, token, outputs, (token >= 0) & (token < vocab), repetition, presence, frequency)
    if DRAFTED:
        occurrences, is_first = duplicates_of(draft, K_PAD)
        is_new = is_first & (matched == 0) & (draft < vocab)
        _edit(row, draft, occurrences, is_new, repetition, presence, frequency)
    let_next_start(PDL)


def apply_penalties(
    logits: Tensor,
    tokens: Tensor,
    seen: Tensor,
    slots: Tensor,
    lengths: Tensor,
    penalties: Penalties,
    drafts: Tensor,
    *,
    first: int = 0,
    cu_rows: Tensor | None = None,
) -> None:
    """See `specpipe_kernels.apply_penalties`."""
    count, k = drafts.shape
    width = logits.shape[0] // count if cu_rows is None else k + 1
    k_pad = power_of_2(k + 1)
    if count * width == 0:
        return
    _apply_penalties_kernel[(count * width,)](
        logits, cu_rows, SlotTexts(tokens, seen, slots, lengths), penalties, drafts if k else None,
        logits.stride(0), tokens.stride(0), seen.stride(0), drafts.stride(0), logits.shape[1], width, first,
        K_PAD=k_pad, BLOCK=block_of(k_pad), **launch_options(logits),
    )  # fmt: skip
