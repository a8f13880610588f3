"""Log-probabilities of emitted tokens on their way from the device to rows.

Shapes: B batch rows, K draft tokens a row, n most likely tokens told beside each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specpipe.core import MAX_TOP_LOGPROBS
from specpipe_kernels import TokenLogprobs

NO_LOGPROBS = -1
_WIDTHS = (0, 5, MAX_TOP_LOGPROBS)


def told_width(asked: int | None) -> int:
    """How many of the most likely tokens a round tells for a row that asks for so many: few widths, few graphs."""
    return NO_LOGPROBS if asked is None else next(width for width in _WIDTHS if width >= asked)


def pack(told: TokenLogprobs) -> Tensor:
    """→ [B, (K + 1) * (1 + 2n)] int64, floats as their bits."""
    values = torch.cat([told.logprobs[:, :, None], told.top_logprobs], dim=2)
    bits = values.contiguous().view(torch.int32).to(torch.int64)
    return torch.cat([bits, told.top_tokens], dim=2).flatten(1)


class RoundLogprobs(NamedTuple):
    """What `pack` packed, on the host."""

    own: NDArray[np.float32]
    """[B, K + 1]"""
    top_ids: NDArray[np.int64]
    """[B, K + 1, n], -1 where there are no more."""
    top: NDArray[np.float32]
    """[B, K + 1, n]"""

    @classmethod
    def unpack(cls, packed: Tensor, k: int) -> RoundLogprobs:
        table = packed.numpy().reshape(packed.shape[0], k + 1, -1)
        n = table.shape[2] // 2
        values = table[:, :, : n + 1].astype(np.int32).view(np.float32)
        return cls(values[:, :, 0], table[:, :, n + 1 :], values[:, :, 1:])

    def of(self, row: int, n: int) -> tuple[list[float], list[tuple[tuple[int, float], ...]]]:
        """Of a batch row, by position: log-probabilities, and up to n most likely tokens."""
        pairs = zip(self.top_ids[row, :, :n].tolist(), self.top[row, :, :n].tolist(), strict=True)
        tops = [tuple((i, p) for i, p in zip(ids, values, strict=True) if i >= 0) for ids, values in pairs]
        return self.own[row].tolist(), tops
