"""Acceptance rules of drafts. R rows, K drafts at most, position i follows i drafts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specpipe_kernels.reference.sampling.philox import uniform
from specpipe_kernels.types import Purpose


class Accepted(NamedTuple):
    """Accepted drafts of R rows; the residual at the next position is max(weight * p - q, 0)."""

    length: Tensor
    """[R] int64: number of accepted drafts."""
    weight: Tensor
    """[R] fp32: p_i of block verification, otherwise 1."""


def leading(accept: Tensor) -> Tensor:
    """Returns [R] int64: number of entries of accept [R, K] that are true before the first false one."""
    return accept.long().cumprod(-1).sum(-1)


def _uniforms(seed: Tensor, positions: Tensor, k: int, purpose: Purpose) -> Tensor:
    index = torch.arange(k, device=positions.device)
    return uniform(seed[:, None], positions[:, None] + index, index.expand(positions.shape[0], k), purpose)


def standard(log_p: Tensor, log_q: Tensor, seed: Tensor, positions: Tensor) -> Tensor:
    """Returns [R, K] bool: u q(x) < p(x), Leviathan et al., arXiv 2211.17192. log_p, log_q [R, K] are of the drafts.

    In linear space: where |log q| is large, adding log u to it would lose u. A draft with q(x) = 0 is rejected.
    """
    p, q = log_p.exp(), log_q.exp()
    return (_uniforms(seed, positions, p.shape[1], Purpose.ACCEPT) * q < p) & (q > 0)


def synthetic(rates: Tensor, seed: Tensor, positions: Tensor) -> Tensor:
    """Returns [R, K] bool: u < r_i / r_(i-1), which accepts position i at the unconditional rate r_i of rates [K]."""
    previous = torch.cat([torch.ones_like(rates[:1]), rates[:-1]])
    conditional = torch.where(previous > 0, rates / previous, torch.zeros_like(rates))
    return _uniforms(seed, positions, rates.shape[0], Purpose.ACCEPT) < conditional


def prefix_weights(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Returns [R, K+1]: p_0 = 1, p_i = min(p_(i-1) P(x_i) / Q(x_i), 1). log_p, log_q [R, K] are of the drafts."""
    ratio = (log_p - log_q).exp().masked_fill(log_q == -torch.inf, 0.0)
    weights = [torch.ones_like(log_p[:, :0].sum(-1))]
    for i in range(log_p.shape[1]):
        weights.append((weights[-1] * ratio[:, i]).clamp(max=1.0))
    return torch.stack(weights, dim=-1)


def block(weights: Tensor, residual_mass: Tensor, num_drafts: Tensor, seed: Tensor, positions: Tensor) -> Accepted:
    """Accepts the longest prefix i with eta_i <= h_i, even if shorter ones fail: Algorithm 2 of arXiv 2403.10444.

    weights [R, K+1] are p_i; residual_mass [R, K-1] holds S_i = sum(max(p_i P - Q, 0)) for i = 1..K-1;
    h_i = S_i / (S_i + 1 - p_i), and p_i for a row's last draft.
    """
    k = weights.shape[1] - 1
    length = torch.arange(1, k + 1, device=weights.device)
    p = weights[:, 1:]
    mass = torch.nn.functional.pad(residual_mass, (0, 1))
    # p_i = 1 makes h_i = 1, also where P = Q leaves no residual and the quotient is 0 / 0.
    h = torch.where(p < 1, mass / (mass + 1 - p), torch.ones_like(p))
    h = torch.where(length == num_drafts[:, None], p, h)
    passed = (_uniforms(seed, positions, k, Purpose.BLOCK) <= h) & (length <= num_drafts[:, None])
    count = torch.nn.functional.pad(length * passed, (1, 0)).amax(-1)
    return Accepted(count, weights.gather(-1, count[:, None])[:, 0])
