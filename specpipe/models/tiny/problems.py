"""Arithmetic word problems with worked steps and a final answer that can be checked, as in GSM8K."""

from __future__ import annotations

from specpipe.models.tiny.arithmetic import Family, Problem, final_answer
from specpipe.models.tiny.families import FAMILIES
from specpipe.models.tiny.narrator import Narrator
from specpipe.models.tiny.phrasing import Split, split_of

__all__ = ["Problem", "final_answer", "problem", "problems"]


def problem(rng: Narrator, split: Split, family: Family) -> Problem:
    """One problem of the family that belongs to the split."""
    while True:
        found = family.draw(rng)
        if split_of(found.question) == split:
            return found


def problems(split: Split, n: int, seed: int = 0) -> list[Problem]:
    """n different problems of the split, all families alike; the same ones for the same seed."""
    rng = Narrator(f"problems:{split}:{seed}")
    found: dict[str, Problem] = {}
    while len(found) < n:
        one = problem(rng, split, FAMILIES[len(found) % len(FAMILIES)])
        found.setdefault(one.question, one)
    return list(found.values())
