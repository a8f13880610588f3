"""A physical model of what a round takes: the roofline of a decoder-only pair.

A round of n rows with K draft tokens, T = n·(K + 1) verified tokens, rows c tokens long:

    seconds = a + b·T + b'·√T + b"·max(0, T − 192) + d·n·c  +  K·(e + f·n) for a draft model, e + f·n for n-grams

a: the target's weights; b: arithmetic of verified tokens, bent as caches and tiles fill; d: reading a token's KV;
e, f: the same of the proposer. All coefficients are 0 or more, so the model rises with K, n and c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specpipe.core import ProposerName

Array = npt.NDArray[np.float64]
FEATURES, ARITHMETIC, KV, DRAFT = 9, 1, 2, 3
_LONG = 1024.0  # tokens of context: with rows of one length KV and arithmetic look alike, and arithmetic gets the time
_RIDGE = 192.0
_SWEEPS = 60


def features(proposer: ProposerName, k: Array, n: Array, context: Array) -> Array:
    """→ [..., 9]: what each coefficient is multiplied by. Arguments are arrays of one shape."""
    nothing = np.zeros_like(n)
    draft = [k, k * n] if proposer == "draft" else [nothing, nothing]
    ngram = [np.sign(k), np.sign(k) * n] if proposer == "ngram" else [nothing, nothing]
    tokens = n * (k + 1)
    bent = [np.sqrt(tokens), np.maximum(0.0, tokens - _RIDGE)]
    return np.stack([np.ones_like(n), tokens, n * context, *draft, *ngram, *bent], axis=-1)


def fit(rows: Array, weight: Array) -> Array:
    """rows [cells, 9]: features / seconds; weight [cells]. → [9] coefficients of 0 or more.

    Least squares of rows @ x − 1, that is of relative errors, by coordinate descent.

    A small ridge on each coefficient's contribution shares out what the points cannot tell apart.
    """
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-30)
    scale[KV] = max(scale[KV], scale[ARITHMETIC] * _LONG)
    scaled = rows / scale
    gram = (scaled * weight[:, None]).T @ scaled + 1e-3 * np.eye(FEATURES)
    target = (scaled * weight[:, None]).T @ np.ones(len(rows))
    x = np.zeros(FEATURES)
    for _ in range(_SWEEPS):
        for i in range(FEATURES):
            x[i] = max(0.0, x[i] + (target[i] - gram[i] @ x) / gram[i, i])
    return np.asarray(x / scale)


def rising(seconds: Array) -> Array:
    """The mean of the least rising bound above and the greatest below: rising in both axes, an outlier halved."""
    above = np.maximum.accumulate(np.maximum.accumulate(seconds, axis=0), axis=1)
    flipped = seconds[::-1, ::-1]
    below = np.minimum.accumulate(np.minimum.accumulate(flipped, axis=0), axis=1)[::-1, ::-1]
    return np.asarray(0.5 * (above + below))
