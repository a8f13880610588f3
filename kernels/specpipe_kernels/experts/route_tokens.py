"""Chooses the experts of each token by the router's logits, and completes the norm of the router's input.

An expert's place among the chosen is the number of logits before its own, counted for all experts at once: choosing one
after the other takes as many steps as there are choices.

Of few tokens one kernel multiplies with the router as well: a program has the logits of some experts of a token, and
the last one to arrive chooses for the token.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from specpipe_kernels.layers.linear import linear
from specpipe_kernels.layers.quantized.quantize_rows import empty_fp8_rows, quantize_rows, store_fp8_row
from specpipe_kernels.runtime.arrival_counters import arrivals
from specpipe_kernels.runtime.dependent_launch import launch_options, let_next_start, wait_for_inputs
from specpipe_kernels.runtime.sizes import cdiv, power_of_2
from specpipe_kernels.weights import Fp8Rows, Normed, Routing

_CHUNK = 16  # logits that are compared with all of a token at a time
_FEW_TOKENS = 8
"""Most tokens of the kernel that multiplies with the router; one for a small router."""
_SMALL_ROUTER = 32
"""Most experts of a small router: 4 tokens take 31 µs more in 8 layers of gpt-oss-20b, 31 less in 12 of Qwen3."""
_OWN_EXPERTS = 4
"""Experts of a program of that kernel."""


@triton.jit
def _load_logits(row, expert, E: tl.constexpr):
    """Returns a token's logits of these experts in fp32: the lowest number for NaN, -inf beyond E."""
    logit = tl.load(row + expert, mask=expert < E, other=float("-inf"), cache_modifier=".cg").to(tl.float32)
    return tl.where(logit == logit, logit, -3.0e38)


@triton.jit
def _choose(
    row, ids, weights, token,
    E: tl.constexpr, E_PAD: tl.constexpr, CHUNK: tl.constexpr, TOP_K: tl.constexpr, NORMALIZE: tl.constexpr,
):  # fmt: skip
    """Stores the experts of a token and their weights. row: its logits."""
    expert = tl.arange(0, E_PAD)
    logit = _load_logits(row, expert, E)
    larger = tl.zeros([E_PAD, CHUNK], tl.int32)  # or as large with a lower number
    for begin in range(0, E_PAD, CHUNK):
        other = begin + tl.arange(0, CHUNK)
        other_logit = _load_logits(row, other, E)[None, :]
        ties = (other_logit == logit[:, None]) & (other[None, :] < expert[:, None])
        larger += ((other_logit > logit[:, None]) | ties).to(tl.int32)
    rank = tl.sum(larger, 1)
    chosen = (rank < TOP_K) & (expert < E)
    weight = tl.exp(logit - tl.max(logit, 0))
    weight /= tl.sum(tl.where(chosen, weight, 0.0) if NORMALIZE else weight, 0)
    at = token * TOP_K + rank
    tl.store(ids + at, expert, mask=chosen)
    tl.store(weights + at, weight, mask=chosen)


@triton.jit
def _norm_scale(squares, token, rows, eps, H: tl.constexpr, PARTS: tl.constexpr, PARTS_PAD: tl.constexpr):
    """Returns the factor that completes the norm of a token."""
    part = tl.arange(0, PARTS_PAD)
    sums = tl.load(squares + part * rows + token, mask=part < PARTS, other=0.0)
    return tl.rsqrt(tl.sum(sums, 0) / H + eps)


@triton.jit
def _store_normed(values, x_out, x_scale, token, lane, DTYPE: tl.constexpr, H: tl.constexpr):
    """Stores a row whose norm is complete, in 16, 32 or 8 bits."""
    if x_scale is not None:
        rounded = values.to(DTYPE).to(tl.float32)  # as rows whose norm was complete
        store_fp8_row(rounded, 1.0, x_out, x_scale, token, lane, lane < H, H)
    else:
        tl.store(x_out + token * H + lane, values.to(x_out.dtype.element_ty), mask=lane < H)


@triton.jit(do_not_specialize=["rows"])
def _choose_experts_kernel(
    logits, x, squares, ids, weights, x_out, x_scale, rows, stride, stride_x, eps,
    E: tl.constexpr, E_PAD: tl.constexpr, CHUNK: tl.constexpr, TOP_K: tl.constexpr, NORMALIZE: tl.constexpr,
    H: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, PARTS_PAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    wait_for_inputs(PDL)
    let_next_start(PDL)
    if squares is not None:
        lane = tl.arange(0, BLOCK)
        values = tl.load(x + token * stride_x + lane, mask=lane < H, other=0.0).to(tl.float32)
        values *= _norm_scale(squares, token, rows, eps, H, PARTS, PARTS_PAD)
        _store_normed(values, x_out, x_scale, token, lane, x.dtype.element_ty, H)
    _choose(logits + token * stride, ids, weights, token, E, E_PAD, CHUNK, TOP_K, NORMALIZE)


@triton.jit(do_not_specialize=["rows"])
def _route_tokens_kernel(
    router, bias, counters,
    logits, x, squares, ids, weights, x_out, x_scale, rows, stride, stride_x, eps,
    E: tl.constexpr, E_PAD: tl.constexpr, CHUNK: tl.constexpr, TOP_K: tl.constexpr, NORMALIZE: tl.constexpr,
    H: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, PARTS_PAD: tl.constexpr, OWN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(0) * OWN + tl.arange(0, OWN)
    token = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    mask = (expert[:, None] < E) & (lane[None, :] < H)
    tile = tl.load(router + expert[:, None] * H + lane[None, :], mask=mask, other=0.0)
    shift = 0.0
    if bias is not None:
        shift = tl.load(bias + expert, mask=expert < E, other=0.0).to(tl.float32)
    wait_for_inputs(PDL)
    scale = _norm_scale(squares, token, rows, eps, H, PARTS, PARTS_PAD)
    values = tl.load(x + token * stride_x + lane, mask=lane < H, other=0.0).to(tl.float32)
    let_next_start(PDL)
    logit = tl.sum(tile.to(tl.float32) * values[None, :], 1) * scale + shift
    row = logits + token * stride
    tl.store(row + expert, logit.to(logits.dtype.element_ty), mask=expert < E)
    if tl.program_id(0) == 0:
        _store_normed(values * scale, x_out, x_scale, token, lane, x.dtype.element_ty, H)
    tl.debug_barrier()
    if tl.atomic_add(counters + token, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        tl.store(counters + token, 0)
        _choose(row, ids, weights, token, E, E_PAD, CHUNK, TOP_K, NORMALIZE)


def route_tokens(
    x: Normed, router: Tensor, bias: Tensor | None, top_k: int, *, normalize: bool, fp8: bool = False
) -> Routing:
    """See `specpipe_kernels.route_tokens`."""
    tokens, experts = x.values.shape[0], router.shape[0]
    if x.squares is None or tokens > (_FEW_TOKENS if experts > _SMALL_ROUTER else 1):
        return choose_experts(linear(x, router, bias), x, top_k, normalize=normalize, fp8=fp8)
    assert router.is_contiguous()
    logits = x.values.new_empty(tokens, experts)
    routing, arguments = _arguments(logits, x, top_k, normalize=normalize, fp8=fp8)
    if tokens:
        _route_tokens_kernel[(cdiv(experts, _OWN_EXPERTS), tokens)](
            router, bias, arrivals(logits, tokens), OWN=_OWN_EXPERTS, num_warps=4, **arguments
        )
    return routing


def choose_experts(logits: Tensor, x: Normed, top_k: int, *, normalize: bool, fp8: bool = False) -> Routing:
    """Returns the experts of each token by its logits [M, E]. Other arguments are those of `route_tokens`."""
    tokens = logits.shape[0]
    routing, arguments = _arguments(logits, x, top_k, normalize=normalize, fp8=fp8)
    if tokens:
        _choose_experts_kernel[(tokens,)](num_warps=8, **arguments)
    return routing


def _arguments(logits: Tensor, x: Normed, top_k: int, *, normalize: bool, fp8: bool) -> tuple[Routing, dict[str, Any]]:
    """Returns memory of the results, and the arguments that both kernels take."""
    (tokens, experts), hidden = logits.shape, x.values.shape[1]
    ids = torch.empty(tokens, top_k, dtype=torch.int32, device=logits.device)
    weights = torch.empty(tokens, top_k, dtype=torch.float32, device=logits.device)
    normed: Tensor | Fp8Rows = x.values
    if x.squares is not None:
        normed = empty_fp8_rows(tokens, hidden, x.values) if fp8 else torch.empty_like(x.values)
    elif fp8:
        normed = quantize_rows(x.values)
    out, scale = (normed.values, normed.scale) if isinstance(normed, Fp8Rows) else (normed, None)
    parts = 0 if x.squares is None else x.squares.shape[0]
    assert logits.stride(1) == 1 and top_k <= experts
    pad = power_of_2(experts)
    arguments = {
        "logits": logits, "x": x.values, "squares": x.squares, "ids": ids, "weights": weights, "x_out": out,
        "x_scale": scale, "rows": tokens, "stride": logits.stride(0), "stride_x": x.values.stride(0), "eps": x.eps,
        "E": experts, "E_PAD": pad, "CHUNK": min(_CHUNK, pad), "TOP_K": top_k, "NORMALIZE": normalize, "H": hidden,
        "BLOCK": power_of_2(hidden), "PARTS": parts, "PARTS_PAD": power_of_2(max(1, parts)),
    }  # fmt: skip
    return Routing(ids, weights, normed), arguments | launch_options(logits)
