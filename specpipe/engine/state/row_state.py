"""The host's state of one row, waiting or running: one round behind the device."""

from __future__ import annotations

import copy

from specpipe.core import Completion, FinishReason, Request, RowTiming
from specpipe.engine.state.logprobs import RoundLogprobs, RowLogprobs
from specpipe.engine.state.prefix_tree import PrefixNode, PrefixTail
from specpipe.engine.state.scored_rows import WindowScores
from specpipe.engine.state.text_decoder import TextDecoder


class RowState:
    """One request: its tokens so far, how far they are prefilled, and its counts and times.

    `slot`, `prefill_length`, `capacity` and `speculates` are valid from `start` on. A row that loses its slot continues
    as another object (`restarted`), so that results of rounds in flight for the first are never taken for the second.
    """

    __slots__ = (
        "accepted",
        "accepted_per_round",
        "admitted_at",
        "cached_tokens",
        "capacity",
        "draft_valid",
        "first_token_at",
        "fixed_length",
        "followed",
        "following",
        "generated",
        "last_token_at",
        "limit",
        "logprobs",
        "prefill_length",
        "prefix",
        "proposed",
        "reference",
        "request",
        "slot",
        "speculates",
        "stop_matcher",
        "submitted_at",
        "tail",
        "target_valid",
        "window",
    )

    def __init__(
        self, request: Request, *, submitted_at: float, decoder: TextDecoder, window: WindowScores | None = None
    ) -> None:
        """submitted_at: seconds of time.perf_counter.

        window: the part of a score row that this row computes. Its context is the prompt of `request`.
        """
        self.request, self.submitted_at = request, submitted_at
        self.admitted_at: float | None = None
        self.first_token_at = self.last_token_at = 0.0
        self.generated: list[int] = []
        alternatives = request.sampling.logprobs
        self.logprobs = None if alternatives is None else RowLogprobs(alternatives)
        self.slot = self.prefill_length = self.capacity = 0
        self.target_valid = self.draft_valid = 0
        self.speculates = True
        self.prefix: list[PrefixNode] = []
        """The row's first pages, which it shares with rows that begin with the same tokens."""
        self.tail: PrefixTail | None = None
        """The rest of the prompt, which rows with the same prompt copy; None once the row has generated tokens and
        lost its slot."""
        self.cached_tokens = 0
        """Prompt tokens whose KV of the target another row computed."""
        self.proposed = self.accepted = self.followed = 0
        self.reference = request.reference
        """Earlier answer that the row may follow: its own, or that of a row with the same prompt."""
        self.following = bool(request.reference)
        """True if the drafts of the last round came from an earlier answer, or may in the first one."""
        self.accepted_per_round = bytearray()
        self.window = window
        self.fixed_length = len(request.prompt_token_ids) + len(self.scored)
        """Tokens that are not generated."""
        self.limit = self.fixed_length + (0 if window else request.sampling.max_new_tokens)
        """Length at which the row ends."""
        stop = request.sampling.stop
        self.stop_matcher = decoder.stream(stop) if stop else None

    def start(self, slot: int, now: float, *, speculates: bool) -> None:
        """Assigns a slot; all tokens of the row have to be prefilled. speculates: the row may have drafts in it."""
        self.slot, self.prefill_length, self.speculates = slot, self.length, speculates
        if self.admitted_at is None:
            self.admitted_at = self.first_token_at = self.last_token_at = now

    def restarted(self) -> RowState:
        """Returns the row without slot and KV, with the same tokens, counts and time of its first start."""
        other = copy.copy(self)
        other.capacity = other.target_valid = other.draft_valid = 0
        if other.window is not None:
            other.window.clear()
        if other.generated:
            other.tail = None
        else:
            other.cached_tokens = 0
        return other

    @property
    def length(self) -> int:
        """Tokens committed, prompt and scored tokens included."""
        return self.fixed_length + len(self.generated)

    @property
    def scored(self) -> tuple[int, ...]:
        """Tokens after the prompt that are scored; empty for a row that generates."""
        return () if self.window is None else self.window.window.tokens

    @property
    def remaining(self) -> int:
        """Tokens that the row may still generate."""
        return self.limit - self.length

    @property
    def below_min_tokens(self) -> bool:
        """True while the row may not end, because it has fewer than min_tokens."""
        return len(self.generated) < self.request.sampling.min_tokens

    @property
    def prefilled(self) -> bool:
        """True if the target's KV lacks no more than the last token, which the row's first round feeds."""
        return self.target_valid >= self.prefill_length - 1

    @property
    def shared_end(self) -> int:
        """Length below which the target's KV may come from other rows: all of the prompt but its last token."""
        return len(self.request.prompt_token_ids) - 1

    @property
    def lacks_tail(self) -> bool:
        """True while the target's KV of the row's tail is neither computed nor copied."""
        return self.tail is not None and self.target_valid < self.shared_end

    def scored_before(self, stop: int) -> int:
        """Returns the number of scored tokens whose logits a prefill below `stop` computes."""
        return 0 if self.window is None else max(0, stop - self.shared_end)

    @property
    def may_draft(self) -> bool:
        """True if a round may verify drafts of this row: it may speculate and has room for a draft and a token."""
        return self.speculates and self.remaining > 1

    @property
    def draft_behind(self) -> int:
        """Tokens that the draft model's KV lacks; 0 for a row that never uses it."""
        return max(0, self.length - 1 - self.draft_valid) if self.speculates else 0

    def draft_ready(self, plain_in_flight: int) -> bool:
        """Returns True if the next round's first draft step feeds all tokens that the draft model's KV lacks.

        plain_in_flight: rounds without drafts that were launched and not read.
        """
        return self.draft_valid >= self.length + plain_in_flight - 2

    def extend(self, tokens: list[int], now: float) -> str | None:
        """Appends the tokens of a round, up to the token that completes a stop string.

        Returns the text before the stop string if one was completed, else None.
        """
        if not self.generated:
            self.first_token_at = now
        self.last_token_at = now
        if self.stop_matcher is None:
            self.generated.extend(tokens)
            return None
        for token in tokens:
            self.generated.append(token)
            text = self.stop_matcher.push(token)
            if text is not None and not self.below_min_tokens:
                return text
        return None

    def store_logprobs(self, values: RoundLogprobs, index: int) -> None:
        """Stores the log-probabilities of a round in which this was batch row `index`; call before `extend`."""
        if self.logprobs is not None:
            self.logprobs.store(len(self.generated), values, index)

    def complete(self, reason: FinishReason, *, text: str = "", error: str = "") -> Completion:
        """Returns the row's completion; its times are seconds since the row got its first slot."""
        assert self.admitted_at is not None
        return Completion(
            request=self.request,
            token_ids=tuple(self.generated),
            text=text,
            finish_reason=reason,
            error=error,
            cached_tokens=self.cached_tokens,
            draft_tokens=self.proposed,
            accepted_tokens=self.accepted,
            followed_tokens=self.followed,
            accepted_per_round=bytes(self.accepted_per_round) if self.proposed else None,
            logprobs=None if self.logprobs is None else self.logprobs.first(len(self.generated)),
            timing=RowTiming(
                queued_s=self.admitted_at - self.submitted_at,
                first_token_s=self.first_token_at - self.admitted_at,
                last_token_s=self.last_token_at - self.admitted_at,
            ),
        )
