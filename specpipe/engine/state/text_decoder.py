"""Token ids to text, and stop strings in text that is still growing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from specpipe.models.detokenizer import Detokenizer


class StopMatcher(Protocol):
    """Searches the text of one row for stop strings, token by token."""

    def push(self, token_id: int) -> str | None:
        """Adds a token; returns the row's text before the stop string that the token completes, else None."""
        ...


class TextDecoder(Protocol):
    """Converts token ids to text."""

    def decode(self, token_ids: list[int]) -> str:
        """Returns the text of a row's generated tokens."""
        ...

    def stream(self, stop: tuple[str, ...]) -> StopMatcher:
        """Returns a matcher for one row; incremental, so that a match is found at the token that completes it."""
        ...


class TokenizerDecoder:
    """Implements `TextDecoder` with a transformers tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of a row's generated tokens without special tokens."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def stream(self, stop: tuple[str, ...]) -> StopStrings:
        """Returns a matcher for one row."""
        return StopStrings(Detokenizer(self._tokenizer), stop)


class NoTextDecoder:
    """Implements `TextDecoder` for rows whose text nobody reads: random tokens and simulated rows."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns an empty text."""
        return ""

    def stream(self, stop: tuple[str, ...]) -> StopMatcher:
        """Raises AssertionError: such rows have no stop strings."""
        raise AssertionError("rows without text have no stop strings")


class StopStrings:
    """Searches a row's text for the first stop string, token by token."""

    def __init__(self, detokenizer: Detokenizer, stop: tuple[str, ...]) -> None:
        self._detokenizer, self._stop = detokenizer, stop

    def push(self, token_id: int) -> str | None:
        """Adds a token; returns the text before the earliest stop string that the token completes, else None."""
        added = self._detokenizer.push(token_id)
        text = self._detokenizer.text
        old = len(text) - len(added)
        matches = [at for at in (text.find(s, max(0, old - len(s) + 1)) for s in self._stop) if at >= 0]
        return text[: min(matches)] if matches else None
