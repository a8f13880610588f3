"""Acceptance counts of a round, from what its rows proposed and accepted. Shapes: B rows, K positions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specpipe.core import AcceptanceCounts

Ints = NDArray[np.integer[Any]]


def count_acceptance(proposed: Ints, accepted: Ints) -> AcceptanceCounts:
    """proposed, accepted [B]: K_i and the accepted drafts of each row that was verified."""
    drafted = proposed > 0
    k = int(proposed.max(initial=0))
    positions = np.arange(k)
    offered = proposed[:, None] > positions
    reached = offered & (accepted[:, None] >= positions)
    kept = offered & (accepted[:, None] > positions)
    return AcceptanceCounts(
        drafts=int(drafted.sum()),
        draft_tokens=int(proposed.sum()),
        accepted_tokens=int(accepted.sum()),
        recovered_tokens=int((drafted & (accepted < proposed)).sum()),
        bonus_tokens=int((drafted & (accepted == proposed)).sum()),
        proposed_per_position=tuple(offered.sum(0).tolist()),
        reached_per_position=tuple(reached.sum(0).tolist()),
        accepted_per_position=tuple(kept.sum(0).tolist()),
    )
