"""A tokenizer of one token a byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Encoded(NamedTuple):
    text: str
    token_ids: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...] = ()


class ByteEncoder:
    """A chat is the contents of its turns behind each other."""

    bos_token_id: int | None = None

    def encode(self, prompt: str | Sequence[Mapping[str, Any]]) -> Encoded:
        text = prompt if isinstance(prompt, str) else "".join(str(turn["content"]) for turn in prompt)
        return Encoded(text, tuple(text.encode()))

    def encode_continuations(self, prompt: str | Sequence[Mapping[str, Any]], continuations: Sequence[str]) -> Encoded:
        found = self.encode(prompt)
        ids = found.token_ids or (self.prefix_token_id,)
        return Encoded(found.text, ids, tuple(tuple(text.encode()) for text in continuations))

    def encode_answer(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    @property
    def prefix_token_id(self) -> int:
        return 0

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode()
