"""Groups of kernel arguments. A kernel takes each group as one NamedTuple and reads its fields by name.

R requests, K drafts at most, V vocabulary entries, N items, D rows of draft logits.

- Triton specialises integers inside a tuple by value (1, multiples of 16) even if the tuple is listed in
  `do_not_specialize`. Integers that must not be specialised are therefore separate arguments.
- None inside a tuple is a compile-time constant: `args.field is not None` selects code. Compare fields only, because
  triton 3.6 cannot compare a whole tuple with None.
- Names such as `values` and `type` are attributes of Triton's own tuples and cannot be fields.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from specpipe_kernels.types import Bounds


class NoBounds(NamedTuple):
    """Stands for `Bounds` where nothing is truncated."""

    logit: None = None
    token: None = None


NO_BOUNDS = NoBounds()


class LogitsArgs(NamedTuple):
    """Rows of logits, addressed by request and position, and the truncation bounds of their items."""

    logits: Tensor | None
    """bf16, fp16 or fp32, rows of V entries; None: one-hot proposals."""
    row_map: Tensor | None
    """[R] int: group of rows of each request; None: its own number."""
    bounds: Bounds | NoBounds
    """[N] each."""
    stride_group: int | None
    """Elements from one group of rows to the next."""
    stride_row: int | None
    """Elements from one row to the next."""
    vocab: int | None
    """V."""


NO_LOGITS = LogitsArgs(None, None, NO_BOUNDS, None, None, None)


class DraftArgs(NamedTuple):
    """Drafts of R requests, and what the caller of a verification knows about them."""

    tokens: Tensor | None
    """[R, K] int64."""
    counts: Tensor | None
    """[R] int32."""
    lse: Tensor | None = None
    """[D, K] fp64 (fp32): log-sum-exps of q; None: computed from its logits, or not needed."""
    bonus_tokens: Tensor | None = None
    """[R] int64: tokens after full acceptance; None: drawn from the row behind the drafts."""
    rates: Tensor | None = None
    """[K] fp32: fractions of requests that accept each draft and all earlier ones; None: drafts are compared with p."""


class SlotTexts(NamedTuple):
    """Distinct tokens of the texts in S slots, and the slots of R requests."""

    tokens: Tensor
    """[S, C] int64: prompt and output."""
    seen: Tensor
    """[S, C] int32: above 0 at a token's first occurrence, 1 + its occurrences in the output."""
    slots: Tensor
    """[R] int64."""
    lengths: Tensor
    """[R] int64: tokens of each request."""


class StreamArgs(NamedTuple):
    """Temperatures and random streams of R requests."""

    temperature: Tensor
    """[R] fp32."""
    seeds: Tensor
    """[R] int64."""
    positions: Tensor
    """[R] int64: position of the first token that the round emits."""


class VerdictArgs(NamedTuple):
    """Results of R requests; see `RejectionOutput`."""

    tokens: Tensor
    """[R, K+1] int64."""
    emitted: Tensor
    """[R] int32."""
    accepted: Tensor
    """[R] int32."""
    status: Tensor
    """[R] int32."""
    counts: Tensor | None = None
    """[4, K+1] int64: counters of all rounds, to which a round is added; None: not counted."""


class SpanStatistics(NamedTuple):
    """Statistics of N items in S spans each."""

    scores: Tensor | None
    """[N, S] fp32: largest logit, best score or mass."""
    references: Tensor | None
    """[N, S] fp32: logit that the score or mass refers to."""
    tokens: Tensor | None
    """[N, S] int32: token of the largest logit or best score."""


NO_SPANS = SpanStatistics(None, None, None)


class ScanMemory(NamedTuple):
    """Memory through which the programs of a request combine the spans of its rows."""

    p: SpanStatistics
    """Statistics of item r * (K+1) + i."""
    q: SpanStatistics
    """Statistics of item r * K + i; all None if q is not scanned."""
    arrivals: Tensor
    """[R] int32 counters, 0 between launches."""


class ChunkStatistics(NamedTuple):
    """Statistics of N rows, C chunks each, in S programs each, through which the programs of a row combine them."""

    masses: Tensor
    """[N, C] fp32: mass of each chunk."""
    references: Tensor
    """[N, S] fp32: logit that the masses of a program refer to."""
    tokens: Tensor
    """[N, S] int32: token drawn by a program."""
    arrivals: Tensor
    """[N] int32 counters, 0 between launches."""
    scores: Tensor | None = None
    """[N, S] fp32: largest logit, or score of the token; None: not needed."""


class ScanResults(NamedTuple):
    """Results of scanning R requests, which later launches read; undefined where nothing was scanned."""

    p_reference: Tensor
    """[R, K+1] fp32: a large logit of p, which the mass refers to."""
    p_log_mass: Tensor
    """[R, K+1] fp32: logarithm of the mass of p."""
    q_reference: Tensor
    """[R, K+1] fp32, as are the others; undefined with one-hot proposals."""
    q_log_mass: Tensor
    weight: Tensor | None
    """[R, K+1] fp32: p_i of block verification."""
    undecided: Tensor | None
    """[R] int64: bit i - 1 is set if block verification needs S_i; 0 where the request is decided."""
