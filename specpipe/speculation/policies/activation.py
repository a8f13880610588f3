"""Activation of the draft model: catching up costs a prefill once, and while the model is off rows fall behind.

Shapes: N slots; arrays are indexed by rows running, 0 … N.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specpipe.arrays import Array
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.estimates.prefill_cost import PrefillPrice

HORIZON = 256.0
"""Rounds whose expected savings may pay for catching up. Acceptance drifts: rows that accept little stay longest."""

PREMIUM = 1.5
"""Required ratio of expected savings to the cost of catching up. The cost is certain, the savings are not."""


class Activation(NamedTuple):
    """Occupancies at which the draft model is active."""

    fewest: int
    """Smallest such number of running rows; above `most` if the model stays off."""
    most: int
    """Largest such number of running rows."""
    seconds: float
    """Expected cost of catching up, with the premium."""


def plan_activation(saved: Array, ahead: Array, inputs: PolicyInputs, prefill: PrefillPrice) -> Activation:
    """Returns the occupancies, up to the present one, between which the draft model saves most time net of catching up.

    saved [N + 1]: seconds saved by drafting, per token; ahead [N + 1]: tokens still to be generated at each occupancy.
    """
    n = inputs.running
    rows, ahead = np.arange(n + 1), ahead[: n + 1].copy()
    if saved[n] > 0:  # a loss counts in full: it would last until the tail
        ahead[n] = min(ahead[n], HORIZON * n)
    lacking = rows * _behind(ahead, inputs)
    catch_up = PREMIUM * prefill.seconds(lacking, np.ceil(lacking / inputs.prefill_budget))
    total = np.concatenate([[0.0], np.cumsum(saved[: n + 1] * ahead)])  # [r]: saved with fewer than r rows
    least = np.minimum.accumulate(total)[:-1]
    gain = total[1:] - least - catch_up
    most = int(np.argmax(gain))
    if gain[most] <= 0:
        return Activation(1, 0, 0.0)
    return Activation(max(1, int(np.argmin(total[: most + 1]))), most, float(catch_up[most]))


def _behind(ahead: Array, inputs: PolicyInputs) -> Array:
    """Returns [n + 1]: tokens that a row lacks in the draft's KV at each occupancy if the draft is off until then."""
    by_row = ahead / np.maximum(np.arange(len(ahead)), 1)
    until = np.cumsum(by_row[::-1])[::-1] - by_row
    longest = max(inputs.context, inputs.behind, inputs.input_tokens + inputs.output_tokens)
    return np.minimum(longest, inputs.behind + until)
