"""Types that the kernels and their callers share."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Method = Literal["standard", "block", "invariant", "synthetic"]
METHODS: tuple[Method, ...] = ("standard", "block", "invariant", "synthetic")

MAX_DRAFTS = 32
"""Largest number of drafts of a row in a round: a warp, and what tests and measurements cover."""

CHUNK = 2048
"""Vocabulary entries of a chunk, the first level of a two-level draw. Changing it changes every random stream."""
MAX_MATCH = 8
"""Longest suffix, in tokens, by which a row finds its place in an earlier answer."""
SUFFIX_TOKENS = 15
"""Tokens before a place that a `SuffixIndex` is sorted by; a longer match counts as this long."""
NEIGHBOURS = 16
"""Sorted entries of a segment on either side of a row's suffix that `lookup_suffix` compares with it."""
OCCURRENCES = 32
"""Occurrences of a suffix that vote."""


class Purpose(IntEnum):
    """Salt of a random stream: draws for different purposes are independent, even with equal seed and position."""

    DRAFT = 1
    """Gumbel noise of a draft token."""
    ACCEPT = 2
    """Uniforms of the acceptance test (standard, synthetic)."""
    RECOVERED = 3
    """Gumbel noise of the token that replaces a rejected one."""
    BONUS = 4
    """Gumbel noise of the token after all drafts were accepted; plain decoding uses this stream at index 0."""
    INVARIANT = 5
    """Gumbel noise that draft and target share; keyed by (seed, position) alone."""
    BLOCK = 6
    """Uniforms of block verification."""


class Status(IntEnum):
    """Result of sampling a row. A row whose status is not OK is called invalid and emits no token."""

    OK = 0
    INVALID = 1
    """The logits contain NaN or +inf."""
    IMPOSSIBLE = 2
    """All logits are -inf: no token can be drawn."""


class SamplingTensors(NamedTuple):
    """Sampling parameters of R rows; every tensor is [R] and lies on the logits' device."""

    temperature: Tensor
    """fp32; logits are divided by it. 0 or below is greedy."""
    top_k: Tensor
    """int32; 0 keeps all."""
    top_p: Tensor
    """fp32; 1 keeps all."""
    min_p: Tensor
    """fp32; 0 keeps all."""
    seed: Tensor
    """int64, 63 bits."""
    all_greedy: bool = False
    """The caller guarantees that every row is greedy: neither noise nor softmax is computed."""
    truncated: bool = True
    """False: the caller guarantees that no row uses top_k, top_p or min_p."""


class Penalties(NamedTuple):
    """Penalties of R rows on tokens that they already contain; every tensor is [R] fp32 on the logits' device."""

    repetition: Tensor
    """Divides positive logits and multiplies negative ones of the tokens of prompt and output; above 0, 1 is off."""
    presence: Tensor
    """Subtracted from the logits of the output's tokens; 0 is off."""
    frequency: Tensor
    """Subtracted once for every occurrence in the output; 0 is off."""


class Bounds(NamedTuple):
    """Truncation bounds of rows: logits above `logit` are kept, and those equal to it of token ids up to `token`."""

    logit: Tensor
    """fp32, of any shape."""
    token: Tensor
    """int32, of the same shape."""


class Sampled(NamedTuple):
    """One token for each of R rows."""

    tokens: Tensor
    """[R] int64; -1 where status is not OK."""
    lse: Tensor
    """[R] fp64: log-sum-exp of the kept logits over temperature, which fp32 cannot hold at 1e-6; 0 for greedy rows."""
    status: Tensor
    """[R] int32, a `Status`."""
    bounds: Bounds | None
    """[R] each, undefined for greedy rows; None with `all_greedy`, or without `truncated`."""


class SlotTensors(NamedTuple):
    """State of S generating requests, one slot each: C tokens at most, E stop ids at most, W pages at most."""

    tokens: Tensor
    """[S, C] int64: prompt and output."""
    length: Tensor
    """[S] int64: number of committed tokens."""
    draft_valid: Tensor
    """[S] int64: number of tokens whose keys and values the draft model has."""
    limit: Tensor
    """[S] int64: length at which a request ends."""
    active: Tensor
    """[S] bool: takes part in rounds."""
    speculates: Tensor
    """[S] bool: may have drafts."""
    stop_ids: Tensor
    """[S, E] int64, padded with -1."""
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

    def with_bytes(self) -> SlotTensors:
        """Returns the same memory with bool tensors as uint8, which Triton loads and stores."""
        return self._replace(active=self.active.view(torch.uint8), speculates=self.speculates.view(torch.uint8))


class ReferenceTensors(NamedTuple):
    """Texts that S requests may follow, one for each slot: the last tokens of the prompt, then an earlier answer."""

    tokens: Tensor
    """[S, T] int32 or int64; an id outside of the vocabulary is never proposed."""
    length: Tensor
    """[S] int64: tokens of the text; 0 without one."""
    anchor: Tensor | None
    """[S] int64: place in the text minus length of the row, as of the last round in which a place was found. None: the
    row's own text, in which the latest place is the nearest."""


class Followed(NamedTuple):
    """Drafts of B batch rows from the texts that they follow, at most K of each."""

    tokens: Tensor
    """[B, K] int64, -1 behind a row's drafts."""
    num_tokens: Tensor
    """[B] int32."""
    matched: Tensor
    """[B] int32: tokens before the place that equal the row's last ones, at most MAX_MATCH (SUFFIX_TOKENS in a pool of
    texts); 0 where none was found."""


class PrefixArgs(NamedTuple):
    """Groups of rows whose block tables begin with the same pages; R rows, a row in one group at most.

    No mask hides shared tokens from a member's queries: their positions are the last shared one's or later, or all
    negative (a row that is not ready).
    """

    prefix_pages: Tensor
    """[R] int64: leading pages of the row that its group shares; 0 for a row in no group."""
    members: Tensor
    """[R] int64: rows of the first group, then those of the second, and so on; entries behind them are not read."""
    cu_members: Tensor
    """[groups + 1] int64: group g has members[cu_members[g]:cu_members[g + 1]]; unused groups are empty."""


class KVScales(NamedTuple):
    """Scales of one layer's pages in 8 bits: a key is its stored entry times the scale of its KV head.

    Stores divide by the scale (they multiply by its reciprocal in fp32) and round to nearest. What lies beyond the
    largest entry, 448, becomes 448; NaN stays NaN.
    """

    k: Tensor | None
    """[Hkv] fp32, above 0. None, as is v, for pages in 16 or 32 bits."""
    v: Tensor | None
    """[Hkv] fp32, above 0."""


UNSCALED = KVScales(None, None)
"""Scales of pages in the dtype of the model."""


class OpenedRows(NamedTuple):
    """The B batch rows of a round, gathered from their slots at its start."""

    lengths: Tensor
    """[B] int64."""
    max_drafts: Tensor
    """[B] int32: draft tokens that fit before the length limit, at most K; 0 for an inactive slot or one that may not
    have drafts."""
    max_model_drafts: Tensor
    """[B] int32: the same, but 0 where the draft model's keys and values do not reach the last committed token."""
    block_tables: Tensor
    """[B, W] int32."""
    temperature: Tensor
    """[B], as are the others: see `SlotTensors`."""
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor


class SuffixIndex(NamedTuple):
    """Texts in G segments of M tokens, each with an index of its suffixes.

    -1 separates texts. Every segment begins with SUFFIX_TOKENS of it and ends with MAX_DRAFTS.
    """

    tokens: Tensor
    """[G, M] int32."""
    places: Tensor
    """[G, M] int32, each SUFFIX_TOKENS to M - MAX_DRAFTS: columns of `tokens`. The first ones of a segment are sorted
    by the token before the place, those with the same one by the token before that, and so on, up to SUFFIX_TOKENS
    tokens; equal ones by the place."""
    num_sorted: Tensor
    """[G] int32: sorted places of each segment; others are never found."""
    newest: Tensor
    """[1] int64: the segment written last. The one behind it is the oldest, and the first is behind the last."""


class ForwardTokens(NamedTuple):
    """T tokens of each of B rows, the input of a forward pass."""

    tokens: Tensor
    """[B * T] int64."""
    positions: Tensor
    """[B * T] int64, clamped to 0 … the last position of the model."""
    starts: Tensor
    """[B] int64: position of the first token, not clamped."""
    next: Tensor
    """[B] int64: position after the last token."""


class RejectionOutput(NamedTuple):
    """Tokens that a round of R rows with at most K drafts emits."""

    tokens: Tensor
    """[R, K+1] int64: accepted drafts, then one recovered or bonus token, then -1."""
    num_emitted: Tensor
    """[R] int32: num_accepted + 1, or 0 where status is not OK."""
    num_accepted: Tensor
    """[R] int32."""
    status: Tensor
    """[R] int32, a `Status`."""
    bounds: Bounds | None = None
    """[R, K+1] each, undefined for greedy rows and for unused positions. None with `all_greedy`, without `truncated`,
    and where bonus tokens were given."""


class TokenScores(NamedTuple):
    """Log-probabilities of N given tokens."""

    logprobs: Tensor
    """[N] fp32; NaN for a row whose logits hold NaN or +inf, or are all -inf."""
    is_greedy: Tensor
    """[N] bool: greedy decoding takes the token."""


class TokenLogprobs(NamedTuple):
    """Log-probabilities of the tokens that R rows emitted in a round of at most K drafts."""

    logprobs: Tensor
    """[R, K+1] fp32, NaN beyond a row's emission."""
    top_tokens: Tensor
    """[R, K+1, n] int64: the most likely tokens, the lowest id first among equals; padded with -1."""
    top_logprobs: Tensor
    """[R, K+1, n] fp32, NaN where `top_tokens` is -1."""
