"""What the host knows about a row, waiting or running: one round behind the device."""

from __future__ import annotations

import copy

from specpipe.core import Completion, FinishReason, Request, RowTiming
from specpipe.engine.state.logprobs import RoundLogprobs, RowLogprobs
from specpipe.engine.state.text_decoder import TextDecoder


class RowState:
    """One request: tokens so far, how far they are prefilled, and what it cost.

    `slot`, `context` and `capacity` mean something from `start` on. A row that loses its slot goes on as another object
    (`again`), so that what rounds in flight did for the one is never taken for the other.
    """

    __slots__ = (
        "accepted",
        "admitted_at",
        "capacity",
        "context",
        "draft_done",
        "first_token_at",
        "generated",
        "last_token_at",
        "logprobs",
        "matcher",
        "proposed",
        "request",
        "slot",
        "submitted_at",
        "target_done",
    )

    def __init__(self, request: Request, *, submitted_at: float, decoder: TextDecoder) -> None:
        self.request, self.submitted_at = request, submitted_at
        self.admitted_at: float | None = None
        self.first_token_at = self.last_token_at = 0.0
        self.generated: list[int] = []
        asked = request.sampling.logprobs
        self.logprobs = None if asked is None else RowLogprobs(asked)
        self.slot = self.context = self.capacity = 0
        self.target_done = self.draft_done = 0
        self.proposed = self.accepted = 0
        stop = request.sampling.stop
        self.matcher = decoder.stream(stop) if stop else None

    def start(self, slot: int, now: float) -> None:
        """The row gets a slot; all its tokens are to be prefilled."""
        self.slot, self.context = slot, self.length
        if self.admitted_at is None:
            self.admitted_at = self.first_token_at = self.last_token_at = now

    def again(self) -> RowState:
        """The row after it lost its slot and KV: it keeps its tokens and counts, and the times of its first start."""
        other = copy.copy(self)
        other.capacity = other.target_done = other.draft_done = 0
        return other

    @property
    def length(self) -> int:
        """Tokens committed, prompt included."""
        return len(self.request.prompt_token_ids) + len(self.generated)

    @property
    def limit(self) -> int:
        return len(self.request.prompt_token_ids) + self.request.sampling.max_new_tokens

    @property
    def held(self) -> bool:
        """Whether the row may not end yet (min_tokens)."""
        return len(self.generated) < self.request.sampling.min_tokens

    @property
    def prefilled(self) -> bool:
        return self.target_done >= self.context - 1

    def draft_ready(self, plain_in_flight: int) -> bool:
        """Whether the next round's first draft step feeds all that the draft model lacks. plain_in_flight: rounds
        without drafts that were launched and not read."""
        return self.draft_done >= self.length + plain_in_flight - 2

    def extend(self, tokens: list[int], now: float) -> str | None:
        """Takes what a round emitted, up to the token that completes a stop string.

        → the text before the stop string if one was completed, else None.
        """
        if not self.generated:
            self.first_token_at = now
        self.last_token_at = now
        if self.matcher is None:
            self.generated.extend(tokens)
            return None
        for token in tokens:
            self.generated.append(token)
            text = self.matcher.push(token)
            if text is not None and not self.held:
                return text
        return None

    def tell(self, told: RoundLogprobs, index: int) -> None:
        """Takes the log-probabilities of a round in which this was batch row `index`, before `extend`."""
        if self.logprobs is not None:
            self.logprobs.put(len(self.generated), told, index)

    def complete(self, reason: FinishReason, *, text: str = "", error: str = "") -> Completion:
        """Times are in seconds since the row got its first slot."""
        assert self.admitted_at is not None
        return Completion(
            request=self.request,
            token_ids=tuple(self.generated),
            text=text,
            finish_reason=reason,
            error=error,
            draft_tokens=self.proposed,
            accepted_tokens=self.accepted,
            logprobs=None if self.logprobs is None else self.logprobs.of(len(self.generated)),
            timing=RowTiming(
                queued_s=self.admitted_at - self.submitted_at,
                first_token_s=self.first_token_at - self.admitted_at,
                last_token_s=self.last_token_at - self.admitted_at,
            ),
        )
