"""Arithmetic word problems with solution steps and a final answer that can be checked, as in GSM8K."""

from __future__ import annotations

from jobs.tiny_pair.arithmetic import ProblemFamily, WordProblem, final_answer
from jobs.tiny_pair.families import FAMILIES
from jobs.tiny_pair.narrator import Narrator
from jobs.tiny_pair.phrasing import Split, split_of

__all__ = ["WordProblem", "final_answer", "problem", "problems"]


def problem(rng: Narrator, split: Split, family: ProblemFamily) -> WordProblem:
    """Returns a problem of the family that belongs to the split."""
    while True:
        found = family.draw(rng)
        if split_of(found.question) == split:
            return found


def problems(split: Split, n: int, seed: int = 0) -> list[WordProblem]:
    """Returns n different problems of the split, equally many of each family, determined by the seed."""
    rng = Narrator(f"problems:{split}:{seed}")
    found: dict[str, WordProblem] = {}
    while len(found) < n:
        one = problem(rng, split, FAMILIES[len(found) % len(FAMILIES)])
        found.setdefault(one.question, one)
    return list(found.values())
