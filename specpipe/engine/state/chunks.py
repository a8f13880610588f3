"""Chunks: ranges of a slot's tokens that one prefill feeds to a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from specpipe.engine.state.prefix_tree import PrefixNode, PrefixTail
from specpipe.engine.state.row_state import RowState
from specpipe.engine.state.scored_rows import MAX_SCORED_TOKENS


class Chunk(NamedTuple):
    """The tokens start:stop of a slot."""

    slot: int
    start: int
    stop: int


class MissingTokens(NamedTuple):
    """The tokens start:stop of a row, which one model's KV lacks."""

    row: RowState
    start: int
    stop: int


class Validity(NamedTuple):
    """Tests of what one model's KV holds."""

    node: Callable[[PrefixNode], bool]
    """Returns True if the node's page has been computed."""
    tail: Callable[[PrefixTail], bool]
    """Returns True if a row has the tail or a page keeps it."""


def plan_chunks(missing: Iterable[MissingTokens], *, budget: int, page_size: int, valid: Validity) -> list[Chunk]:
    """Returns the chunks of one prefill: at most `budget` tokens of these rows, in order; the last may be cut short.

    At most MAX_SCORED_TOKENS of them are scored.

    A row leaves out pages of its prefix that are valid, and those that a row before it computes in the same prefill:
    there all keys and values of a layer are stored before any query of the layer reads them. Only the last chunk is cut
    short, so a row never needs a page that an earlier row has begun in this prefill and will end in a later one.
    Likewise it leaves out its tail where that can be copied once this prefill has been launched.
    """
    chunks: list[Chunk] = []
    left_to_score = MAX_SCORED_TOKENS
    computed: set[PrefixNode] = set()
    tails: set[PrefixTail] = set()
    for row, start, stop in missing:
        if budget <= 0 or left_to_score <= 0:
            break
        prefix, page = row.prefix, start // page_size
        while page < len(prefix) and (valid.node(prefix[page]) or prefix[page] in computed):
            page += 1
        first = max(start, page * page_size)
        if row.tail is not None and row.lacks_tail:
            if row.tail in tails or valid.tail(row.tail):
                stop = len(prefix) * page_size
            tails.add(row.tail)
        if first >= stop:
            continue
        end, scored = min(stop, first + budget), row.scored_before(first)
        end -= max(0, row.scored_before(end) - scored - left_to_score)
        budget -= end - first
        left_to_score -= row.scored_before(end) - scored
        computed.update(prefix[page : end // page_size])
        chunks.append(Chunk(row.slot, first, end))
    return chunks


def total_tokens(chunks: Iterable[Chunk]) -> int:
    """Returns the number of tokens of all chunks together."""
    return sum(chunk.stop - chunk.start for chunk in chunks)
