"""Device functions over the residual max(p - q, 0): the masses of its chunks, and a draw from one of them.

x are logits of p, y those of q; each has an `ExponentScale` of its log-probabilities, that of p with its weight.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specpipe_kernels.sampling.device.fast_math import fast_exp2, multiply_subtract
from specpipe_kernels.sampling.device.logit_rows import is_kept, load_tile
from specpipe_kernels.sampling.device.philox import lag_tile
from specpipe_kernels.sampling.device.row_spans import next_tile
from specpipe_kernels.sampling.verification.distributions import log2_residual
from specpipe_kernels.types import Purpose

_RECOVERED = tl.constexpr(int(Purpose.RECOVERED))


@triton.jit
def _log_probs(
    x, y, offsets, p_scale, p_bounds, p_item, q_scale, q_bounds, q_item, ONE_HOT: tl.constexpr, TRUNCATED: tl.constexpr
):  # fmt: skip
    """Returns log2 p and log2 q of logits x and y, both plus the rest of p's scale; a one-hot q counts as 0."""
    log_p = multiply_subtract(x, p_scale.scale, p_scale.shift)
    if TRUNCATED:
        log_p = tl.where(is_kept(x, offsets, p_bounds, p_item, TRUNCATED), log_p, float("-inf"))
    if ONE_HOT:
        log_q = tl.full(x.shape, float("-inf"), tl.float32)
    else:
        log_q = multiply_subtract(y, q_scale.scale, q_scale.shift) - (q_scale.rest - p_scale.rest)
        if TRUNCATED:
            log_q = tl.where(is_kept(y, offsets, q_bounds, q_item, TRUNCATED), log_q, float("-inf"))
    return log_p, log_q


@triton.jit
def _masses(log_p, log_q, ONE_HOT: tl.constexpr):
    # Mass exactly where `log2_residual` gives a finite score, so that every chunk with mass has a token.
    mass = fast_exp2(log_p)
    if not ONE_HOT:
        mass -= fast_exp2(log_q)
    return tl.where(log_p > log_q, mass, 0.0)


@triton.jit
def store_residual_masses(
    row, q_row, begin, end, p_vocab, q_vocab, masses, draft, p_scale, p_bounds, p_item,
    q_scale, q_bounds, q_item,
    ONE_HOT: tl.constexpr, TRUNCATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Stores the sum of max(p - q, 0) of each chunk of a span, up to a factor. draft: of a one-hot q, else -1."""
    lane = tl.arange(0, BLOCK)
    x = load_tile(row, begin + lane, p_vocab)
    y = x
    if not ONE_HOT:
        y = load_tile(q_row, begin + lane, q_vocab)
    for start in range(begin, end, BLOCK):
        x_next = next_tile(row, start + BLOCK, end, p_vocab, BLOCK)
        y_next = x_next
        if not ONE_HOT:
            y_next = next_tile(q_row, start + BLOCK, end, q_vocab, BLOCK)
        log_p, log_q = _log_probs(
            x, y, start + lane, p_scale, p_bounds, p_item, q_scale, q_bounds, q_item, ONE_HOT, TRUNCATED
        )
        tl.store(masses + start // BLOCK, tl.sum(_masses(log_p, log_q, ONE_HOT)))
        x = x_next
        y = y_next
    if (draft >= begin) & (draft < end):  # a second time, so that other chunks do not compare
        chunk = draft // BLOCK
        offsets = chunk * BLOCK + lane
        x = tl.where(offsets == draft, float("-inf"), load_tile(row, offsets, p_vocab))
        log_p, log_q = _log_probs(x, x, offsets, p_scale, p_bounds, p_item, q_scale, q_bounds, q_item, True, TRUNCATED)
        tl.store(masses + chunk, tl.sum(_masses(log_p, log_q, True)))


@triton.jit
def residual_mass(
    row, q_row, begin, end, p_vocab, q_vocab, p_scale, p_bounds, p_item,
    q_scale, q_bounds, q_item, TRUNCATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Returns the sum of max(p - q, 0) of a span; q is not one-hot."""
    lane = tl.arange(0, BLOCK)
    x = load_tile(row, begin + lane, p_vocab)
    y = load_tile(q_row, begin + lane, q_vocab)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(begin, end, BLOCK):
        x_next = next_tile(row, start + BLOCK, end, p_vocab, BLOCK)
        y_next = next_tile(q_row, start + BLOCK, end, q_vocab, BLOCK)
        log_p, log_q = _log_probs(
            x, y, start + lane, p_scale, p_bounds, p_item, q_scale, q_bounds, q_item, False, TRUNCATED
        )
        total += _masses(log_p, log_q, False)
        x = x_next
        y = y_next
    return tl.sum(total) * fast_exp2(-p_scale.rest)


@triton.jit
def draw_from_residual(
    x, y, begin, seed, position, index, draft, p_scale, p_bounds, p_item, q_scale, q_bounds, q_item,
    ONE_HOT: tl.constexpr, TRUNCATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Returns a chunk's sum of max(p - q, 0), up to a factor, and the token drawn from it. x, y [BLOCK]: its logits."""
    offsets = begin + tl.arange(0, BLOCK)
    x = tl.where(offsets == draft, float("-inf"), x)
    lag = lag_tile(seed, position, index, _RECOVERED, begin, BLOCK)
    log_p, log_q = _log_probs(x, y, offsets, p_scale, p_bounds, p_item, q_scale, q_bounds, q_item, ONE_HOT, TRUNCATED)
    mass = tl.sum(_masses(log_p, log_q, ONE_HOT))
    _, at = tl.max(log2_residual(log_p, log_q) - lag, 0, return_indices=True)
    return mass, begin + at
