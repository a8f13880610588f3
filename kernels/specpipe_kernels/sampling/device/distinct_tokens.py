"""Device functions over a slot's distinct tokens and the tokens of a round."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def is_neutral(repetition, presence, frequency):
    return (repetition == 1.0) & (presence == 0.0) & (frequency == 0.0)


@triton.jit
def load_distinct(tokens, seen, start, length, BLOCK: tl.constexpr):
    """→ entries of `seen`, and the tokens where they are above 0 (-2 elsewhere), of the places start .. + BLOCK - 1."""
    place = start + tl.arange(0, BLOCK)
    entry = tl.load(seen + place, mask=place < length, other=0)
    return entry, tl.load(tokens + place, mask=entry > 0, other=-2)


@triton.jit
def twins_of(new, K_PAD: tl.constexpr):
    """Of tokens [K_PAD], -1 where there is none: how often each stands among them, and whether it is the first."""
    i = tl.arange(0, K_PAD)
    same = ((new[:, None] == new[None, :]) & (new >= 0)[:, None]).to(tl.int32)
    earlier = tl.sum(tl.where(i[None, :] < i[:, None], same, 0), 1)
    return tl.sum(same, 1), (new >= 0) & (earlier == 0)


def block_of(k_pad: int) -> int:
    """Places at once: each is compared with every token of the round."""
    return max(64, min(1024, 8192 // k_pad))
