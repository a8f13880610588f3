"""A tokenizer of one token a byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Encoded(NamedTuple):
    text: str
    token_ids: tuple[int, ...]


class ByteEncoder:
    """A chat is the contents of its turns behind each other."""

    bos_token_id: int | None = None

    def encode(self, prompt: str | Sequence[Mapping[str, Any]]) -> Encoded:
        text = prompt if isinstance(prompt, str) else "".join(str(turn["content"]) for turn in prompt)
        return Encoded(text, tuple(text.encode()))

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode()
