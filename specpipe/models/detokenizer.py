"""Incremental detokenizer: decodes token ids as they arrive, so that stop strings are found at once."""

from __future__ import annotations

from typing import Any

_INCOMPLETE = "\ufffd"  # decoders return it for the bytes of an incomplete character


class Detokenizer:
    """Text of a growing list of token ids, at constant cost per token for any tokenizer.

    A token's text depends on its predecessors (spaces, characters of several bytes). A window of few tokens is decoded
    without and with the new token; the difference is the new text (prefix and read offsets, as in Hugging Face's
    text-generation-inference). `text` never ends within a character, and equals `finish()` whenever the ids end with a
    complete one.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._settled = ""
        """Text of the ids before index `_read`."""
        self._window = 0
        """Index of the first token in the decoded window."""
        self._read = 0
        """Index of the first token that is not part of `_settled`."""
        self._prefix = ""
        """Text of the window's ids before index `_read`."""
        self.text = ""
        """Text so far, without the bytes of an incomplete character."""

    def push(self, token_id: int) -> str:
        """Adds a token. Returns its addition to `text`, or all of `text` if an earlier part has changed."""
        before = len(self.text)
        self._ids.append(token_id)
        window = self._decode(self._ids[self._window :])
        extends = window.startswith(self._prefix)
        if window.endswith(_INCOMPLETE):
            if extends:
                self.text = self._settled + window[len(self._prefix) :].rstrip(_INCOMPLETE)
            return self.text[before:]
        if not extends or _INCOMPLETE in window[len(self._prefix) :]:
            # Decoders with byte fallback replace a whole run of bytes, which may begin before the window, if one of
            # them fits no character.
            self._settled = self._prefix = self.text = self._decode(self._ids)
            self._window, self._read = 0, len(self._ids)
            return self.text
        added = window[len(self._prefix) :]
        if added:
            self._settled += added
            self._window, self._read = self._read, len(self._ids)
            self._prefix = self._decode(self._ids[self._window :])
        self.text = self._settled
        return self.text[before:]

    def finish(self) -> str:
        """Returns the complete text, `tokenizer.decode(ids, skip_special_tokens=True)`."""
        return self._decode(self._ids)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text
