"""Softmax over a part of the keys, so that keys read apart are merged into one softmax.

Parts with log-sum-exps a and b of their scores merge to log(e^a + e^b), their outputs with weights sigmoid(a - b) and
sigmoid(b - a): Flash-Decoding; Milakov and Gimelshein, "Online normalizer calculation for softmax" (arXiv 1805.02867).

Shapes: E queries, times the heads that share a KV head; S keys; D size of a value.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class SoftmaxPart(NamedTuple):
    """Attention to one part of the keys; leading dimensions are those of the queries."""

    lse: Tensor
    """[..., E] log-sum-exp of the scores; -inf or about the mask's value without a key."""
    values: Tensor
    """[..., E, D] output over this part alone."""


def attend_part(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float, softcap: float | None
) -> SoftmaxPart:
    """Attends q [B, Hkv, E, D] to k and v [B, Hkv, S, D]. mask: added to the scores [B, Hkv, E, S]; finite."""
    if softcap is None and q.device.type == "cpu" and k.shape[-1] == v.shape[-1]:
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        values, lse = attend(q, k, v, attn_mask=mask, scale=scale)
        return SoftmaxPart(lse, values)
    scores = torch.matmul(q * scale, k.transpose(-1, -2))
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores += mask
    lse = scores.logsumexp(-1)
    return SoftmaxPart(lse, torch.matmul(scores.sub_(lse[..., None]).exp_(), v))


def merge_parts(a: SoftmaxPart, b: SoftmaxPart) -> SoftmaxPart:
    """Returns the attention to the keys of both parts, of which at least one has a finite `lse`."""
    weight = (b.lse - a.lse).sigmoid_()
    return SoftmaxPart(torch.logaddexp(a.lse, b.lse), torch.lerp(a.values, b.values, weight[..., None]))


def finish_softmax(part: SoftmaxPart, sinks: Tensor | None) -> Tensor:
    """Returns the attention output [..., Hkv, E, D]. sinks: [Hq]; E is Hq / Hkv heads times queries."""
    if sinks is None:
        return part.values
    kv_heads, entries = part.lse.shape[-2:]
    logit = sinks.to(part.lse.dtype).view(kv_heads, -1, 1)
    logit = logit.expand(-1, -1, entries // logit.shape[1]).reshape(kv_heads, entries)
    return part.values * (part.lse - logit).sigmoid()[..., None]
