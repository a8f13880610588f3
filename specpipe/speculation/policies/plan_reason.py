"""The reason of a plan, as a sentence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specpipe.core import Exploration
from specpipe.speculation.policies.throughput import ProposerChoice, RemainingWork


def plan_reason(best: ProposerChoice, work: RemainingWork, explore: Exploration | None) -> str:
    """Returns the reason of the goodput policy's plan: throughput with and without drafts, acceptance, K by rows."""
    proposer, ks, n = best.proposer, best.ks, work.n
    k, rate = int(ks[n]), (1 / best.token_s[:, n]).tolist()
    accepted = work.inputs.acceptance[proposer].conditional(len(rate) - 1)[: min(4, max(1, int(ks.max())))]
    known = f"{proposer} accepted {' '.join(f'{c:.2f}' for c in accepted)} where reached"
    plain = f"{rate[0]:,.0f} tok/s"
    if k:
        text = f"goodput: {proposer} K={k} at {n} rows, expects {rate[k]:,.0f} tok/s, plain {plain}; {known}"
    else:
        other = max(range(1, len(rate)), key=rate.__getitem__)
        text = f"goodput: plain at {n} rows, {plain}; K={other} would give {rate[other]:,.0f}; {known}"
    if (ks[1:] != ks[1]).any():
        text += f"; K by rows {_ranges(ks)}"
    if explore is not None:
        what = f"{explore.proposer} K={explore.k}" if explore.k else "plain"
        text += f"; tries {what} in {explore.rounds} of {explore.every} rounds"
    return text


def _ranges(ks: npt.NDArray[np.int64]) -> str:
    """Formats K by rows as "1-4: 5, 5-16: 3"."""
    first = [1, *(np.flatnonzero(np.diff(ks[1:])) + 2).tolist()]
    last = [*(row - 1 for row in first[1:]), len(ks) - 1]
    return ", ".join(f"{a}-{b}: {ks[a]}" if b > a else f"{a}: {ks[a]}" for a, b in zip(first, last, strict=True))
