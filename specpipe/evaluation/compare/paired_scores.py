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

from specpipe.evaluation.compare.perplexity import PERPLEXITIES, PairedMeans, compare_perplexities
from specpipe.evaluation.compare.rounding import best, rounding_tolerance, same_up_to_rounding
from specpipe.evaluation.harness.samples_files import EvalSample

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
    """Number of documents with the same answer texts in A and B; for scored texts, with log-probabilities that are the
    same up to rounding."""
    best_changed: int = 0
    """Number of documents whose most likely choice differs."""
    near_ties: int = 0
    """Those of them whose two choices are equally likely up to rounding."""

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
        if self.best_changed:
            changed += f"; {self.best_changed:,} best choices changed, {self.near_ties:,} of them near-ties"
        match self.finding:
            case "identical":
                return f"identical: all {self.n:,} answers and scores are the same"
            case "same scores":
                return f"no score changed ({changed})"
            case "within chance":
                return f"no difference beyond chance ({_errors(self.z)}; {changed})"
            case "different":
                way = "lower" if self.difference < 0 else "higher"
                return f"DIFFERENT: B is {way} by {abs(self.difference):.4f}, {_errors(self.z)} ({changed})"


def compare_scores(
    name: tuple[str, str, str], a: Sequence[EvalSample], b: Sequence[EvalSample], dtype: str = "float32"
) -> MetricComparison:
    """Compares one metric of the same n documents. name: (task, filter, metric). dtype: number format of the runs.

    Differences of log-probabilities that rounding in `dtype` explains count neither as another answer nor as up or
    down.
    """
    task, filter_name, metric = name
    left, right = (np.asarray([sample.values[metric] for sample in side], np.float64) for side in (a, b))
    means = PairedMeans(
        mean_a=float(left.mean()),
        stderr_a=_stderr(left),
        mean_b=float(right.mean()),
        stderr_b=_stderr(right),
        difference=float((right - left).mean()),
        stderr=_stderr(right - left),
    )
    higher, lower = right > left, left > right
    if metric in PERPLEXITIES and a[0].logprobs:
        means = compare_perplexities(metric, left.tolist(), right.tolist(), [sample.weights[metric] for sample in a])
        moved = [abs(y - x) > rounding_tolerance(dtype, max(abs(x), abs(y))) for x, y in zip(left, right, strict=True)]
        higher, lower = lower & moved, higher & moved  # a higher log-probability is a lower perplexity
    choices = [(x.logprobs, y.logprobs) for x, y in zip(a, b, strict=True) if len(x.logprobs) == len(y.logprobs) > 1]
    changed = [(x, best(x), best(y)) for x, y in choices if best(x) != best(y)]
    return MetricComparison(
        task=task,
        filter=filter_name,
        metric=metric,
        n=len(left),
        **means._asdict(),
        higher_in_b=int(higher.sum()),
        higher_in_a=int(lower.sum()),
        same_answers=sum(_same(x, y, dtype) for x, y in zip(a, b, strict=True)),
        best_changed=len(changed),
        near_ties=sum(abs(x[i] - x[j]) <= rounding_tolerance(dtype, abs(x[i])) for x, i, j in changed),
    )


def _same(a: EvalSample, b: EvalSample, dtype: str) -> bool:
    """Returns True for the same answers; for scored texts, for the same log-probabilities up to rounding."""
    if a.logprobs and b.logprobs:
        return same_up_to_rounding(a.logprobs, b.logprobs, dtype)
    return a.answers == b.answers


def _stderr(values: np.ndarray) -> float:
    """Returns sd/√n of values [n] with n - 1 degrees of freedom, as lm-eval's mean_stderr; 0 for a single value."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def _errors(z: float) -> str:
    if math.isinf(z):
        return "the same for every document"
    return f"{abs(z):.1f} standard errors"
