"""Pairwise test cases: every possible pair of values of any two features occurs at least once."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

Case = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]
CANDIDATES = 12


def pairs_of(case: Case) -> set[Pair]:
    return set(combinations(case.items(), 2))


def all_pairs(features: Mapping[str, Sequence[Any]]) -> set[Pair]:
    return {((a, x), (b, y)) for (a, xs), (b, ys) in combinations(features.items(), 2) for x in xs for y in ys}


def pairwise(
    features: Mapping[str, Sequence[Any]], possible: Callable[[Case], bool], *, seed: int = 0
) -> tuple[list[Case], set[Pair]]:
    """Returns cases, and the pairs that occur in no possible case.

    Greedy: each case is built around an uncovered pair and is the one of some random candidates that covers most.
    """
    draw = random.Random(seed)
    uncovered = all_pairs(features)
    order = sorted(uncovered, key=repr)
    draw.shuffle(order)
    cases: list[Case] = []
    impossible: set[Pair] = set()
    for pair in order:
        if pair not in uncovered:
            continue
        found = []
        for _ in range(50 * CANDIDATES):
            case = {name: draw.choice(values) for name, values in features.items()} | dict(pair)
            if possible(case):
                found.append(case)
            if len(found) == CANDIDATES:
                break
        if not found:
            impossible.add(pair)
            uncovered.discard(pair)
            continue
        best = max(found, key=lambda case: len(pairs_of(case) & uncovered))
        uncovered -= pairs_of(best)
        cases.append(best)
    return cases, impossible
