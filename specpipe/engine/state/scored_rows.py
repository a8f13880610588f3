"""Score rows: the windows of the texts to score, and their log-probabilities as prefills compute them. Host only.

A window is a row of its own: tokens before the scored ones (`context`) and the scored ones (`tokens`). Its prefill
ends at the last token but one, and the logits of the last `len(tokens)` positions are kept. Nothing of a window from
its context's last token on is shared, because these positions have to be computed for their logits.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specpipe.core import Completion, Request, RowTiming, Score

MAX_SCORED_TOKENS = 1024
"""Tokens that one prefill scores, at most: bounds the memory of their logits, which is 260 MB in bfloat16 for a
vocabulary of 128,256. A forward over so many tokens already keeps a GPU's matrix units busy."""
INVALID = "the model's logits hold NaN or infinity for this row"


class ScoreWindow(NamedTuple):
    """Tokens that one forward reads to score some of them."""

    context: tuple[int, ...]
    """Tokens before the scored ones, at least one."""
    tokens: tuple[int, ...]


def score_windows(prompt: Sequence[int], continuation: Sequence[int], max_model_len: int) -> Iterator[ScoreWindow]:
    """Yields windows that together score each token of a continuation once.

    A forward reads at most `max_model_len` tokens. A prompt that is too long loses its beginning. A continuation that
    alone is too long has rolling windows, as lm-eval's `loglikelihood_rolling` (`get_rolling_token_windows` with
    context_len 1 and `make_disjoint_window`): each scores as many tokens as it can; the last one has a longer context.
    """
    whole = (*prompt, *continuation)
    first = len(prompt)
    while first < len(whole):
        stop = min(len(whole), first + max_model_len)
        begin = stop - max_model_len - 1 if stop == len(whole) else first - 1
        yield ScoreWindow(tuple(whole[max(0, begin) : first]), tuple(whole[first:stop]))
        first = stop


class ScoredRequest:
    """One request with continuations, and the results of its windows."""

    def __init__(self, request: Request, max_model_len: int, submitted_at: float) -> None:
        """submitted_at: seconds of time.perf_counter."""
        self._request, self._submitted_at = request, submitted_at
        self._started_at = math.inf
        self._cached = len(request.prompt_token_ids)
        self._error = ""
        self._ended_at = 0.0
        self.windows = [
            WindowScores(self, i, window)
            for i, continuation in enumerate(request.continuations)
            for window in score_windows(request.prompt_token_ids, continuation, max_model_len)
        ]
        self._missing = len(self.windows)

    def finish_window(self, window: WindowScores, *, started_at: float, cached_tokens: int, now: float) -> bool:
        """Takes in the result of a window. Returns True if it was the last one."""
        self._started_at = min(self._started_at, started_at)
        self._cached = min(self._cached, cached_tokens)
        if any(math.isnan(value) for value in window.logprobs):
            self._error = INVALID
        self._missing -= 1
        self._ended_at = now
        return not self._missing

    def complete(self) -> Completion:
        """Returns the row's completion. All windows have ended."""
        timing = RowTiming(
            queued_s=self._started_at - self._submitted_at,
            first_token_s=self._ended_at - self._started_at,
            last_token_s=self._ended_at - self._started_at,
        )
        if self._error:
            return Completion(request=self._request, finish_reason="error", error=self._error, timing=timing)
        return Completion(
            request=self._request,
            finish_reason="scored",
            cached_tokens=self._cached,
            scores=tuple(self._score(i) for i in range(len(self._request.continuations))),
            timing=timing,
        )

    def _score(self, continuation: int) -> Score:
        parts = [window for window in self.windows if window.continuation == continuation]
        logprobs = array("f", [value for window in parts for value in window.logprobs])
        return Score(
            logprob=math.fsum(logprobs),
            num_tokens=len(logprobs),
            is_greedy=all(window.is_greedy for window in parts),
            token_logprobs=logprobs if self._request.sampling.logprobs is not None else None,
        )


class WindowScores:
    """Results of one window so far, in the order of its tokens."""

    __slots__ = ("continuation", "is_greedy", "logprobs", "request", "window")

    def __init__(self, request: ScoredRequest, continuation: int, window: ScoreWindow) -> None:
        """continuation: number of the continuation that the window is a part of."""
        self.request, self.continuation, self.window = request, continuation, window
        self.clear()

    def clear(self) -> None:
        """Drops all results: the window has lost its KV and is computed again."""
        self.logprobs = array("f")
        self.is_greedy = True

    def add(self, logprobs: Sequence[float], is_greedy: Sequence[float]) -> bool:
        """Takes in the next tokens' results. is_greedy: 1 or 0 for each. Returns True once all tokens have one."""
        self.logprobs.extend(logprobs)
        self.is_greedy = self.is_greedy and all(is_greedy)
        return len(self.logprobs) == len(self.window.tokens)
