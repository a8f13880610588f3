"""Physical model of a round's seconds: the roofline of a decoder-only pair.

A round of n rows with K draft tokens, T = n·(K + 1) verified tokens, rows c tokens long:

    seconds = a + b·T + b'·√T + b"·max(0, T − 192) + d·n·c  +  K·(e + f·n) for a draft model, e + f·n for n-grams

a: reading the target's weights; b, b', b": arithmetic of verified tokens, bent as caches and tiles fill;
d: reading the KV of one token; e, f: cost of a proposer's step, fixed and per row. All coefficients are 0 or more, so
the model never decreases in K, n or c.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from specpipe.arrays import Array
from specpipe.core import ProposerName

Number = TypeVar("Number", float, Array)
FEATURES, ARITHMETIC, KV, DRAFT = 9, 1, 2, 3
LOAD_SLOWDOWN = FEATURES
"""Index of the last coefficient: slowdown of rounds under load against the start-up profile."""
_KV_CONTEXT = 1024.0  # context tokens from which time is assigned to KV, which rows of one length cannot separate
_KNEE = 192.0  # verified tokens from which arithmetic bounds a round
_HALF_SLOWDOWN = 64.0  # verified tokens at which half of the slowdown appears
_SCATTER, _SLOWDOWN = 0.02, 0.15  # prior standard deviations of relative errors and of the slowdown
_TOLERANCE = 1e-9  # slope below which a coefficient is at its minimum; the coefficients are scaled to about 1
_RIDGE_PENALTY = np.diag([*FEATURES * [1e-3], (_SCATTER / _SLOWDOWN) ** 2])


def one_hot(proposer: ProposerName) -> tuple[float, float]:
    """Returns (1, 0) for "draft", (0, 1) for "ngram" and (0, 0) for "none"."""
    return float(proposer == "draft"), float(proposer == "ngram")


def model_terms(draft: Number, ngram: Number, k: Number, n: Number, context: Number) -> tuple[Number, ...]:
    """Returns the 9 factors of the coefficients, for one round or elementwise for arrays of one shape.

    draft, ngram: `one_hot`; k: draft tokens; n: rows; context: mean tokens of a row.
    """
    tokens, speculates = n * (k + 1), (k > 0) * ngram
    beyond = tokens - _KNEE
    drafted = draft * k
    root, excess = tokens**0.5, (beyond + abs(beyond)) / 2
    return 0 * k + 1, tokens, n * context, drafted, drafted * n, speculates, speculates * n, root, excess


def slowdown_share(k: float, n: float) -> float:
    """Returns the share of the load slowdown that is missing in a profiled round.

    Rounds of many tokens are bound by power, which an idle machine has in reserve; rounds of few are bound by memory.
    """
    tokens = n * (k + 1)
    return tokens / (tokens + _HALF_SLOWDOWN)


def fit_model(rows: Array, weight: Array, *, near: Array | None = None) -> Array:
    """Returns the coefficients [10], all 0 or more, with the least squared relative errors.

    rows [cells, 10]: model terms / seconds, and −`slowdown_share` of profiled rounds or 0; weight [cells]; near [10]:
    coefficients that are close, to save time. Minimises (rows @ x − 1)², with a small ridge on each contribution for
    coefficients that the points cannot separate.
    """
    scale = np.maximum(rows.max(axis=0), 1e-30)
    scale[LOAD_SLOWDOWN] = 1.0
    scale[KV] = max(scale[KV], scale[ARITHMETIC] * _KV_CONTEXT)
    scaled = rows / scale
    weighted = (scaled * weight[:, None]).T
    free = np.zeros(len(scale), dtype=bool) if near is None else near > 0
    return np.asarray(
        _non_negative_least_squares(weighted @ scaled + _RIDGE_PENALTY, weighted.sum(axis=1), free) / scale
    )


def _non_negative_least_squares(gram: Array, target: Array, free: npt.NDArray[np.bool_]) -> Array:
    """Returns argmin over x ≥ 0 of x·gram·x / 2 − target·x for a positive definite gram.

    free: first guess of the entries above 0.

    Active sets: Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23.
    """
    x = _solve(gram, target, free)
    while x.min() < 0:
        free = free & (x > 0)
        x = _solve(gram, target, free)
    for _ in range(4 * len(target)):  # a few in practice
        slope = np.where(free, 0.0, target - gram @ x)
        most = int(np.argmax(slope))
        if slope[most] <= _TOLERANCE:
            break
        free = free.copy()
        free[most] = True
        while True:
            wanted = _solve(gram, target, free)
            low = free & (wanted <= 0)
            if not low.any():
                break
            x = x + (wanted - x) * float(np.min(x[low] / (x[low] - wanted[low])))
            free &= x > _TOLERANCE
        x = wanted
    return x


def _solve(gram: Array, target: Array, free: npt.NDArray[np.bool_]) -> Array:
    """Returns the unbounded minimum over the free entries; the others are 0."""
    at, x = np.flatnonzero(free), np.zeros(len(target))
    x[at] = np.linalg.solve(gram[at[:, None], at], target[at])
    return x


def monotone(seconds: Array) -> Array:
    """Returns values that do not decrease in either axis: the mean of the least upper and the greatest lower bound.

    An outlier loses half of its excess.
    """
    above = np.maximum.accumulate(np.maximum.accumulate(seconds, axis=0), axis=1)
    flipped = seconds[::-1, ::-1]
    below = np.minimum.accumulate(np.minimum.accumulate(flipped, axis=0), axis=1)[::-1, ::-1]
    return np.asarray(0.5 * (above + below))
