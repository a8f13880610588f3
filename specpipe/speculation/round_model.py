"""A physical model of what a round takes: the roofline of a decoder-only pair.

A round of n rows with K draft tokens, T = n·(K + 1) verified tokens, rows c tokens long:

    seconds = a + b·T + b'·√T + b"·max(0, T − 192) + d·n·c  +  K·(e + f·n) for a draft model, e + f·n for n-grams

a: the target's weights; b: arithmetic of verified tokens, bent as caches and tiles fill; d: reading a token's KV;
e, f: the same of the proposer. All coefficients are 0 or more, so the model rises with K, n and c.
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
"""The coefficient beyond those of a round: by how much more than a rested machine's rounds those of a job take."""
_LONG = 1024.0  # tokens of context: with rows of one length KV and arithmetic look alike, and arithmetic gets the time
_RIDGE = 192.0
_WARM = 64.0  # tokens of which a rested machine gains half of what it gains at most
_SCATTER, _RESTED = 0.02, 0.15  # of relative errors, and of what a rested machine gains, before it is known
_FLAT = 1e-9
_SHARE_OUT = np.diag([*FEATURES * [1e-3], (_SCATTER / _RESTED) ** 2])


def one_hot(proposer: ProposerName) -> tuple[float, float]:
    """1 for the one that drafts, else 0: draft model, n-grams."""
    return float(proposer == "draft"), float(proposer == "ngram")


def model_terms(draft: Number, ngram: Number, k: Number, n: Number, context: Number) -> tuple[Number, ...]:
    """→ 9: what each coefficient is multiplied by, of one round or of arrays of one shape. draft, ngram: `one_hot`."""
    tokens, speculates = n * (k + 1), (k > 0) * ngram
    beyond = tokens - _RIDGE
    drafted = draft * k
    root, late = tokens**0.5, (beyond + abs(beyond)) / 2
    return 0 * k + 1, tokens, n * context, drafted, drafted * n, speculates, speculates * n, root, late


def slowdown_share(k: float, n: float) -> float:
    """How much of the shortfall shows in a round of a rested machine: power bounds rounds of many tokens, memory those
    of few."""
    tokens = n * (k + 1)
    return tokens / (tokens + _WARM)


def fit_model(rows: Array, weight: Array, *, near: Array | None = None) -> Array:
    """rows [cells, 10]: terms / seconds, and −`rested`, or 0 of rounds in a job; weight [cells]. → [10], 0 or more.

    Least squares of rows @ x − 1, that is of relative errors. `near`: coefficients that may be close; saves time.

    A small ridge on each coefficient's contribution shares out what the points cannot tell apart.
    """
    scale = np.maximum(rows.max(axis=0), 1e-30)
    scale[LOAD_SLOWDOWN] = 1.0
    scale[KV] = max(scale[KV], scale[ARITHMETIC] * _LONG)
    scaled = rows / scale
    weighted = (scaled * weight[:, None]).T
    free = np.zeros(len(scale), dtype=bool) if near is None else near > 0
    return np.asarray(_least(weighted @ scaled + _SHARE_OUT, weighted.sum(axis=1), free) / scale)


def _least(gram: Array, target: Array, free: npt.NDArray[np.bool_]) -> Array:
    """argmin over x ≥ 0 of x·gram·x / 2 − target·x, gram positive definite. free: which of x may be above 0.

    Active sets: Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23.
    """
    x = _solve(gram, target, free)
    while x.min() < 0:
        free = free & (x > 0)
        x = _solve(gram, target, free)
    for _ in range(4 * len(target)):  # as a rule a few
        slope = np.where(free, 0.0, target - gram @ x)
        most = int(np.argmax(slope))
        if slope[most] <= _FLAT:
            break
        free = free.copy()
        free[most] = True
        while True:
            wanted = _solve(gram, target, free)
            low = free & (wanted <= 0)
            if not low.any():
                break
            x = x + (wanted - x) * float(np.min(x[low] / (x[low] - wanted[low])))
            free &= x > _FLAT
        x = wanted
    return x


def _solve(gram: Array, target: Array, free: npt.NDArray[np.bool_]) -> Array:
    """Without a bound; what is not free is 0."""
    at, x = np.flatnonzero(free), np.zeros(len(target))
    x[at] = np.linalg.solve(gram[at[:, None], at], target[at])
    return x


def monotone(seconds: Array) -> Array:
    """The mean of the least rising bound above and the greatest below: rising in both axes, an outlier halved."""
    above = np.maximum.accumulate(np.maximum.accumulate(seconds, axis=0), axis=1)
    flipped = seconds[::-1, ::-1]
    below = np.minimum.accumulate(np.minimum.accumulate(flipped, axis=0), axis=1)[::-1, ::-1]
    return np.asarray(0.5 * (above + below))
