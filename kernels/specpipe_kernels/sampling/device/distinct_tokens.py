"""Device functions over the distinct tokens of a slot and the tokens of a round."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def is_neutral(repetition, presence, frequency):
    """Returns true if these penalties change nothing."""
    return (repetition == 1.0) & (presence == 0.0) & (frequency == 0.0)


@triton.jit
def load_distinct(tokens, seen, start, length, BLOCK: tl.constexpr):
    """Returns BLOCK entries of `seen` from `start` on, and the tokens where they are above 0 (-2 elsewhere)."""
    place = start + tl.arange(0, BLOCK)
    entry = tl.load(seen + place, mask=place < length, other=0)
    return entry, tl.load(tokens + place, mask=entry > 0, other=-2)


@triton.jit
def duplicates_of(new, K_PAD: tl.constexpr):
    """Returns for tokens [K_PAD], padded with -1: occurrences of each among them, and true at its first occurrence."""
    i = tl.arange(0, K_PAD)
    same = ((new[:, None] == new[None, :]) & (new >= 0)[:, None]).to(tl.int32)
    earlier = tl.sum(tl.where(i[None, :] < i[:, None], same, 0), 1)
    return tl.sum(same, 1), (new >= 0) & (earlier == 0)


def block_of(k_pad: int) -> int:
    """Returns the positions per step; each is compared with every token of the round."""
    return max(64, min(1024, 8192 // k_pad))
