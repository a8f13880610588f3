"""Log-probabilities of emitted tokens on their way from the device to rows.

Shapes: B batch rows, K draft tokens a row, n most likely tokens told beside each.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specpipe.core import MAX_TOP_LOGPROBS, Logprobs
from specpipe_kernels import TokenLogprobs

NO_LOGPROBS = -1
_WIDTHS = (0, 5, MAX_TOP_LOGPROBS)


def logprobs_width(asked: int | None) -> int:
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
    top_ids: NDArray[np.int32]
    """[B, K + 1, n], -1 where there are no more."""
    top: NDArray[np.float32]
    """[B, K + 1, n]"""

    @classmethod
    def unpack(cls, packed: Tensor, k: int) -> RoundLogprobs:
        table = packed.numpy().reshape(packed.shape[0], k + 1, -1)
        n = table.shape[2] // 2
        values = table[:, :, : n + 1].astype(np.int32).view(np.float32)
        return cls(values[:, :, 0], table[:, :, n + 1 :].astype(np.int32), values[:, :, 1:])


class RowLogprobs:
    """What a row was told so far."""

    __slots__ = ("_asked", "_n", "_own", "_top", "_top_ids")

    def __init__(self, asked: int) -> None:
        self._asked = self._n = asked
        self._own, self._top, self._top_ids = array("f"), array("f"), array("i")

    def put(self, first: int, told: RoundLogprobs, index: int) -> None:
        """Takes those of batch row `index` as the tokens from `first` on: perhaps more than the row then keeps."""
        n = self._n = min(self._asked, told.top.shape[2])  # a vocabulary may be smaller
        del self._own[first:], self._top[first * n :], self._top_ids[first * n :]
        self._own.frombytes(told.own[index].tobytes())
        self._top.frombytes(told.top[index, :, :n].tobytes())
        self._top_ids.frombytes(told.top_ids[index, :, :n].tobytes())

    def of(self, count: int) -> Logprobs:
        """Of the first tokens."""
        n = self._n
        return Logprobs(own=self._own[:count], n=n, top_ids=self._top_ids[: count * n], top=self._top[: count * n])
