"""A tokenizer as the engine sees it: ids to text, and stop strings over text that is still growing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specpipe.models.detokenizer import Detokenizer


class TokenizerDecoder:
    """Implements `specpipe.engine.rows.TextDecoder` with a transformers tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def decode(self, token_ids: Sequence[int]) -> str:
        """The whole text of a row, special tokens left out."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def stream(self, stop: tuple[str, ...]) -> StopStrings:
        return StopStrings(Detokenizer(self._tokenizer), stop)


class StopStrings:
    """Looks for the first stop string in a row's text, token by token."""

    def __init__(self, detokenizer: Detokenizer, stop: tuple[str, ...]) -> None:
        self._detokenizer, self._stop = detokenizer, stop

    def push(self, token_id: int) -> str | None:
        """→ the whole text before the earliest stop string that this token completes, or None."""
        added = self._detokenizer.push(token_id)
        text = self._detokenizer.text
        old = len(text) - len(added)
        found = [at for at in (text.find(s, max(0, old - len(s) + 1)) for s in self._stop) if at >= 0]
        return text[: min(found)] if found else None
