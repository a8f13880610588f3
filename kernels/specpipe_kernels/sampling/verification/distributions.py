"""The distributions p and q of a verification: their rows of logits, and log-probabilities of drafts."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from specpipe_kernels.sampling.device.fast_math import LN_2, LOG2_E, fast_exp2, fast_log2
from specpipe_kernels.sampling.device.kernel_args import LogitsArgs
from specpipe_kernels.sampling.device.logit_rows import MAX_INVERSE, LogitRows, inverse_temperature, row_pointer
from specpipe_kernels.sampling.device.row_spans import ExponentScale, exponent_scale
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
def draft_log_probs(x, token, bounds, item, reference, log_mass, inverse, TRUNCATED: tl.constexpr):
    """Returns log-probabilities of draft tokens with logits x [K_PAD]; -inf where truncated."""
    inside = x > float("-inf")
    if TRUNCATED:
        logit = tl.load(bounds.logit + item, mask=inside, other=0.0)
        tied = (x == logit) & (token <= tl.load(bounds.token + item, mask=inside, other=0))
        inside = inside & ((x > logit) | tied)
    return tl.where(inside, (x - reference) * inverse - log_mass, float("-inf"))


@triton.jit
def split_lse(lse, temperature):
    """Returns a logit near the largest one, and the rest of fp64 log-sum-exps [K_PAD], both fp32."""
    lse = lse.to(tl.float64)
    reference = (lse * tl.maximum(temperature, 1.0 / MAX_INVERSE)).to(tl.float32)
    return reference, (lse - reference.to(tl.float64) * inverse_temperature(temperature).to(tl.float64)).to(tl.float32)


@triton.jit
def log_prob_scale(references, log_masses, chosen, inverse):
    """Returns the `ExponentScale` with which log2 p of the chosen row among [K_PAD] is x * scale - shift - rest."""
    exponent = exponent_scale(tl.sum(tl.where(chosen, references, 0.0)), inverse)
    log_mass = tl.sum(tl.where(chosen, log_masses, 0.0)) * LOG2_E
    return ExponentScale(exponent.scale, exponent.shift, exponent.rest + log_mass)


@triton.jit
def log2_residual(log_p, log_q):
    """Returns log2 max(p - q, 0) = log2 p + log2(-expm1(ln q - ln p)) of base-2 logarithms, without cancellation."""
    d = log_q - log_p
    near = tl.maximum(d * LN_2, _SERIES_ABOVE)
    series = 1.0 + near * (1 / 5 + near * (1 / 30 + near * (1 / 210)))
    series = -near * (1.0 + near * (1 / 2 + near * (1 / 6 + near * (1 / 24) * series)))
    complement = tl.where(near > _SERIES_ABOVE, series, 1.0 - fast_exp2(d))
    return tl.where(d < 0.0, log_p + fast_log2(complement), float("-inf"))
