"""Device functions that all sampling kernels share: where a row is, what it keeps, what its best entry is.

An item is one position of one request: item = request * width + position; padded lanes hold -inf.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.sizes import cdiv, power_of_2

NOWHERE = tl.constexpr(2**31 - 1)  # above every token id
MAX_INVERSE = tl.constexpr(1e30)
# Measured on an H200 (docs/performance.md): what a program costs is spread over long spans, once all are occupied.
MAX_TILE = 2048  # with that many lanes:
LANES = 8
PROGRAMS = 528
MAX_PARTS = 64


class LogitRows(NamedTuple):
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
    def stride_draft(self) -> int:
        return 0 if self.draft_tokens is None else self.draft_tokens.stride(0)

    @property
    def k_pad(self) -> int:
        """A power of 2 above K; 0 where nothing is drafted."""
        return 0 if self.draft_tokens is None else power_of_2(self.draft_tokens.shape[1] + 1)


class RowTiling(NamedTuple):
    """How rows are cut into programs: each reads `steps` tiles of a row, one after the other."""

    tile: int
    steps: int
    parts: int
    """Programs of a row."""
    parts_pad: int
    """The most there can be, a power of 2: the same for any number of rows, so that it compiles once."""
    warps: int


def row_tiling(vocab: int, rows: int, *, lanes: int = LANES, programs: int = 0, warps: int = 8) -> RowTiling:
    """lanes: entries of a tile that a thread takes. programs: of all rows, unless there are more; PROGRAMS if 0.
    warps: of a program, unless its tile is short."""
    tile = max(16, min(MAX_TILE * lanes * warps // (8 * LANES), power_of_2(vocab)))
    most = min(MAX_PARTS, cdiv(vocab, tile))
    steps = cdiv(cdiv(vocab, min(most, max(1, (programs or PROGRAMS) // rows))), tile)
    parts = cdiv(vocab, steps * tile)
    return RowTiling(tile, steps, parts, power_of_2(most), max(1, tile // (32 * lanes)))


def floats(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def int32s(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int32, device=like.device)


def int64s(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device=like.device)


@triton.jit
def load_drafts(draft_tokens, stride_draft, num_drafts, request, k, K_PAD: tl.constexpr):
    """→ drafts of a request before its first placeholder; tokens [K_PAD] of all K, -1 behind."""
    i = tl.arange(0, K_PAD)
    count = tl.load(num_drafts + request).to(tl.int32)
    token = tl.load(draft_tokens + request.to(tl.int64) * stride_draft + i, mask=i < k, other=-1)
    return tl.minimum(count, tl.min(tl.where(token < 0, i, K_PAD))), token


@triton.jit
def count_positions(draft_tokens, stride_draft, num_drafts, request, width, K_PAD: tl.constexpr, BONUS: tl.constexpr):
    """Positions of a request, `width` at most, that are in use; 1 where nothing is drafted (K_PAD 0)."""
    if K_PAD == 0:
        count = 1
    elif BONUS:
        count, _ = load_drafts(draft_tokens, stride_draft, num_drafts, request, width - 1, K_PAD)
        count += 1
    else:
        count, _ = load_drafts(draft_tokens, stride_draft, num_drafts, request, width, K_PAD)
    return count


@triton.jit
def row_pointer(logits, row_map, request, position, stride_group, stride_row, HAS_MAP: tl.constexpr):
    """64-bit offsets: row * V passes 2**31 elements."""
    group = request.to(tl.int64)
    if HAS_MAP:
        group = tl.load(row_map + request).to(tl.int64)
    return logits + group * stride_group + position.to(tl.int64) * stride_row


@triton.jit
def is_last(counters, result, expected):
    """Whether this program is the last of `expected` that store parts of a result; what they stored is then visible."""
    tl.debug_barrier()
    arrived = tl.atomic_add(counters + result, 1, sem="acq_rel")
    last = arrived == expected - 1
    if last:
        tl.store(counters + result, 0)
    return last


@triton.jit
def load_part(at, mask, other):
    """What another program stored: from L2, where it is, not from this multiprocessor's cache."""
    return tl.load(at, mask=mask, other=other, cache_modifier=".cg")


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
