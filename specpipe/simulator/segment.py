"""Rounds of a simulated worker, one after the other, with the same K. m rounds, w rows that run in some of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specpipe.core import ProposerName
from specpipe.simulator.draws import Ints, Mask
from specpipe.simulator.paths import Paths


class Segment(NamedTuple):
    """What the rounds came to."""

    proposer: ProposerName
    """"none" where k is 0."""
    k: int
    running: Ints
    """[m] rows in each round."""
    context: npt.NDArray[np.float64]
    """[m] mean tokens of a row when a round began."""
    seconds: npt.NDArray[np.float64]
    """[m] of the rounds proper."""
    prefills: Ints
    """[m] tokens that the draft caught up before each."""
    paths: Paths
    late: Mask | None
    """[w] rows without a draft because the draft model was behind; None: no row."""
    ended: Ints
    """Rows that ended."""

    @property
    def rounds(self) -> int:
        return len(self.seconds)


def catch_up(behind: Ints, new: Mask, budget: int, *, all_alike: bool) -> tuple[int, Ints]:
    """behind [n]: tokens that the draft has not seen → those that it reads in a step, and what is left.

    The draft reads prompts of `new` rows [n] beside the target unless `all_alike`, and what it has not seen of other
    rows as far as `budget` allows, those nearest to drafting first. One token is no more than its first step reads
    anyway.
    """
    behind = np.where(behind == 1, 0, behind)
    nothing = np.zeros_like(behind)
    if (whole := int(behind.sum())) <= budget:
        return whole, nothing
    prompts = nothing if all_alike else np.where(new, behind, 0)
    behind -= prompts
    with_prompts = int(prompts.sum())
    order = np.argsort(behind, kind="stable")  # as the engine does
    ahead = np.cumsum(behind[order]) - behind[order]
    room = np.clip(max(0, budget - with_prompts) - ahead, 0, behind[order])
    behind[order] -= room
    return with_prompts + int(room.sum()), behind
