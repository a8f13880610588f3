"""Draw one token a row with Triton: one pass over the logits, after the passes that truncation needs."""

from __future__ import annotations

from torch import Tensor

from specpipe_kernels.triton_ops.rows import Rows
from specpipe_kernels.triton_ops.scan_rows import scan_rows
from specpipe_kernels.triton_ops.truncation_bounds import truncation_bounds
from specpipe_kernels.types import Purpose, Sampled, SamplingTensors


def sample(
    logits: Tensor,
    sampling: SamplingTensors,
    positions: Tensor,
    *,
    purpose: Purpose,
    index: int = 0,
    vocab_size: int | None = None,
) -> Sampled:
    """See `specpipe_kernels.sample`."""
    logits = logits[:, :vocab_size]
    rows = Rows(logits, None, logits.stride(0), logits.stride(0), logits.shape[1], logits.shape[0], 1)
    bounds = truncation_bounds(rows, sampling) if sampling.truncated and not sampling.all_greedy else None
    index = 0 if purpose == Purpose.INVARIANT else index
    return Sampled(*scan_rows(rows, sampling, positions, bounds, purpose=purpose, index=index))
