"""Word problems: templates with drawn numbers and computed solution steps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs.tiny_pair.facts import COUNTABLE, GROCERIES, WEEKDAYS
from jobs.tiny_pair.narrator import Narrator
from jobs.tiny_pair.phrasing import say

_ANSWER = re.compile(r"####\s*(-?\d[\d,]*)")
_STEP = re.compile(r"\[(\w+) = (\w+) ([-+*/]) (\w+)\]")
_LEADS = ("", "", "", "Let us work it out.\n", "Step by step:\n", "We go step by step.\n")
_LARGEST = 4999  # largest value in a solution


@dataclass(frozen=True, kw_only=True, slots=True)
class WordProblem:
    """A question, its worked solution (ending in `#### answer`) and the answer."""

    question: str
    solution: str
    answer: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemFamily:
    """Template of one kind of problem.

    `[x = a * b]` in `steps` is replaced by the calculation and names its result; the last result is the answer.
    """

    question: str
    steps: str
    numbers: Mapping[str, tuple[int, int]]
    """Lowest and highest value of each drawn number."""
    given: str = ""
    """Values in the question that are computed from drawn ones, in the notation of `steps`."""
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def draw(self, rng: Narrator) -> WordProblem:
        """Returns a random problem."""
        values = None
        while values is None:
            drawn = {name: rng.randint(*limits) for name, limits in self.numbers.items()}
            values = _compute(self.given + self.steps, drawn)
        fields = values | _cast(rng) | {name: rng.choice(options) for name, options in self.choices.items()}
        steps = _STEP.sub(lambda m: f"{values[m[2]]} {m[3]} {values[m[4]]} = {values[m[1]]}", self.steps)
        answer = values[_STEP.findall(self.steps)[-1][0]]
        solution = say(rng, f"{rng.choice(_LEADS)}{steps}\n#### {answer}", **fields)
        return WordProblem(question=say(rng, self.question, **fields), solution=solution, answer=answer)


def final_answer(text: str) -> int | None:
    """Returns the number after the first `####`, None without one."""
    match = _ANSWER.search(text)
    return int(match[1].replace(",", "")) if match else None


def _compute(steps: str, values: Mapping[str, int]) -> dict[str, int] | None:
    """Returns every value in the steps by name; None if one is below 1, above _LARGEST or not an integer."""
    computed = dict(values)
    for name, left, sign, right in _STEP.findall(steps):
        a = computed[left] if left in computed else computed.setdefault(left, int(left))
        b = computed[right] if right in computed else computed.setdefault(right, int(right))
        if sign == "/" and a % b:
            return None
        computed[name] = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[sign]
        if not 1 <= computed[name] <= _LARGEST:
            return None
    return computed


def _cast(rng: Narrator) -> dict[str, object]:
    (name, he, his), (other, _, _) = rng.people(2)
    one, two = rng.sample(GROCERIES, 2)
    thing = rng.choice(COUNTABLE)
    return {
        "name": name, "he": he, "his": his, "upper": he.capitalize(), "other": other, "one": one, "two": two,
        "thing": thing, "things": f"{thing}s", "day": rng.choice(WEEKDAYS),
    }  # fmt: skip
