"""Rows of logits: how the host splits them into programs, and device functions that all sampling kernels share.

An item is one position of one request: item = request * width + position; padded lanes hold -inf.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.runtime.backend import processors
from specpipe_kernels.runtime.sizes import cdiv, power_of_2
from specpipe_kernels.sampling.device.kernel_args import NO_BOUNDS, LogitsArgs
from specpipe_kernels.types import Bounds

NOWHERE = tl.constexpr(2**31 - 1)  # above every token id
MAX_INVERSE = tl.constexpr(1e30)
# Measured on an H200 (docs/notebook.md): once all processors are occupied, long spans amortise a program's cost.
MAX_TILE = 2048  # entries of a tile whose threads take LANES entries each
LANES = 8
PROGRAMS_PER_PROCESSOR = 4
MAX_PARTS = 64


class LogitRows(NamedTuple):
    """Rows of logits addressed by (request, position). Positions beyond a request's drafts are not in use."""

    logits: Tensor
    """bf16, fp16 or fp32, the last dimension contiguous."""
    row_map: Tensor | None
    """[requests] int: the group of rows of a request; None: its own number."""
    stride_group: int
    """Elements from one group of rows to the next."""
    stride_row: int
    """Elements from one row to the next."""
    vocab: int
    requests: int
    width: int
    """Positions of a request."""
    draft_tokens: Tensor | None = None
    """[requests, K] int64; None: one position per request, always in use."""
    num_drafts: Tensor | None = None
    """[requests] int32."""
    bonus: bool = False
    """The position after the last draft is in use too."""

    def args(self, bounds: Bounds | None = None) -> LogitsArgs:
        """Returns these rows, and the truncation bounds of their items, as an argument of a kernel."""
        return LogitsArgs(
            self.logits, self.row_map, bounds or NO_BOUNDS, self.stride_group, self.stride_row, self.vocab
        )

    @property
    def items(self) -> int:
        """Number of positions of all requests."""
        return self.requests * self.width

    @property
    def stride_draft(self) -> int:
        """Elements from one request's draft tokens to the next's."""
        return 0 if self.draft_tokens is None else self.draft_tokens.stride(0)

    @property
    def k_pad(self) -> int:
        """Smallest power of 2 above K; 0 without drafts."""
        return 0 if self.draft_tokens is None else power_of_2(self.draft_tokens.shape[1] + 1)


class RowTiling(NamedTuple):
    """Split of rows into programs: each reads `steps` tiles of a row, one after the other."""

    tile: int
    """Entries of a tile."""
    steps: int
    """Tiles per program."""
    parts: int
    """Programs per row."""
    parts_pad: int
    """Power of 2 that bounds `parts` for any number of rows, so that a kernel compiles once."""
    warps: int
    """Warps per program."""


def max_programs(device: torch.device) -> int:
    """Returns the number of programs among which few rows are split: more would add cost but no bandwidth."""
    return PROGRAMS_PER_PROCESSOR * processors(device)


def row_tiling(
    device: torch.device, vocab: int, rows: int, *, lanes: int = LANES, waves: int = 1, warps: int = 8
) -> RowTiling:
    """Splits `rows` rows of `vocab` entries.

    lanes: entries of a tile that a thread takes. waves: multiple of `max_programs` to split into; more rows than that
    have one program each. warps: of a program, unless its tile is short.
    """
    tile = max(16, min(MAX_TILE * lanes * warps // (8 * LANES), power_of_2(vocab)))
    most = min(MAX_PARTS, cdiv(vocab, tile))
    steps = cdiv(cdiv(vocab, min(most, max(1, waves * max_programs(device) // rows))), tile)
    parts = cdiv(vocab, steps * tile)
    return RowTiling(tile, steps, parts, power_of_2(most), max(1, tile // (32 * lanes)))


def floats(like: Tensor, *shape: int) -> Tensor:
    """Returns an uninitialised fp32 tensor on the device of `like`."""
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def doubles(like: Tensor, *shape: int) -> Tensor:
    """Returns an uninitialised fp64 tensor on the device of `like`."""
    return torch.empty(shape, dtype=torch.float64, device=like.device)


def int32s(like: Tensor, *shape: int) -> Tensor:
    """Returns an uninitialised int32 tensor on the device of `like`."""
    return torch.empty(shape, dtype=torch.int32, device=like.device)


def int64s(like: Tensor, *shape: int) -> Tensor:
    """Returns an uninitialised int64 tensor on the device of `like`."""
    return torch.empty(shape, dtype=torch.int64, device=like.device)


@triton.jit
def load_drafts(draft_tokens, stride_draft, num_drafts, request, k, K_PAD: tl.constexpr):
    """Returns the number of drafts before the first placeholder, and all K tokens [K_PAD], padded with -1."""
    i = tl.arange(0, K_PAD)
    count = tl.load(num_drafts + request).to(tl.int32)
    token = tl.load(draft_tokens + request.to(tl.int64) * stride_draft + i, mask=i < k, other=-1)
    return tl.minimum(count, tl.min(tl.where(token < 0, i, K_PAD))), token


@triton.jit
def count_positions(draft_tokens, stride_draft, num_drafts, request, width, K_PAD: tl.constexpr, BONUS: tl.constexpr):
    """Returns the number of positions of a request that are in use, `width` at most; 1 without drafts (K_PAD 0)."""
    if K_PAD == 0:
        count = 1
    elif BONUS:
        count, _ = load_drafts(draft_tokens, stride_draft, num_drafts, request, width - 1, K_PAD)
        count += 1
    else:
        count, _ = load_drafts(draft_tokens, stride_draft, num_drafts, request, width, K_PAD)
    return count


@triton.jit
def row_pointer(source, request, position):
    """Returns the address of a row of `source`, a `LogitsArgs`. Offsets are 64 bits: row * V exceeds 2**31 elements."""
    group = request.to(tl.int64)
    if source.row_map is not None:
        group = tl.load(source.row_map + request).to(tl.int64)
    return source.logits + group * source.stride_group + position.to(tl.int64) * source.stride_row


@triton.jit
def is_last(counters, result, expected):
    """Returns true in the last of `expected` programs that store parts of a result; all parts are then visible."""
    tl.debug_barrier()
    arrived = tl.atomic_add(counters + result, 1, sem="acq_rel")
    last = arrived == expected - 1
    if last:
        tl.store(counters + result, 0)
    return last


@triton.jit
def load_part(at, mask, other):
    """Loads values that another program stored: from L2, bypassing this multiprocessor's cache."""
    return tl.load(at, mask=mask, other=other, cache_modifier=".cg")


@triton.jit
def load_tile(row, offsets, vocab):
    """Returns fp32 logits of a row at `offsets`; -inf beyond the vocabulary."""
    return tl.load(row + offsets, mask=offsets < vocab, other=float("-inf")).to(tl.float32)


@triton.jit
def inverse_temperature(temperature):
    """Returns 1 / temperature, and 1 for greedy rows."""
    safe = tl.where(temperature > 0.0, temperature, 1.0)
    return tl.minimum(tl.div_rn(1.0, safe), MAX_INVERSE)


@triton.jit
def is_kept(x, offsets, bounds, item, TRUNCATED: tl.constexpr):
    """Returns true where logits x of the token ids `offsets` survive truncation."""
    kept = x > float("-inf")
    if TRUNCATED:
        logit = tl.load(bounds.logit + item)
        kept = kept & ((x > logit) | ((x == logit) & (offsets <= tl.load(bounds.token + item))))
    return kept


@triton.jit
def best_of(score, token):
    """Returns the largest score and the lowest token id that has it."""
    best = tl.max(score)
    return best, tl.min(tl.where(score == best, token, NOWHERE))
