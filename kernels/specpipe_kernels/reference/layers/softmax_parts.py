"""Softmax over a part of the keys, so that keys read apart are merged into one softmax.

Parts with largest scores m and sums s merge to m = max(m_a, m_b), s = s_a·exp(m_a − m) + s_b·exp(m_b − m), and weighted
values alike: Milakov and Gimelshein, "Online normalizer calculation for softmax" (arXiv 1805.02867); Flash-Decoding.

Shapes: E queries, times the heads that share a KV head; S keys; D size of a value.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class SoftmaxPart(NamedTuple):
    """Sums over the keys of one part; leading dimensions are those of the queries."""

    top: Tensor
    """[..., E] largest score; -inf or the mask's value without a key."""
    total: Tensor
    """[..., E] sum of exp(score - top)."""
    values: Tensor
    """[..., E, D] sum of exp(score - top) · value."""


def attend_part(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float, softcap: float | None
) -> SoftmaxPart:
    """Attends q [..., E, D] to k and v [..., S, D]. mask: added to the scores [..., E, S]; finite."""
    scores = torch.matmul(q * scale, k.transpose(-1, -2))
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores += mask
    top = scores.amax(-1)
    weights = scores.sub_(top[..., None]).exp_()
    return SoftmaxPart(top, weights.sum(-1), torch.matmul(weights, v))


def merge_parts(a: SoftmaxPart, b: SoftmaxPart) -> SoftmaxPart:
    """Returns the sums over the keys of both parts, of which at least one has a finite `top`."""
    top = torch.maximum(a.top, b.top)
    shrink_a, shrink_b = (part.top.sub(top).exp_() for part in (a, b))
    return SoftmaxPart(
        top,
        a.total * shrink_a + b.total * shrink_b,
        a.values * shrink_a[..., None] + b.values * shrink_b[..., None],
    )


def finish_softmax(part: SoftmaxPart, sinks: Tensor | None) -> Tensor:
    """Returns the attention output [..., Hkv, E, D]. sinks: [Hq]; E is Hq / Hkv heads times queries."""
    if sinks is None:
        return part.values / part.total[..., None]
    kv_heads, entries = part.top.shape[-2:]
    logit = sinks.to(part.top.dtype).view(kv_heads, -1, 1)
    logit = logit.expand(-1, -1, entries // logit.shape[1]).reshape(kv_heads, entries)
    top = torch.maximum(part.top, logit)
    shrink = (part.top - top).exp()
    return part.values * (shrink / (part.total * shrink + (logit - top).exp()))[..., None]
