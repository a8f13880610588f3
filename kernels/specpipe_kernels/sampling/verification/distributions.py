"""The distributions p and q of a verification: their rows of logits, and log-probabilities of drafts."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from specpipe_kernels.sampling.device.fast_math import fast_exp, fast_log
from specpipe_kernels.sampling.device.kernel_args import LogitsArgs
from specpipe_kernels.sampling.device.logit_rows import LogitRows, row_pointer
from specpipe_kernels.types import Bounds

_SERIES_ABOVE = tl.constexpr(-0.25)


class Distribution(NamedTuple):
    """p or q: rows of logits and their truncation bounds."""

    rows: LogitRows
    bounds: Bounds | None
    """[items] each; None: nothing is truncated."""

    @property
    def args(self) -> LogitsArgs:
        """This distribution as an argument of a kernel."""
        return self.rows.args(self.bounds)


@triton.jit
def draft_logits(source, request, position, token, mask):
    """Returns the logits of draft tokens [K_PAD] at their positions; -inf outside mask and vocabulary."""
    row = row_pointer(source, request, position)
    inside = mask & (token >= 0) & (token < source.vocab)
    return tl.load(row + token, mask=inside, other=float("-inf")).to(tl.float32)


@triton.jit
def draft_log_probs(x, token, bounds, item, lse, inverse, TRUNCATED: tl.constexpr):
    """Returns log-probabilities of draft tokens with logits x [K_PAD]; -inf where truncated."""
    inside = x > float("-inf")
    if TRUNCATED:
        logit = tl.load(bounds.logit + item, mask=inside, other=0.0)
        tied = (x == logit) & (token <= tl.load(bounds.token + item, mask=inside, other=0))
        inside = inside & ((x > logit) | tied)
    return tl.where(inside, x * inverse - lse, float("-inf"))


@triton.jit
def log_residual(log_p, log_q):
    """Returns log max(p - q, 0) = log p + log(-expm1(log q - log p)), without cancellation."""
    d = log_q - log_p
    near = tl.maximum(d, _SERIES_ABOVE)
    series = 1.0 + near * (1 / 5 + near * (1 / 30 + near * (1 / 210)))
    series = -near * (1.0 + near * (1 / 2 + near * (1 / 6 + near * (1 / 24) * series)))
    complement = tl.where(d > _SERIES_ABOVE, series, 1.0 - fast_exp(d))
    return tl.where(d < 0.0, log_p + fast_log(complement), float("-inf"))
