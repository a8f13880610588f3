"""Differences of logits and log-probabilities that rounding explains."""

from __future__ import annotations

from collections.abc import Sequence

_EPS = {"float32": 2.0**-23, "bfloat16": 2.0**-8, "float16": 2.0**-11}
_FLOOR = 1e-3


def rounding_tolerance(dtype: str, logit: float) -> float:
    """Returns the largest fp32 difference of two logits whose order may change in `dtype`.

    It is 4 units in the last place of `dtype` at the largest logit, and at least 1e-3. logit: the largest logit.
    """
    return max(_FLOOR, 4 * _EPS.get(dtype, _EPS["float32"]) * abs(logit))


def same_up_to_rounding(a: Sequence[float], b: Sequence[float], dtype: str) -> bool:
    """Returns True if log-probabilities differ by no more than `rounding_tolerance` of the larger one."""
    if len(a) != len(b):
        return False
    return all(abs(x - y) <= rounding_tolerance(dtype, max(abs(x), abs(y))) for x, y in zip(a, b, strict=True))


def best(logprobs: Sequence[float]) -> int:
    """Returns the index of the largest log-probability, the first one among equals."""
    return max(range(len(logprobs)), key=logprobs.__getitem__)
