"""What was measured of rounds, in cells of a cost table."""

from __future__ import annotations

import math
from typing import NamedTuple

from specpipe.core import ProposerName

MEMORY = 64.0
"""Rounds that the past of a cell counts for at most: drift is followed within about as many."""
SHORT = 64.0
"""Tokens of context that make no difference."""
_OCTAVE = 4  # cells to a doubling of the rows


class Key(NamedTuple):
    proposer: ProposerName
    k: int
    rows: int
    """Quarter octave."""
    context: int
    """Octave."""


class Cell(NamedTuple):
    running: float
    context: float
    rounds: float
    seconds: float
    """Of one round."""


def key_of(proposer: ProposerName, k: int, running: float, context: float) -> Key:
    rows, octave = round(_OCTAVE * math.log2(running)), round(math.log2(context + SHORT))
    return Key(proposer if k else "none", k, rows, octave)


def mean(old: Cell, new: Cell) -> Cell:
    past = min(old.rounds, MEMORY)
    share = new.rounds / (past + new.rounds)
    return Cell(
        running=old.running + share * (new.running - old.running),
        context=old.context + share * (new.context - old.context),
        rounds=past + new.rounds,
        seconds=old.seconds + share * (new.seconds - old.seconds),
    )
