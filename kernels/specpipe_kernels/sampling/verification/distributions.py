"""The two sides of a verification, p and q: where their rows are, and a draft's log-probabilities."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.sampling.device.fast_math import fast_exp, fast_log
from specpipe_kernels.sampling.device.logit_rows import LogitRows, row_pointer
from specpipe_kernels.types import Bounds

_SERIES_ABOVE = tl.constexpr(-0.25)


class Distribution(NamedTuple):
    """p or q: rows of logits, and what truncation keeps of them."""

    rows: LogitRows
    bounds: Bounds | None

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        return self.rows.logits, self.rows.row_map, *(self.bounds or (None, None))

    @property
    def strides(self) -> tuple[int, int]:
        return self.rows.stride_group, self.rows.stride_row


def flags(p: Distribution, q: Distribution | None) -> dict[str, Any]:
    """Compile-time keywords that every kernel over both sides takes."""
    return {
        "P_MAP": p.rows.row_map is not None,
        "Q_MAP": q is not None and q.rows.row_map is not None,
        "ONE_HOT": q is None,
        "TRUNCATED": p.bounds is not None,
        "K_PAD": p.rows.k_pad,
    }


@triton.jit
def draft_logits(
    logits, row_map, stride_group, stride_row, vocab, request, position, token, mask, HAS_MAP: tl.constexpr
):  # fmt: skip
    """Logits of draft tokens [K_PAD] at their positions; -inf outside mask and vocabulary."""
    row = row_pointer(logits, row_map, request, position, stride_group, stride_row, HAS_MAP)
    inside = mask & (token >= 0) & (token < vocab)
    return tl.load(row + token, mask=inside, other=float("-inf")).to(tl.float32)


@triton.jit
def draft_log_probs(x, token, bound_logit, bound_token, item, lse, inverse, TRUNCATED: tl.constexpr):
    """log-probabilities of draft tokens of logits x; -inf outside truncation."""
    inside = x > float("-inf")
    if TRUNCATED:
        logit = tl.load(bound_logit + item, mask=inside, other=0.0)
        tied = (x == logit) & (token <= tl.load(bound_token + item, mask=inside, other=0))
        inside = inside & ((x > logit) | tied)
    return tl.where(inside, x * inverse - lse, float("-inf"))


@triton.jit
def log_residual(log_p, log_q):
    """log max(p - q, 0) = log p + log(-expm1(log q - log p)), without cancellation."""
    d = log_q - log_p
    near = tl.maximum(d, _SERIES_ABOVE)
    series = 1.0 + near * (1 / 5 + near * (1 / 30 + near * (1 / 210)))
    series = -near * (1.0 + near * (1 / 2 + near * (1 / 6 + near * (1 / 24) * series)))
    complement = tl.where(d > _SERIES_ABOVE, series, 1.0 - fast_exp(d))
    return tl.where(d < 0.0, log_p + fast_log(complement), float("-inf"))
