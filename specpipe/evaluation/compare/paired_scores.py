"""Paired comparison of two sets of scores over the same documents.

The standard error of the mean difference is sd(d)/√n (Miller, Adding Error Bars to Evals, arXiv 2411.00640, eq. 5). It
is much smaller than that of two separate means, because most documents have equal scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

ScoreFinding = Literal["identical", "same scores", "within chance", "different"]
_MAX_CHANCE_ERRORS = 2.0
"""Significance limit in standard errors (two-sided, 4.6 %)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricComparison:
    """Comparison of B with A for one metric, task and filter."""

    task: str
    filter: str
    metric: str
    n: int
    mean_a: float
    stderr_a: float
    mean_b: float
    stderr_b: float
    difference: float
    """Mean of B - A over documents."""
    stderr: float
    """Standard error of the difference; 0 if every document has the same difference."""
    higher_in_b: int
    higher_in_a: int
    same_answers: int
    """Number of documents with the same answer texts in A and B."""

    @property
    def z(self) -> float:
        """The difference in standard errors; infinite if the standard error is 0."""
        if self.difference == 0:
            return 0.0
        return self.difference / self.stderr if self.stderr else math.copysign(math.inf, self.difference)

    @property
    def finding(self) -> ScoreFinding:
        """Category of the result."""
        if self.same_answers == self.n and not self.higher_in_a + self.higher_in_b:
            return "identical"
        if not self.higher_in_a + self.higher_in_b:
            return "same scores"
        return "within chance" if abs(self.z) <= _MAX_CHANCE_ERRORS else "different"

    @property
    def verdict(self) -> str:
        """The finding as a sentence."""
        changed = f"{self.n - self.same_answers:,} of {self.n:,} answers differ"
        match self.finding:
            case "identical":
                return f"identical: all {self.n:,} answers and scores are the same"
            case "same scores":
                return f"no score changed ({changed} in wording)"
            case "within chance":
                return f"no difference beyond chance ({_errors(self.z)}; {changed})"
            case "different":
                way = "lower" if self.difference < 0 else "higher"
                return f"DIFFERENT: B is {way} by {abs(self.difference):.4f}, {_errors(self.z)} ({changed})"


def compare_scores(
    name: tuple[str, str, str], a: Sequence[float], b: Sequence[float], same_answers: int
) -> MetricComparison:
    """Compares scores [n] of the same n documents. name: (task, filter, metric). same_answers: see MetricComparison."""
    left, right = np.asarray(a, np.float64), np.asarray(b, np.float64)
    task, filter_name, metric = name
    return MetricComparison(
        task=task,
        filter=filter_name,
        metric=metric,
        n=len(left),
        mean_a=float(left.mean()),
        stderr_a=_stderr(left),
        mean_b=float(right.mean()),
        stderr_b=_stderr(right),
        difference=float((right - left).mean()),
        stderr=_stderr(right - left),
        higher_in_b=int((right > left).sum()),
        higher_in_a=int((left > right).sum()),
        same_answers=same_answers,
    )


def _stderr(values: np.ndarray) -> float:
    """Returns sd/√n of values [n] with n - 1 degrees of freedom, as lm-eval's mean_stderr; 0 for a single value."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def _errors(z: float) -> str:
    if math.isinf(z):
        return "the same for every document"
    return f"{abs(z):.1f} standard errors"
