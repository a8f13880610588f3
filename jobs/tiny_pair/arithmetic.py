"""What a word problem is: a template whose numbers are drawn and whose steps are computed."""

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
_LARGEST = 4999  # of all values in a solution


@dataclass(frozen=True, kw_only=True, slots=True)
class WordProblem:
    """A question, its worked solution (ending in `#### answer`) and the answer."""

    question: str
    solution: str
    answer: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemFamily:
    """One kind of problem. `[x = a * b]` in `steps` prints the sum and names its result; the last one is the answer."""

    question: str
    steps: str
    numbers: Mapping[str, tuple[int, int]]
    """Lowest and highest value of each number that is drawn."""
    given: str = ""
    """Values that the question states and that follow from the drawn ones, in the notation of `steps`."""
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def draw(self, rng: Narrator) -> WordProblem:
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
    """The number after the first `####`; None when there is none. What follows it is not looked at."""
    match = _ANSWER.search(text)
    return int(match[1].replace(",", "")) if match else None


def _compute(steps: str, values: Mapping[str, int]) -> dict[str, int] | None:
    """Every value that the steps name; None when one is below 1, above _LARGEST or not whole."""
    known = dict(values)
    for name, left, sign, right in _STEP.findall(steps):
        a = known[left] if left in known else known.setdefault(left, int(left))
        b = known[right] if right in known else known.setdefault(right, int(right))
        if sign == "/" and a % b:
            return None
        known[name] = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[sign]
        if not 1 <= known[name] <= _LARGEST:
            return None
    return known


def _cast(rng: Narrator) -> dict[str, object]:
    (name, he, his), (other, _, _) = rng.people(2)
    one, two = rng.sample(GROCERIES, 2)
    thing = rng.choice(COUNTABLE)
    return {
        "name": name, "he": he, "his": his, "upper": he.capitalize(), "other": other, "one": one, "two": two,
        "thing": thing, "things": f"{thing}s", "day": rng.choice(WEEKDAYS),
    }  # fmt: skip
