"""The rounds that a worker times before its first row."""

from __future__ import annotations

from collections.abc import Iterable

from specpipe.core import ProposerName

PROFILED_CONTEXT = 256
"""Tokens of KV that each row of a round timed at the start reads. With many rows KV is a fifth of a round, and more of
plain decoding than of speculation: without it the two could not be compared."""


def rounds_to_profile(slots: int, k: int, proposers: Iterable[ProposerName]) -> list[tuple[int, ProposerName, int]]:
    """→ (rows, proposer, K) of the rounds worth timing before the first row, the most telling first.

    One row, all slots, and their geometric mean, plain and with two draft tokens (fewer if K is less): with all slots
    alone, what a draft step costs in itself and by the row cannot be told apart.
    """
    names: list[ProposerName] = ["none", *(name for name in proposers if name != "none" and k)]
    ends, between = list(dict.fromkeys((1, slots))), round(slots**0.5)
    rows = [(n, name) for name in names for n in ends]
    rows += [(between, name) for name in names if between not in ends]
    return [(n, name, min(2, k) if name != "none" else 0) for n, name in rows]
