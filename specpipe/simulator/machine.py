"""What rounds truly take in the policy's simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from specpipe.arrays import Array
from specpipe.core import ProposerName

Amount = TypeVar("Amount", float, Array)


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What a round truly takes, in seconds."""

    verify: Array
    """[points, 2]: tokens of the batch, seconds."""
    draft: Array
    kv: float
    draft_kv: float
    draft_prefill: float
    draft_forward: float
    """Of a prefill by the draft model, whatever its size."""
    rested: Array
    """[points, 2]: tokens of the batch, and what share of its seconds a round takes where the machine had a rest before
    it, as in a profile."""
    ngram: tuple[float, float]
    _known: dict[tuple[ProposerName, int], Array] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Machine:
        """As in a file of scenarios. Raises KeyError, TypeError or ValueError for what is none."""
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
        """One round of `rows` rows that are `context` tokens long in the mean."""
        return float(self._forwards(proposer, k, rows)[rows]) + self.token_s(proposer, k) * rows * context

    def seconds_of(self, proposer: ProposerName, k: int, rows: npt.NDArray[np.int64], context: Array) -> Array:
        """The same of several rounds."""
        forwards = self._forwards(proposer, k, int(rows.max()))
        return np.asarray(forwards[rows] + self.token_s(proposer, k) * rows * context)

    def profiled(self, proposer: ProposerName, k: int, rows: int, context: float) -> float:
        """One round as a worker times it before its first row."""
        share = _line(self.rested, np.array([rows * (k + 1)]))
        return self.seconds(proposer, k, rows, context) * float(share[0])

    def prefill_s(self, tokens: Amount, forwards: Amount) -> Amount:
        """So many tokens in so many forwards of the draft model."""
        return self.draft_prefill * tokens + self.draft_forward * forwards

    def token_s(self, proposer: ProposerName, k: int) -> float:
        """What each token that rows attend to adds to a round."""
        return self.kv + (k * self.draft_kv if proposer == "draft" else 0.0)

    def _forwards(self, proposer: ProposerName, k: int, most: int) -> Array:
        """Seconds of a round without attention, by rows: of `most`, too."""
        known = self._known.get((proposer, k))
        if known is None or len(known) <= most:
            every = np.arange(2 * most + 1)
            known = _line(self.verify, every * (k + 1))
            if k and proposer == "draft":  # the first step feeds two tokens a row
                known += _line(self.draft, 2 * every) + (k - 1) * _line(self.draft, every)
            elif k:
                known += self.ngram[0] + self.ngram[1] * every
            self._known[proposer, k] = known
        return known


def _line(points: Array, tokens: npt.NDArray[np.int64]) -> Array:
    """Beyond the last point as steep as from the one before."""
    slope = (points[-1, 1] - points[-2, 1]) / (points[-1, 0] - points[-2, 0])
    return np.asarray(np.interp(tokens, points[:, 0], points[:, 1]) + slope * np.maximum(0, tokens - points[-1, 0]))
