"""True costs of rounds in the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from specpipe.arrays import Array
from specpipe.core import ProposerName


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """True seconds of rounds on one kind of machine."""

    verify: Array
    """[points, 2]: tokens of the batch, seconds of a forward of the target without attention."""
    draft: Array
    """[points, 2]: the same for the draft model."""
    kv: float
    """Seconds per context token of the target."""
    draft_kv: float
    """Seconds per context token of the draft model."""
    draft_prefill: float
    """Seconds per token of a draft prefill."""
    draft_forward: float
    """Fixed seconds of a draft prefill."""
    rested: Array
    """[points, 2]: tokens of the batch, share of its seconds that a round takes in a start-up profile, without load."""
    ngram: tuple[float, float]
    """Seconds of an n-gram lookup: fixed, and per row."""
    _known: dict[tuple[ProposerName, int], list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Machine:
        """Reads a machine of a scenario file. Raises KeyError, TypeError or ValueError for an invalid one."""
        return cls(
            verify=np.array(values["verify"], dtype=float),
            draft=np.array(values["draft"], dtype=float),
            kv=float(values["kv"]),
            draft_kv=float(values["draft_kv"]),
            draft_prefill=float(values["draft_prefill"]),
            draft_forward=float(values["draft_forward"]),
            rested=np.array(values.get("rested", [[1, 1], [2, 1]]), dtype=float),
            ngram=(float(values["ngram"][0]), float(values["ngram"][1])),
        )

    def seconds(self, proposer: ProposerName, k: int, rows: int, context: float) -> float:
        """Returns the seconds of one round of `rows` rows with `context` tokens on average."""
        known = self._known.get((proposer, k))
        if known is None or len(known) <= rows:
            known = self._known[proposer, k] = self.forwards(proposer, k, 2 * rows).tolist()
        return known[rows] + self.token_s(proposer, k) * rows * context

    def profiled(self, proposer: ProposerName, k: int, rows: int, context: float) -> float:
        """Returns the seconds of one round in a start-up profile."""
        share = _line(self.rested, np.array([rows * (k + 1)]))
        return self.seconds(proposer, k, rows, context) * float(share[0])

    def prefill_s(self, tokens: float, forwards: float) -> float:
        """Returns the seconds of draft prefills with these tokens and forwards in all."""
        return self.draft_prefill * tokens + self.draft_forward * forwards

    def token_s(self, proposer: ProposerName, k: int) -> float:
        """Returns the seconds that each context token adds to a round."""
        return self.kv + (k * self.draft_kv if proposer == "draft" else 0.0)

    def forwards(self, proposer: ProposerName, k: int, most: int) -> Array:
        """Returns [most + 1]: the seconds of a round without attention, by rows."""
        rows = np.arange(most + 1)
        seconds = _line(self.verify, rows * (k + 1))
        if k and proposer == "draft":  # the first step feeds two tokens a row
            seconds += _line(self.draft, 2 * rows) + (k - 1) * _line(self.draft, rows)
        elif k:
            seconds += self.ngram[0] + self.ngram[1] * rows
        return seconds


def _line(points: Array, tokens: npt.NDArray[np.int64]) -> Array:
    """Interpolates linearly; beyond the last point with the slope before it."""
    slope = (points[-1, 1] - points[-2, 1]) / (points[-1, 0] - points[-2, 0])
    return np.asarray(np.interp(tokens, points[:, 0], points[:, 1]) + slope * np.maximum(0, tokens - points[-1, 0]))
