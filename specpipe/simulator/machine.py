"""True costs of rounds in the simulator: from a scenario file's tables, or as recorded on a GPU.

Shapes: P points of a table, V recorded visits: consecutive rounds of one shape.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specpipe.arrays import Array
from specpipe.core import ProposerName


class Machine(ABC):
    """True seconds of rounds on one kind of machine."""

    expert_share = 0.0
    """Share of the target's experts that one token is routed to; 0 for a dense model."""

    def __init__(self, *, draft_prefill: float, draft_forward: float, rested: Array, measured: Array | None) -> None:
        """Prices of a draft prefill in seconds: for each token, and fixed.

        rested [P, 2]: tokens of the batch, share of its seconds that a round takes in a start-up profile, without load;
        measured: recorded seconds over true seconds, in order; None where the noise is drawn.
        """
        self._draft_prefill, self._draft_forward, self._rested = draft_prefill, draft_forward, rested
        self.measured = measured
        self._known: dict[tuple[ProposerName, int], tuple[list[float], float]] = {}
        """`forwards` and `token_s` by proposer and K."""

    @abstractmethod
    def forwards(self, proposer: ProposerName, k: int, most: int) -> Array:
        """Returns [most + 1]: the seconds of a round without attention, by rows."""

    @abstractmethod
    def token_s(self, proposer: ProposerName, k: int) -> float:
        """Returns the seconds that each context token adds to a round."""

    def seconds(self, proposer: ProposerName, k: int, rows: int, context: float) -> float:
        """Returns the seconds of one round of `rows` rows with `context` tokens on average."""
        known = self._known.get((proposer, k))
        if known is None or len(known[0]) <= rows:
            known = self.forwards(proposer, k, 2 * rows).tolist(), self.token_s(proposer, k)
            self._known[proposer, k] = known
        forwards, token_s = known
        return forwards[rows] + token_s * rows * context

    def profiled(self, proposer: ProposerName, k: int, rows: int, context: float) -> float:
        """Returns the seconds of one round in a start-up profile."""
        share = _line(self._rested, np.array([rows * (k + 1)]))
        return self.seconds(proposer, k, rows, context) * float(share[0])

    def prefill_s(self, tokens: float, forwards: float) -> float:
        """Returns the seconds of draft prefills with these tokens and forwards in all."""
        return self._draft_prefill * tokens + self._draft_forward * forwards


def read_machine(values: Mapping[str, Any], folder: Path) -> Machine:
    """Reads a machine of a scenario file in `folder`. Raises KeyError, TypeError or ValueError for an invalid one."""
    if "recorded" in values:
        return RecordedMachine(json.loads((folder / str(values["recorded"])).read_bytes()))
    return TableMachine(values)


class TableMachine(Machine):
    """Machine of a scenario file's tables (scenarios.yaml explains them)."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(
            draft_prefill=float(values["draft_prefill"]),
            draft_forward=float(values["draft_forward"]),
            rested=np.array(values.get("rested", [[1, 1], [2, 1]]), dtype=float),
            measured=None,
        )
        self._verify, self._draft = (np.array(values[name], dtype=float) for name in ("verify", "draft"))
        self.expert_share = float(values.get("expert_share", 0.0))
        self._kv, self._draft_kv = float(values["kv"]), float(values["draft_kv"])
        self._ngram = float(values["ngram"][0]), float(values["ngram"][1])

    def forwards(self, proposer: ProposerName, k: int, most: int) -> Array:
        """Returns [most + 1]: the seconds of a round without attention, by rows."""
        rows = np.arange(most + 1)
        seconds = _line(self._verify, rows * (k + 1))
        if k and proposer == "draft":  # the first step feeds two tokens a row
            seconds += _line(self._draft, 2 * rows) + (k - 1) * _line(self._draft, rows)
        elif k:
            seconds += self._ngram[0] + self._ngram[1] * rows
        return seconds

    def token_s(self, proposer: ProposerName, k: int) -> float:
        """Returns the seconds that each context token adds to a round."""
        return self._kv + (k * self._draft_kv if proposer == "draft" else 0.0)


class RecordedMachine(Machine):
    """Machine of rounds recorded on a GPU: medians between the recorded shapes, and residuals in their order.

    `visits` of a recording: k, rows, context of the first and the last round, and `us`, the microseconds of each round;
    `draft_prefills`: tokens and microseconds.
    """

    def __init__(self, recording: Mapping[str, Any]) -> None:
        tokens, us = np.array(recording["draft_prefills"], dtype=float).T
        slope, fixed = np.polyfit(tokens, 1e-6 * us, 1, w=1 / us)  # errors are relative
        self._points: dict[int, Array] = {}
        """By K: [P, 2] rows, seconds of a round without attention."""
        self._token_s: dict[int, float] = {}
        for k in sorted({visit["k"] for visit in recording["visits"]}):
            self._fit(k, [visit for visit in recording["visits"] if visit["k"] == k])
        super().__init__(
            draft_prefill=max(0.0, slope),
            draft_forward=max(0.0, fixed),
            rested=np.array([[1.0, 1.0], [2.0, 1.0]]),
            measured=None,
        )
        self.measured = np.concatenate([self._residuals(visit) for visit in recording["visits"]])

    def _fit(self, k: int, visits: list[Mapping[str, Any]]) -> None:
        """Fits forwards[rows] + token_s * rows * context to the medians of the visits with one K."""
        rows = sorted({visit["rows"] for visit in visits})
        terms, median = np.zeros((len(visits), len(rows) + 1)), np.zeros(len(visits))
        for i, visit in enumerate(visits):
            median[i] = 1e-6 * float(np.median(visit["us"]))
            terms[i, rows.index(visit["rows"])] = 1.0
            terms[i, -1] = visit["rows"] * float(np.mean(visit["context"]))
        found = np.linalg.lstsq(terms / median[:, None], np.ones(len(visits)), rcond=None)[0]
        self._points[k], self._token_s[k] = np.array([rows, found[:-1]]).T, max(0.0, float(found[-1]))

    def _residuals(self, visit: Mapping[str, Any]) -> Array:
        first, last = visit["context"]
        context = np.linspace(first, last, len(visit["us"]))
        who: ProposerName = "draft" if visit["k"] else "none"
        true = [self.seconds(who, visit["k"], visit["rows"], float(tokens)) for tokens in context]
        return np.asarray(1e-6 * np.array(visit["us"], dtype=float) / true)

    def forwards(self, proposer: ProposerName, k: int, most: int) -> Array:
        """Returns [most + 1]: the seconds of a round without attention, by rows."""
        rows = np.arange(most + 1)
        low, high, share = self._neighbours(k)
        return (1 - share) * _line(self._points[low], rows) + share * _line(self._points[high], rows)

    def token_s(self, proposer: ProposerName, k: int) -> float:
        """Returns the seconds that each context token adds to a round."""
        low, high, share = self._neighbours(k)
        return (1 - share) * self._token_s[low] + share * self._token_s[high]

    def _neighbours(self, k: int) -> tuple[int, int, float]:
        """Returns the recorded K below and above, and the weight of the one above."""
        low, high = max(k_ for k_ in self._points if k_ <= k), min(k_ for k_ in self._points if k_ >= k)
        return low, high, (k - low) / (high - low) if high > low else 0.0


def _line(points: Array, tokens: npt.NDArray[np.int64]) -> Array:
    """Interpolates linearly; beyond the last point with the slope before it."""
    slope = (points[-1, 1] - points[-2, 1]) / (points[-1, 0] - points[-2, 0])
    return np.asarray(np.interp(tokens, points[:, 0], points[:, 1]) + slope * np.maximum(0, tokens - points[-1, 0]))
