"""Inputs of a policy: the worker's state and the estimates from past rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specpipe.core import EXPECTED_OUTPUT_TOKENS, ProposerName
from specpipe.speculation.estimates.acceptance import Acceptance
from specpipe.speculation.estimates.round_costs import RoundCosts


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyInputs:
    """State of a worker when a plan is made: for each shard by the driver, and every few rounds in the worker.

    All values come from past rounds. A choice of K that depended on the token just drawn would bias the output.
    """

    slots: int
    """Slots of the worker: the most rows that run at once."""
    queue_depth: float
    """Rows running + rows waiting in the worker + rows not yet handed out over live workers."""
    acceptance: Mapping[ProposerName, Acceptance] = field(default_factory=dict)
    """Acceptance of every proposer of the worker, without "none"."""
    costs: RoundCosts = field(default_factory=RoundCosts)
    """Round costs of this worker; false before any measurement."""
    occupancy: int = 0
    """Rows of the latest round; 0 before any."""
    context: float = 256.0
    """Mean tokens of a running row."""
    input_tokens: float = 256.0
    """Mean prompt tokens of a row."""
    output_tokens: float = EXPECTED_OUTPUT_TOKENS
    """Mean generated tokens of a row."""
    left_tokens: float = EXPECTED_OUTPUT_TOKENS / 2
    """Tokens that a running row is still expected to generate: half of those generated lately for each row that ended.
    They are few where a queue drains: then the rows that run are near their end."""
    prefill_s: float = 0.0
    """Seconds of a draft prefill per token; 0 before any."""
    behind: float = 0.0
    """Mean tokens of a running row that are missing in the draft model's KV."""

    @property
    def running(self) -> int:
        """Running rows: those of the latest round, or all slots before it, limited by the rows that are left."""
        return max(1, min(self.occupancy or self.slots, self.slots, round(self.queue_depth)))

    @property
    def missing_per_token(self) -> float:
        """Tokens that the draft model prefills for each generated token if it is in use from now on."""
        waiting = max(0.0, self.queue_depth - self.running)
        left = self.running * self.left_tokens + waiting * self.output_tokens
        return (self.running * self.behind + waiting * self.input_tokens) / max(1.0, left)
