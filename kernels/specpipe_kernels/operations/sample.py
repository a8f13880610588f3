"""Draws one token from each row of logits."""

from __future__ import annotations

from torch import Tensor

from specpipe_kernels.operations.checks import check_rows, named_tensors
from specpipe_kernels.operations.strict import check_sampling, is_strict
from specpipe_kernels.runtime.backend import implementation
from specpipe_kernels.types import Purpose, Sampled, SamplingTensors


def sample(
    logits: Tensor,
    sampling: SamplingTensors,
    positions: Tensor,
    *,
    purpose: Purpose,
    index: int = 0,
    vocab_size: int | None = None,
    out: Tensor | None = None,
) -> Sampled:
    """Draws one token from each row of `logits`.

    Args:
        logits: [R, V] bf16, fp16 or fp32, before temperature, any row stride.
        sampling: of R rows.
        positions: [R] int64, absolute position of the token being drawn.
        purpose: the random stream: DRAFT for proposals (INVARIANT with that method), BONUS for plain decoding.
        index: of the token in its round. INVARIANT ignores it.
        vocab_size: number of leading entries to draw from. A draft model whose vocabulary is padded beyond the target's
            needs it; the logits passed to `rejection_sample` must then be sliced likewise.
        out: [R] int64 of any stride, receives the tokens: for instance a column of a round's drafts.

    Rows of temperature 0 or below take the largest logit, the lowest index among equals. Invalid rows (`Status`) give
    token -1. Raises ValueError for shapes that do not fit together.
    """
    if logits.dim() != 2 or logits.stride(1) != 1:
        raise ValueError(f"logits {list(logits.shape)} of strides {logits.stride()}; expected [R, V], V contiguous")
    check_rows(logits.shape[0], positions=positions, **named_tensors(sampling))
    if vocab_size is not None and vocab_size < 1:
        raise ValueError(f"vocab_size={vocab_size}; expected 1 or more")
    if is_strict(logits):
        check_sampling(sampling)
    function = implementation("sampling.sample", logits)
    result: Sampled = function(
        logits, sampling, positions, purpose=Purpose(purpose), index=index, vocab_size=vocab_size, out=out
    )
    return result
