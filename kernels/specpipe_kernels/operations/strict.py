"""Checks of values, which read tensors on the host: for development, with SPECPIPE_STRICT=1 in the environment.

Without it, values of CUDA tensors are not read. Nothing is checked while a CUDA graph is captured.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from specpipe_kernels.types import RejectionOutput, SamplingTensors

VARIABLE = "SPECPIPE_STRICT"


def is_strict(tensor: Tensor) -> bool:
    """Returns true if the values of `tensor` and others on its device are to be checked."""
    if os.environ.get(VARIABLE, "") in ("", "0") or tensor.is_meta:
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def check_sampling(sampling: SamplingTensors) -> None:
    """Raises ValueError for parameters outside the ranges that `SamplingTensors` states."""
    _check("sampling.temperature", sampling.temperature, sampling.temperature < torch.inf, "finite")
    for name in ("top_p", "min_p"):
        value = getattr(sampling, name)
        _check(f"sampling.{name}", value, (value >= 0) & (value <= 1), "0 to 1")
    if sampling.all_greedy:
        _check("sampling.temperature", sampling.temperature, sampling.temperature <= 0, "0 with all_greedy")


def check_rates(rates: Tensor) -> None:
    """Raises ValueError for synthetic acceptance rates [K] that are not between 0 and 1 or that rise."""
    ordered = torch.ones_like(rates, dtype=torch.bool)
    ordered[1:] = rates[1:] <= rates[:-1]
    _check("synthetic_rates", rates, ordered & (rates >= 0) & (rates <= 1), "non-increasing rates between 0 and 1")


def check_round(
    target_logits: Tensor,
    draft_tokens: Tensor,
    num_draft_tokens: Tensor,
    cu_rows: Tensor | None,
    draft_rows: Tensor | None,
    draft_logits: Tensor | None,
    draft_lse: Tensor | None,
    bonus_tokens: Tensor | None,
) -> None:
    """Raises ValueError for drafts, counts and rows of `rejection_sample` that are out of range."""
    k, rows = draft_tokens.shape[1], target_logits.shape[0]
    drafted = torch.arange(k, device=draft_tokens.device) < num_draft_tokens[:, None]
    _check("num_draft_tokens", num_draft_tokens, (num_draft_tokens >= 0) & (num_draft_tokens <= k), f"0 to K = {k}")
    _check("draft_tokens", draft_tokens, ~drafted | (draft_tokens >= -1) & (draft_tokens < 2**31), "-1 or a token id")
    if bonus_tokens is not None:
        _check("bonus_tokens", bonus_tokens, (bonus_tokens >= 0) & (bonus_tokens < 2**31), "a token id")
    if cu_rows is not None:
        needed = cu_rows[:-1] + num_draft_tokens + (bonus_tokens is None)
        _check(
            "cu_rows", cu_rows[1:], (cu_rows[1:] >= needed) & (cu_rows[1:] <= rows), f"K_i + 1 rows each, {rows} in all"
        )
    if draft_rows is not None and draft_logits is not None:
        inside = (draft_rows >= -1) & (draft_rows < draft_logits.shape[0])
        _check("draft_rows", draft_rows, inside, f"-1 to D - 1 = {draft_logits.shape[0] - 1}")
        most = draft_logits.shape[1]
        fits = (draft_rows < 0) | (num_draft_tokens <= most)
        _check("num_draft_tokens", num_draft_tokens, fits, f"0 to {most} for requests with draft_logits")
        drafted &= draft_rows[:, None] >= 0
    if draft_lse is not None:
        lse = draft_lse[: len(drafted)] if draft_rows is None else draft_lse[draft_rows.long()]
        _check("draft_lse", lse, ~drafted[:, : lse.shape[1]] | lse.isfinite(), "finite values for drafts")


def check_emission(out: RejectionOutput, num_draft_tokens: Tensor) -> None:
    """Raises ValueError for a result of `rejection_sample` that contradicts itself: an error of the kernels."""
    emitted = torch.arange(out.tokens.shape[1], device=out.tokens.device) < out.num_emitted[:, None]
    _check("tokens of the result", out.tokens, (out.tokens >= 0) == emitted, "ids for emitted tokens, -1 behind them")
    accepted = out.num_accepted.long()
    _check("num_accepted of the result", accepted, (accepted >= 0) & (accepted <= num_draft_tokens), "0 to K_i")
    expected = torch.where(out.status == 0, accepted + 1, 0)
    _check("num_emitted of the result", out.num_emitted, out.num_emitted == expected, "num_accepted + 1, 0 if invalid")


def _check(name: str, values: Tensor, valid: Tensor, expected: str) -> None:
    if not bool(valid.all()):
        at = (~valid).nonzero()[0].tolist()
        raise ValueError(f"{name}{at} is {values[tuple(at)].item()}; expected {expected}")
