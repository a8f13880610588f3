"""Chunks: ranges of a slot's tokens that one prefill feeds to a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Chunk(NamedTuple):
    """The tokens start:stop of a slot."""

    slot: int
    start: int
    stop: int


def cut_chunks(chunks: Iterable[Chunk], budget: int) -> list[Chunk]:
    """Returns the first chunks, in order, that hold at most `budget` tokens together; the last one may be cut short."""
    cut: list[Chunk] = []
    for slot, start, stop in chunks:
        tokens = min(stop - start, budget)
        if tokens > 0:
            cut.append(Chunk(slot, start, start + tokens))
            budget -= tokens
        if budget <= 0:
            break
    return cut


def total_tokens(chunks: Iterable[Chunk]) -> int:
    """Returns the number of tokens of all chunks together."""
    return sum(chunk.stop - chunk.start for chunk in chunks)
