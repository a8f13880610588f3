"""Token ids to text while they arrive, so that a stop string is seen at the token that completes it."""

from __future__ import annotations

from typing import Any

_INCOMPLETE = "\ufffd"  # what decoders give for bytes that are no character yet


class Detokenizer:
    """The text of a growing list of token ids, at constant cost a token, whatever the tokenizer does at borders.

    A token's text depends on what stands before it (spaces, characters of several bytes). So a window of few tokens is
    decoded twice, without and with the new one, and the difference is the new text (prefix and read offsets, as in
    Hugging Face's text-generation-inference). `text` never holds part of a character; whenever
    the ids end with a whole one, it equals `finish()`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._settled = ""
        """Text of the ids before `_read`."""
        self._window = 0
        """Where the decoded window starts."""
        self._read = 0
        self._known = ""
        """Text of the window's ids before `_read`."""
        self.text = ""
        """Text so far, without the bytes of a character that is not complete."""

    def push(self, token_id: int) -> str:
        """Takes the next token; returns what it added to `text`, or all of `text` where that changed before its end."""
        before = len(self.text)
        self._ids.append(token_id)
        window = self._decode(self._ids[self._window :])
        grown = window.startswith(self._known)
        if window.endswith(_INCOMPLETE):
            if grown:
                self.text = self._settled + window[len(self._known) :].rstrip(_INCOMPLETE)
            return self.text[before:]
        if not grown or _INCOMPLETE in window[len(self._known) :]:
            # Decoders with byte fallback give up on a whole run of bytes, which may have begun before the window, when
            # one of them fits no character.
            self._settled = self._known = self.text = self._decode(self._ids)
            self._window, self._read = 0, len(self._ids)
            return self.text
        added = window[len(self._known) :]
        if added:
            self._settled += added
            self._window, self._read = self._read, len(self._ids)
            self._known = self._decode(self._ids[self._window :])
        self.text = self._settled
        return self.text[before:]

    def finish(self) -> str:
        """The whole text, as `tokenizer.decode(ids, skip_special_tokens=True)` gives it."""
        return self._decode(self._ids)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text
