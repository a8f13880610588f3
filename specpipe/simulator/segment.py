"""Segments: consecutive rounds of a simulated worker with one K.

Shapes: m rounds, w rows that run in some of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specpipe.core import ProposerName
from specpipe.simulator.draws import Ints, Mask
from specpipe.simulator.paths import Paths


class Segment(NamedTuple):
    """Results of the rounds."""

    proposer: ProposerName
    """"none" where k is 0."""
    k: int
    running: Ints
    """[m] running rows."""
    context: npt.NDArray[np.float64]
    """[m] mean tokens of a row at the start of each round."""
    seconds: npt.NDArray[np.float64]
    """[m] seconds of the rounds, without draft prefills."""
    prefills: Ints
    """[m] tokens that the draft model prefilled before each round."""
    paths: Paths
    """Positions of the rows."""
    lacks_draft: Mask | None
    """[w] rows without a draft because the draft model was behind; None if there is none."""
    ended: Ints
    """Numbers of the rows that ended."""

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.seconds)


def catch_up(behind: Ints, new: Mask, budget: int, *, all_alike: bool) -> tuple[int, Ints]:
    """Returns the tokens that the draft model prefills in a step, and the tokens [n] that are still missing.

    behind [n]: missing tokens; new [n]: rows whose prompts it reads beside the target, unless `all_alike`. Of other
    rows it reads up to `budget` tokens, those with fewest missing first. A row that lacks one token needs no prefill:
    the first draft step reads it.
    """
    behind = np.where(behind == 1, 0, behind)
    nothing = np.zeros_like(behind)
    if (missing := int(behind.sum())) <= budget:
        return missing, nothing
    prompts = nothing if all_alike else np.where(new, behind, 0)
    behind -= prompts
    with_prompts = int(prompts.sum())
    order = np.argsort(behind, kind="stable")  # as the engine does
    ahead = np.cumsum(behind[order]) - behind[order]
    taken = np.clip(max(0, budget - with_prompts) - ahead, 0, behind[order])
    behind[order] -= taken
    return with_prompts + int(taken.sum()), behind
