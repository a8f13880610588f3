"""A completion: the result of one request, with its timing and log-probabilities."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from specpipe.core.literals import FinishReason
from specpipe.core.request import Request


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTiming:
    """Latencies of a row, in seconds since it first got a slot."""

    queued_s: float = 0.0
    """Seconds from submission to the first slot."""
    first_token_s: float = 0.0
    last_token_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Logprobs:
    """Log-probabilities of T tokens and of the n most likely alternatives for each.

    They are those of the distribution that the token was sampled from, and at temperature 1 for greedy rows. The arrays
    are packed because a shard holds millions of entries.
    """

    own: array[float]
    """Typecode "f", T entries."""
    n: int
    top_ids: array[int]
    """Typecode "i", T * n entries, the most likely first; -1 where truncation left fewer."""
    top: array[float]
    """Typecode "f", T * n entries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Log-probability of one continuation under the target's distribution at temperature 1."""

    logprob: float
    """Sum over its tokens, each given the prompt and the tokens before it."""
    num_tokens: int
    is_greedy: bool
    """True if greedy decoding generates the continuation."""
    token_logprobs: array[float] | None = None
    """Typecode "f", one for each token; None where the row requests none (`SamplingParams.logprobs`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """Output of a row. A row that cannot run has finish_reason "error" and the reason in `error`."""

    request: Request
    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: FinishReason
    error: str = ""
    cached_tokens: int = 0
    """Prompt tokens whose KV the target took from another row with the same prefix instead of computing it."""
    draft_tokens: int = 0
    """Draft tokens that the target verified for this row."""
    accepted_tokens: int = 0
    """Accepted draft tokens that are part of the output: those after an end-of-sequence token, a stop string or a
    length limit are not counted."""
    accepted_per_round: bytes | None = None
    """Those of each round, in order. A round adds one token more; the last one may end before it. None where no draft
    was verified for the row."""
    followed_tokens: int = 0
    """Those of the accepted tokens that came from an earlier answer (`Request.reference`) or the corpus."""
    logprobs: Logprobs | None = None
    """Log-probabilities of token_ids; None where the row requests none."""
    scores: tuple[Score, ...] = ()
    """One for each continuation of the request."""
    timing: RowTiming = RowTiming()
