"""What the host knows about a row that holds a slot: one round behind the device."""

from __future__ import annotations

from typing import Protocol

from specpipe.core import Completion, FinishReason, Request, RowTiming


class TextDecoder(Protocol):
    """Token ids to text; incremental, so that a stop string is seen at the token that completes it."""

    def decode(self, token_ids: list[int]) -> str: ...

    def stream(self, stop: tuple[str, ...]) -> StopMatcher: ...


class StopMatcher(Protocol):
    def push(self, token_id: int) -> str | None:
        """→ the row's whole text before the stop string that this token completes, or None."""
        ...


class Row:
    """One admitted request: tokens so far, how far its prompt is prefilled, and what it cost."""

    __slots__ = (
        "accepted",
        "admitted_at",
        "draft_done",
        "first_token_at",
        "generated",
        "last_token_at",
        "matcher",
        "proposed",
        "request",
        "slot",
        "submitted_at",
        "target_done",
    )

    def __init__(self, request: Request, slot: int, *, submitted_at: float, now: float, decoder: TextDecoder) -> None:
        self.request, self.slot = request, slot
        self.submitted_at, self.admitted_at = submitted_at, now
        self.first_token_at = self.last_token_at = now
        self.generated: list[int] = []
        self.target_done = self.draft_done = 0
        self.proposed = self.accepted = 0
        stop = request.sampling.stop
        self.matcher = decoder.stream(stop) if stop else None

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
        return self.target_done >= len(self.request.prompt_token_ids) - 1

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

    def complete(self, reason: FinishReason, *, text: str = "", error: str = "") -> Completion:
        """Times are in seconds since the row got its slot."""
        return Completion(
            request=self.request,
            token_ids=tuple(self.generated),
            text=text,
            finish_reason=reason,
            error=error,
            draft_tokens=self.proposed,
            accepted_tokens=self.accepted,
            timing=RowTiming(
                queued_s=self.admitted_at - self.submitted_at,
                first_token_s=self.first_token_at - self.admitted_at,
                last_token_s=self.last_token_at - self.admitted_at,
            ),
        )
