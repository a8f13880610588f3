"""Device functions that all sampling kernels share: where a row is, what it keeps, what its best entry is.

An item is one position of one request: item = request * width + position; padded lanes hold -inf.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

NOWHERE = tl.constexpr(2**31 - 1)  # above every token id
MAX_INVERSE = tl.constexpr(1e30)
MAX_TILE = 4096


class Rows(NamedTuple):
    """Rows of logits addressed by (request, position), and which of them are in use."""

    logits: Tensor
    row_map: Tensor | None
    """[requests] int: the group of rows of a request; None: its own number."""
    stride_group: int
    stride_row: int
    vocab: int
    requests: int
    width: int
    """Positions of a request."""
    draft_tokens: Tensor | None = None
    """[requests, K] int64; None: one position a request, always in use."""
    num_drafts: Tensor | None = None
    bonus: bool = False
    """Whether the position after the last draft is a row too."""

    @property
    def items(self) -> int:
        return self.requests * self.width

    @property
    def tile(self) -> int:
        return tile_of(self.vocab)

    @property
    def tiles(self) -> int:
        return -(-self.vocab // self.tile)

    @property
    def stride_draft(self) -> int:
        return 0 if self.draft_tokens is None else self.draft_tokens.stride(0)

    @property
    def k_pad(self) -> int:
        """A power of 2 above K; 0 where nothing is drafted."""
        return 0 if self.draft_tokens is None else int(triton.next_power_of_2(self.draft_tokens.shape[1] + 1))


def tile_of(vocab: int) -> int:
    """Vocabulary entries that one program reads."""
    return max(16, min(MAX_TILE, int(triton.next_power_of_2(vocab))))


def floats(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def int32s(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int32, device=like.device)


@triton.jit
def count_drafts(draft_tokens, stride_draft, num_drafts, request, K_PAD: tl.constexpr):
    """Drafts of a request before its first placeholder."""
    i = tl.arange(0, K_PAD)
    count = tl.load(num_drafts + request)
    tokens = tl.load(draft_tokens + request.to(tl.int64) * stride_draft + i, mask=i < count, other=0)
    return tl.minimum(count, tl.min(tl.where(tokens < 0, i, K_PAD)))


@triton.jit
def count_positions(draft_tokens, stride_draft, num_drafts, request, K_PAD: tl.constexpr, BONUS: tl.constexpr):
    """Positions of a request that are in use; 1 where nothing is drafted (K_PAD 0)."""
    if K_PAD == 0:
        count = 1
    else:
        count = count_drafts(draft_tokens, stride_draft, num_drafts, request, K_PAD)
        if BONUS:
            count += 1
    return count


@triton.jit
def row_pointer(logits, row_map, request, position, stride_group, stride_row, HAS_MAP: tl.constexpr):
    """64-bit offsets: row * V passes 2**31 elements."""
    group = request.to(tl.int64)
    if HAS_MAP:
        group = tl.load(row_map + request).to(tl.int64)
    return logits + group * stride_group + position.to(tl.int64) * stride_row


@triton.jit
def load_tile(row, offsets, vocab):
    return tl.load(row + offsets, mask=offsets < vocab, other=float("-inf")).to(tl.float32)


@triton.jit
def inverse_temperature(temperature):
    """1 / temperature, and 1 for greedy rows."""
    safe = tl.where(temperature > 0.0, temperature, 1.0)
    return tl.minimum(tl.div_rn(1.0, safe), MAX_INVERSE)


@triton.jit
def is_kept(x, offsets, bound_logit, bound_token, item, TRUNCATED: tl.constexpr):
    """Whether logits x of the token ids `offsets` survive truncation."""
    kept = x > float("-inf")
    if TRUNCATED:
        logit = tl.load(bound_logit + item)
        kept = kept & ((x > logit) | ((x == logit) & (offsets <= tl.load(bound_token + item))))
    return kept


@triton.jit
def best_of(score, token):
    """Largest score and the lowest token id that has it."""
    best = tl.max(score)
    return best, tl.min(tl.where(score == best, token, NOWHERE))
