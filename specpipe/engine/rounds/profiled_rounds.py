"""Rounds that a worker times before its first row."""

from __future__ import annotations

from collections.abc import Iterable

from specpipe.core import ProposerName

PROFILED_CONTEXT = 256
"""KV tokens that each row of a profiled round attends to. With many rows, reading KV takes a fifth of a round, and a
larger share of plain rounds: without it plain and speculative rounds could not be compared."""


def rounds_to_profile(slots: int, k: int, proposers: Iterable[ProposerName]) -> list[tuple[int, ProposerName, int]]:
    """Returns (rows, proposer, K) of the rounds to time, the most informative first.

    Rows: one, all slots, and their geometric mean, so that the fixed cost of a draft step and its cost per row can be
    separated. K: 0, and 2 or `k` if that is less.
    """
    names: list[ProposerName] = ["none", *(name for name in proposers if name != "none" and k)]
    ends, between = list(dict.fromkeys((1, slots))), round(slots**0.5)
    rows = [(n, name) for name in names for n in ends]
    rows += [(between, name) for name in names if between not in ends]
    return [(n, name, min(2, k) if name != "none" else 0) for n, name in rows]
