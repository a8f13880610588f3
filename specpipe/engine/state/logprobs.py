"""Log-probabilities of emitted tokens, packed on the device, unpacked on the host and stored by row.

Shapes: B batch rows, K draft tokens a row, n alternatives: the most likely tokens reported beside each token.
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
_ALTERNATIVES = (0, 5, MAX_TOP_LOGPROBS)


def alternatives_for(requested: int | None) -> int:
    """Returns the number of alternatives that a round reports for a row that requests so many; None: NO_LOGPROBS.

    It is rounded up to one of a few numbers, because a graph is captured for each.
    """
    if requested is None:
        return NO_LOGPROBS
    return next(alternatives for alternatives in _ALTERNATIVES if alternatives >= requested)


def pack_logprobs(values: TokenLogprobs) -> Tensor:
    """Returns [B, (K + 1) * (1 + 2n)] int64 with floats as their bits, so that one copy brings it to the host."""
    floats = torch.cat([values.logprobs[:, :, None], values.top_logprobs], dim=2)
    bits = floats.contiguous().view(torch.int32).to(torch.int64)
    return torch.cat([bits, values.top_tokens], dim=2).flatten(1)


class RoundLogprobs(NamedTuple):
    """Log-probabilities of one round, on the host."""

    own: NDArray[np.float32]
    """[B, K + 1]: of the emitted tokens."""
    top_ids: NDArray[np.int32]
    """[B, K + 1, n]: alternatives, the most likely first; -1 where there are fewer."""
    top: NDArray[np.float32]
    """[B, K + 1, n]: of the alternatives."""

    @classmethod
    def unpack(cls, packed: Tensor, k: int) -> RoundLogprobs:
        """Reads what `pack_logprobs` returned. packed [B, (k + 1) * (1 + 2n)] int64, on the host."""
        table = packed.numpy().reshape(packed.shape[0], k + 1, -1)
        n = table.shape[2] // 2
        values = table[:, :, : n + 1].astype(np.int32).view(np.float32)
        return cls(values[:, :, 0], table[:, :, n + 1 :].astype(np.int32), values[:, :, 1:])


class RowLogprobs:
    """Log-probabilities of one row's tokens so far."""

    __slots__ = ("_n", "_own", "_requested", "_top", "_top_ids")

    def __init__(self, requested: int) -> None:
        """requested: alternatives that the row's request asks for."""
        self._requested = self._n = requested
        self._own, self._top, self._top_ids = array("f"), array("f"), array("i")

    def store(self, first: int, values: RoundLogprobs, index: int) -> None:
        """Stores the values of batch row `index` for the tokens from `first` on; the row may keep fewer of them."""
        n = self._n = min(self._requested, values.top.shape[2])  # a vocabulary may be smaller than requested
        del self._own[first:], self._top[first * n :], self._top_ids[first * n :]
        self._own.frombytes(values.own[index].tobytes())
        self._top.frombytes(values.top[index, :, :n].tobytes())
        self._top_ids.frombytes(values.top_ids[index, :, :n].tobytes())

    def first(self, count: int) -> Logprobs:
        """Returns those of the first `count` tokens."""
        n = self._n
        return Logprobs(own=self._own[:count], n=n, top_ids=self._top_ids[: count * n], top=self._top[: count * n])
