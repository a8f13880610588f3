"""When to turn the draft model on: catching up is paid once, and being off lets rows fall behind.

Shapes: N slots; arrays are indexed by rows running, 0 … N.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from specpipe.arrays import Array
from specpipe.speculation.policy import PolicyInputs
from specpipe.speculation.prefill_cost import PrefillPrice

HORIZON = 256.0
"""Rounds for which what was seen is taken to hold. What the draft saves later pays for no catching up: acceptance
moves, not least because rows that accept little stay longest."""

PREMIUM = 1.5
"""Times what catching up takes that it has to save: it is paid at once, and what it saves is only expected."""


class Activation(NamedTuple):
    """Where the draft model is on."""

    fewest: int
    """Rows; above `most` where it is off to the end."""
    most: int
    seconds: float
    """Of catching up."""


def plan_activation(saved: Array, ahead: Array, inputs: PolicyInputs, prefill: PrefillPrice) -> Activation:
    """Between which occupancies, the present one or below, the draft model saves most time, catching up deducted.

    saved [N + 1]: seconds a token by drafting, against plain decoding; ahead [N + 1]: tokens still to be generated.
    """
    n = inputs.running
    rows, ahead = np.arange(n + 1), ahead[: n + 1].copy()
    if saved[n] > 0:  # a loss would go on until the tail comes
        ahead[n] = min(ahead[n], HORIZON * n)
    lacking = rows * _behind(ahead, inputs)
    catch_up = PREMIUM * prefill.seconds(lacking, np.ceil(lacking / inputs.prefill_budget))
    total = np.concatenate([[0.0], np.cumsum(saved[: n + 1] * ahead)])  # [r]: by drafting below r rows
    least = np.minimum.accumulate(total)[:-1]
    gain = total[1:] - least - catch_up
    most = int(np.argmax(gain))
    if gain[most] <= 0:
        return Activation(1, 0, 0.0)
    return Activation(max(1, int(np.argmin(total[: most + 1]))), most, float(catch_up[most]))


def _behind(ahead: Array, inputs: PolicyInputs) -> Array:
    """→ [n + 1]: tokens that a row will be behind where as many run, if the draft is off until then."""
    by_row = ahead / np.maximum(np.arange(len(ahead)), 1)
    until = np.cumsum(by_row[::-1])[::-1] - by_row
    longest = max(inputs.context, inputs.behind, inputs.input_tokens + inputs.output_tokens)
    return np.minimum(longest, inputs.behind + until)
