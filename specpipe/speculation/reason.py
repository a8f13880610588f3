"""A plan's reason, as a sentence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specpipe.core import Exploration, ProposerName
from specpipe.speculation.policy import Situation


def say(
    proposer: ProposerName,
    ks: npt.NDArray[np.int64],
    rate: npt.NDArray[np.float64],
    situation: Situation,
    explore: Exploration | None,
) -> str:
    """`ks` [N + 1] and `rate` [K + 1, N + 1] are those of the best proposer."""
    n = situation.running
    accepted = situation.acceptance[proposer].conditional(max(1, int(ks.max())))
    known = f"{proposer} accepted {' '.join(f'{c:.2f}' for c in accepted[:4])} where reached"
    plain = f"{rate[0, n]:,.0f} tok/s"
    if k := int(ks[n]):
        text = f"goodput: {proposer} K={k} at {n} rows, expects {rate[k, n]:,.0f} tok/s, plain {plain}; {known}"
    else:
        other = int(np.argmax(rate[1:, n])) + 1
        text = f"goodput: plain at {n} rows, {plain}; K={other} would give {rate[other, n]:,.0f}; {known}"
    if (ks[1:] != ks[1]).any():
        text += f"; K by rows {_ranges(ks)}"
    if explore is not None:
        what = f"{explore.proposer} K={explore.k}" if explore.k else "plain"
        text += f"; tries {what} in {explore.rounds} of {explore.every} rounds"
    return text


def _ranges(ks: npt.NDArray[np.int64]) -> str:
    """As in "1-4: 5, 5-16: 3"."""
    first = [1, *(np.flatnonzero(np.diff(ks[1:])) + 2).tolist()]
    last = [*(row - 1 for row in first[1:]), len(ks) - 1]
    return ", ".join(f"{a}-{b}: {ks[a]}" if b > a else f"{a}: {ks[a]}" for a, b in zip(first, last, strict=True))
