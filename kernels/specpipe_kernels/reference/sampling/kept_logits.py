"""Temperature and truncation: the logits that a row is drawn from.

N rows, V vocabulary entries. The order is that of transformers' generate: temperature, top-k, top-p, min-p, each on
the tokens that the previous filter kept. Tokens rank by logit, then by lowest index; every filter keeps a prefix of
that ranking, so the last kept logit and token describe the kept set.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.types import Bounds, SamplingTensors, Status

MAX_INVERSE = 1e30  # logits of usual size over the smallest temperatures stay finite


def inverse_temperature(temperature: Tensor) -> Tensor:
    """Returns 1 / temperature, and 1 for greedy rows, whose scaled logits are not used."""
    return torch.where(temperature > 0, temperature.reciprocal().clamp_(max=MAX_INVERSE), torch.ones_like(temperature))


def truncation_bounds(logits: Tensor, sampling: SamplingTensors) -> Bounds:
    """Returns the bounds [N] of logits [N, V] and sampling of N rows. At least one token is kept."""
    values, order = logits.float().sort(dim=-1, descending=True, stable=True)
    inverse = inverse_temperature(sampling.temperature)[:, None]
    top_k, top_p = sampling.top_k[:, None], sampling.top_p[:, None]
    kept = (torch.arange(logits.shape[1], device=logits.device) < top_k) | (top_k <= 0)
    below = values - values[:, :1]
    mass = (below * inverse).exp_() * kept
    mass_before = mass.cumsum(-1) - mass
    kept &= (mass_before < top_p * mass.sum(-1, keepdim=True)) | (top_p >= 1)
    kept &= below >= (sampling.temperature * sampling.min_p.log())[:, None]
    last = kept.sum(-1, keepdim=True).sub_(1).clamp_(min=0)
    return Bounds(values.gather(-1, last)[:, 0], order.gather(-1, last)[:, 0].int())


def bounds_of(logits: Tensor, sampling: SamplingTensors) -> Bounds | None:
    """Returns the bounds [N] of logits [N, V]; None with `all_greedy`, or without `truncated`."""
    return truncation_bounds(logits, sampling) if sampling.truncated and not sampling.all_greedy else None


def log_shift(logits: Tensor, sampling: SamplingTensors) -> Tensor:
    """Returns [N] fp64: the largest logit over temperature, 0 where it is not finite; see `kept_logits`."""
    return _largest(logits).double() * inverse_temperature(sampling.temperature).double()


def _largest(logits: Tensor) -> Tensor:
    return logits.amax(-1).float().nan_to_num_(0.0, posinf=0.0, neginf=0.0)


def kept_logits(logits: Tensor, sampling: SamplingTensors, bounds: Bounds | None = None) -> Tensor:
    """Returns [N, V] fp32: logits over temperature less `log_shift`, -inf where truncated. bounds: computed if None.

    Logits over low temperatures are so large that fp32 has no fraction left, unless the largest is subtracted before.
    """
    logits = logits.float()
    scaled = (logits - _largest(logits)[:, None]) * inverse_temperature(sampling.temperature)[:, None]
    if not sampling.truncated:
        return scaled
    bounds = bounds or truncation_bounds(logits, sampling)
    index = torch.arange(logits.shape[1], device=logits.device)
    tied = (logits == bounds.logit[:, None]) & (index <= bounds.token[:, None])
    return scaled.masked_fill_(~((logits > bounds.logit[:, None]) | tied), -torch.inf)


def select_rows(sampling: SamplingTensors, rows: Tensor) -> SamplingTensors:
    """Returns the sampling parameters of the requests `rows` [N], which may repeat."""
    return sampling._replace(
        temperature=sampling.temperature[rows],
        top_k=sampling.top_k[rows],
        top_p=sampling.top_p[rows],
        min_p=sampling.min_p[rows],
        seed=sampling.seed[rows],
    )


def status_of(largest: Tensor) -> Tensor:
    """Returns the `Status`, int32, of rows from their largest logits, of any shape. NaN counts as the largest."""
    status = torch.zeros_like(largest, dtype=torch.int32)
    status.masked_fill_(largest == -torch.inf, Status.IMPOSSIBLE)
    return status.masked_fill_(~(largest < torch.inf), Status.INVALID)
