"""Arithmetic word problems with worked steps and a final answer that can be checked, as in GSM8K."""

from __future__ import annotations

from jobs.tiny_pair.arithmetic import ProblemFamily, WordProblem, final_answer
from jobs.tiny_pair.families import FAMILIES
from jobs.tiny_pair.narrator import Narrator
from jobs.tiny_pair.phrasing import Split, split_of

__all__ = ["WordProblem", "final_answer", "problem", "problems"]


def problem(rng: Narrator, split: Split, family: ProblemFamily) -> WordProblem:
    """One problem of the family that belongs to the split."""
    while True:
        found = family.draw(rng)
        if split_of(found.question) == split:
            return found


def problems(split: Split, n: int, seed: int = 0) -> list[WordProblem]:
    """n different problems of the split, all families alike; the same ones for the same seed."""
    rng = Narrator(f"problems:{split}:{seed}")
    found: dict[str, WordProblem] = {}
    while len(found) < n:
        one = problem(rng, split, FAMILIES[len(found) % len(FAMILIES)])
        found.setdefault(one.question, one)
    return list(found.values())
