"""Paired comparison of perplexities, which lm-eval computes from sums over documents instead of a mean of scores.

For documents with log-probability l and weight w (words, bytes or 1), R = sum(-l) / sum(w), and the metric is a
function of R. The standard error of a difference D of R is that of a ratio estimator, sqrt(n / (n - 1) * sum(e²)) /
sum(w) with e = d - D * w (Cochran, Sampling Techniques, 3rd edition, section 6.4). The delta method makes it the
metric's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Aggregate(NamedTuple):
    """A metric as a function of R, and its derivative."""

    value: Callable[[float], float]
    slope: Callable[[float], float]


_EXP = Aggregate(math.exp, math.exp)
_BITS = Aggregate(lambda r: r / math.log(2), lambda r: 1 / math.log(2))
PERPLEXITIES: Mapping[str, Aggregate] = {
    "perplexity": _EXP,
    "word_perplexity": _EXP,
    "byte_perplexity": _EXP,
    "bits_per_byte": _BITS,
}
"""lm-eval's metrics whose samples hold log-probabilities, or pairs of log-probability and weight."""


class PairedMeans(NamedTuple):
    """Values of A and B, and the paired difference B - A, with standard errors."""

    mean_a: float
    stderr_a: float
    mean_b: float
    stderr_b: float
    difference: float
    stderr: float


def compare_perplexities(metric: str, a: Sequence[float], b: Sequence[float], weights: Sequence[float]) -> PairedMeans:
    """Compares a metric of PERPLEXITIES. a, b [n]: log-probabilities of the same n documents; weights [n]."""
    left, right, w = -np.asarray(a, np.float64), -np.asarray(b, np.float64), np.asarray(weights, np.float64)
    of, slope = PERPLEXITIES[metric]
    r_a, r_b = float(left.sum() / w.sum()), float(right.sum() / w.sum())
    return PairedMeans(
        mean_a=of(r_a),
        stderr_a=slope(r_a) * _ratio_stderr(left, w),
        mean_b=of(r_b),
        stderr_b=slope(r_b) * _ratio_stderr(right, w),
        difference=of(r_b) - of(r_a),
        stderr=slope((r_a + r_b) / 2) * _ratio_stderr(right - left, w),
    )


def _ratio_stderr(values: Floats, weights: Floats) -> float:
    """Returns the standard error of sum(values) / sum(weights); 0 for a single document."""
    n = len(values)
    if n < 2:
        return 0.0
    residuals = values - values.sum() / weights.sum() * weights
    return float(math.sqrt(n / (n - 1) * np.square(residuals).sum()) / weights.sum())
