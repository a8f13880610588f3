"""Penalties on tokens that a row already contains.

Two buffers of S slots and C positions describe the tokens of a slot:

- tokens [S, C] int64: prompt, then output;
- seen [S, C] int32: 1 + number of occurrences in the output, at the first position of each distinct token; 0 elsewhere.
  Every distinct token is counted once, and no buffer has the size of the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specpipe_kernels.runtime.backend import implementation
from specpipe_kernels.types import Penalties


def apply_penalties(
    logits: Tensor,
    tokens: Tensor,
    seen: Tensor,
    slots: Tensor,
    lengths: Tensor,
    penalties: Penalties,
    drafts: Tensor,
    *,
    first: int = 0,
    cu_rows: Tensor | None = None,
) -> None:
    """Edits the logits of R requests in place, in their dtype, as transformers and vLLM do:

        x = x / repetition if x > 0 else x * repetition     for tokens of prompt and output
        x -= frequency * occurrences + presence             for tokens of the output

    Row i of a request follows `first` + i drafts of its round. For that row they count as output.

    Args:
        logits: [R * T, V] bf16, fp16 or fp32; row i of request r is at r * T + i, or cu_rows[r] + i. Any row stride.
        tokens, seen: see the module's docstring.
        slots: [R] int, the slot of each request.
        lengths: [R] int, number of tokens in each slot.
        penalties: of R requests; neutral ones cost nothing and change nothing.
        drafts: [R, K] int64; -1 counts nothing. The content of rows after a -1 is undefined.
        first: number of drafts that row 0 follows: the step of a draft model, 0 in verification.
        cu_rows: [R+1] int, first row of each request in ragged logits.

    Tokens beyond V (a draft of a narrower vocabulary) are not edited. Raises ValueError for shapes that do not fit.
    """
    rows = slots.shape[0]
    if logits.dim() != 2 or logits.stride(1) != 1:
        raise ValueError(f"logits {list(logits.shape)} of strides {logits.stride()}; expected [R * T, V], V contiguous")
    if cu_rows is None and (logits.shape[0] % rows if rows else logits.shape[0]):
        raise ValueError(f"logits has {logits.shape[0]} rows for {rows} requests; expected R * T, or cu_rows")
    if cu_rows is not None and cu_rows.shape != (rows + 1,):
        raise ValueError(f"cu_rows {list(cu_rows.shape)}; expected [R+1] = [{rows + 1}]")
    _check(tokens, seen, rows, lengths, penalties, drafts)
    if not 0 <= first <= drafts.shape[1]:
        raise ValueError(f"first={first}; expected 0 to K = {drafts.shape[1]}")
    if rows:
        function = implementation("sampling.apply_penalties", logits)
        function(logits, tokens, seen, slots, lengths, penalties, drafts, first=first, cu_rows=cu_rows)


def count_tokens(
    tokens: Tensor, seen: Tensor, slots: Tensor, lengths: Tensor, penalties: Penalties, new_tokens: Tensor
) -> None:
    """Adds the emitted tokens of R requests to `seen`, in place.

    Args:
        tokens, seen: see the module's docstring; `seen` is up to date below `lengths`.
        slots: [R] int; only slots that emit nothing may occur twice.
        lengths: [R] int, number of tokens in each slot before this emission.
        penalties: of R requests; requests with neutral penalties are skipped.
        new_tokens: [R, N] int64, to be stored from position `lengths` on; -1 beyond a request's emission.

    Raises ValueError for shapes that do not fit.
    """
    _check(tokens, seen, slots.shape[0], lengths, penalties, new_tokens)
    if slots.shape[0]:
        implementation("sampling.count_tokens", tokens)(tokens, seen, slots, lengths, penalties, new_tokens)


def _check(
    tokens: Tensor, seen: Tensor, rows: int, lengths: Tensor, penalties: Penalties, round_tokens: Tensor
) -> None:
    if tokens.shape != seen.shape or seen.dtype != torch.int32 or tokens.stride(1) != 1 or seen.stride(1) != 1:
        raise ValueError(f"tokens {list(tokens.shape)}, seen {list(seen.shape)} {seen.dtype}; expected [S, C], int32")
    if round_tokens.dim() != 2 or round_tokens.shape[0] != rows or (rows and round_tokens.stride(1) != 1):
        raise ValueError(f"tokens of this round: {list(round_tokens.shape)}; expected [R = {rows}, K], K contiguous")
    for name, tensor in {"lengths": lengths, **penalties._asdict()}.items():
        if tensor.shape != (rows,):
            raise ValueError(f"{name} {list(tensor.shape)}; expected one entry per request: [{rows}]")
