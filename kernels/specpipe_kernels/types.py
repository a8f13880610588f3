"""The words that the kernels and their callers share."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, NamedTuple

from torch import Size, Tensor

Method = Literal["standard", "block", "invariant", "synthetic"]
METHODS: tuple[Method, ...] = ("standard", "block", "invariant", "synthetic")

CHUNK = 2048
"""Vocabulary entries of a chunk, which a draw takes first. Part of the random streams, not of how kernels are cut."""


class Purpose(IntEnum):
    """Salt of a random stream: draws for different purposes are independent, whatever else they share."""

    DRAFT = 1
    """Gumbel noise of a draft token."""
    ACCEPT = 2
    """The uniform that a draft token is accepted with (standard, synthetic)."""
    RECOVERED = 3
    """Gumbel noise of the token that replaces a rejected one."""
    BONUS = 4
    """Gumbel noise of the token after all drafts were accepted; plain decoding is this stream at index 0."""
    INVARIANT = 5
    """Gumbel noise that draft and target share; keyed by (seed, position) alone."""
    BLOCK = 6
    """The uniforms of block verification."""


class Status(IntEnum):
    """Whether a row could be sampled."""

    OK = 0
    INVALID = 1
    """NaN or +inf among the logits."""
    IMPOSSIBLE = 2
    """All logits are -inf: no token can be drawn."""


class SamplingTensors(NamedTuple):
    """How each of R rows is drawn; every tensor is [R] and lies on the logits' device."""

    temperature: Tensor
    """fp32; exactly 0 is greedy, otherwise logits are divided by it."""
    top_k: Tensor
    """int32; 0 keeps all."""
    top_p: Tensor
    """fp32; 1 keeps all."""
    min_p: Tensor
    """fp32; 0 keeps all."""
    seed: Tensor
    """int64, 63 bits."""
    all_greedy: bool = False
    """Promise of the host that every temperature is 0: neither noise nor softmax is computed."""
    truncated: bool = True
    """False is a promise of the host that no row uses top_k, top_p or min_p."""


class Penalties(NamedTuple):
    """What R rows hold against tokens that they already contain; every tensor is [R] fp32 on the logits' device."""

    repetition: Tensor
    """Divides positive logits and multiplies negative ones of the tokens of prompt and output; above 0, 1 is off."""
    presence: Tensor
    """Subtracted from the logits of the output's tokens; 0 is off."""
    frequency: Tensor
    """Subtracted once for every occurrence in the output; 0 is off."""


class Bounds(NamedTuple):
    """Where truncation cuts rows: it keeps logits above `logit`, and those equal to it of ids up to `token`."""

    logit: Tensor
    """fp32, of any shape."""
    token: Tensor
    """int32, of the same."""


class Sampled(NamedTuple):
    """One token for each of R rows."""

    tokens: Tensor
    """[R] int64; -1 where status is not OK."""
    lse: Tensor
    """[R] fp32: log-sum-exp of the kept logits over temperature; 0 for greedy rows."""
    status: Tensor
    """[R] int32, a `Status`."""
    bounds: Bounds | None
    """[R] each, undefined for greedy rows; None where the host promised that nothing is truncated, or all greedy."""


class SlotTensors(NamedTuple):
    """What a device knows about S requests that generate, one entry a slot. C tokens at most, E stop ids, W pages."""

    tokens: Tensor
    """[S, C] int64: prompt and output."""
    length: Tensor
    """[S] int64: tokens committed."""
    draft_valid: Tensor
    """[S] int64: tokens whose keys and values the draft model has."""
    limit: Tensor
    """[S] int64: the length at which a request ends."""
    active: Tensor
    """[S] bool: takes part in rounds."""
    stop_ids: Tensor
    """[S, E] int64, -1 where there are fewer."""
    block_table: Tensor
    """[S, W] int32."""
    temperature: Tensor
    """[S] fp32, as are top_p and min_p; see `SamplingTensors`."""
    top_k: Tensor
    """[S] int32."""
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    """[S] int64."""


class OpenedRows(NamedTuple):
    """The requests of a round, read once at its start: B batch rows."""

    lengths: Tensor
    """[B] int64."""
    room: Tensor
    """[B] int32: draft tokens that fit before the limit, at most K; 0 for an inactive slot."""
    draft_room: Tensor
    """[B] int32: the same, but 0 where the draft model's keys and values are behind."""
    block_tables: Tensor
    """[B, W] int32."""
    temperature: Tensor
    """[B], as are the others: see `SlotTensors`."""
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor


class Fed(NamedTuple):
    """T tokens of each of B rows, as a forward takes them."""

    tokens: Tensor
    """[B * T] int64."""
    positions: Tensor
    """[B * T] int64, cut to 0 … the last one that a model knows."""
    starts: Tensor
    """[B] int64: the first token's position, not cut."""
    next: Tensor
    """[B] int64: the position after the last token."""


class RejectionOutput(NamedTuple):
    """What a round of R rows with at most K drafts emits."""

    tokens: Tensor
    """[R, K+1] int64: accepted drafts, then one recovered or bonus token, then -1."""
    num_emitted: Tensor
    """[R] int32: num_accepted + 1, or 0 where status is not OK."""
    num_accepted: Tensor
    """[R] int32."""
    status: Tensor
    """[R] int32, a `Status`."""
    bounds: Bounds | None = None
    """[R, K+1] each, undefined for greedy rows and rows that were not in use. None where the host promised that nothing
    is truncated, or all greedy, and with a given bonus token."""


class TokenLogprobs(NamedTuple):
    """Log-probabilities of the tokens that R rows emitted in a round of at most K drafts."""

    logprobs: Tensor
    """[R, K+1] fp32, NaN beyond a row's emission."""
    top_tokens: Tensor
    """[R, K+1, n] int64: the most likely tokens, the lowest id first among equals; -1 where there are no more."""
    top_logprobs: Tensor
    """[R, K+1, n] fp32, NaN beside -1."""


class Fp8Weight(NamedTuple):
    """A weight [N, K] in 8 bits for products of few rows, and the same values in full for the others."""

    values: Tensor
    """[N, K] float8_e4m3fn."""
    scale: Tensor
    """[N] fp32, powers of two."""
    full: Tensor
    """[N, K] = values * scale, in the type of the activations."""

    @property
    def shape(self) -> Size:
        return self.full.shape


def full_weight(weight: Tensor | Fp8Weight) -> Tensor:
    return weight.full if isinstance(weight, Fp8Weight) else weight


class Normed(NamedTuple):
    """Rows [M, H] behind an RMS norm, whose last factor may still be open."""

    values: Tensor
    """[M, H]; if `squares` is given, h * norm weight, still to be scaled by rsqrt(mean h² + eps)."""
    squares: Tensor | None
    """[parts, M] fp32: sums of h² over parts of each row; None if the norm is complete."""
    eps: float
