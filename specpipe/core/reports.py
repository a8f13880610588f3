"""What an engine says of a step, and a worker of a shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specpipe.core.acceptance import AcceptanceCounts
from specpipe.core.evidence import Evidence
from specpipe.core.names import Phase, ProposerName
from specpipe.core.rows import Completion


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardRound:
    """What one engine step did for the rows of one shard."""

    rows: int = 0
    """Rows of this shard that took part in the round."""
    prefill_tokens: int = 0
    """Tokens fed to the target ahead of rounds, those of preempted rows once more."""
    preemptions: int = 0
    """Rows that lost their slot because KV memory ran out; they are recomputed later, with the same tokens."""
    verified: AcceptanceCounts = field(default_factory=AcceptanceCounts)
    """All that the target verified: what the policy learns from."""
    emitted_tokens: int = 0
    """Tokens that became output."""
    emitted_accepted_tokens: int = 0
    """Accepted draft tokens among them."""
    gaps_s: tuple[float, ...] = ()
    """Per row that emitted: seconds since its previous emission (inter-token latency)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """What one engine step did: at most one prefill chunk, one round and the completions that fell out."""

    k: int
    running: int
    """Rows that took part in the round (occupancy)."""
    waiting: int
    """Rows submitted that hold no slot, or no longer."""
    slots: int
    seconds: float
    phases: Mapping[Phase, float] = field(default_factory=dict)
    """Seconds by phase of the work that the step read; `host` is what is left of `seconds`."""
    shards: Mapping[int, ShardRound] = field(default_factory=dict)
    completions: tuple[Completion, ...] = ()
    proposer: ProposerName = "none"
    """Who drafted in the round; "none" where k is 0."""
    context: float = 0.0
    """Mean tokens of a row when the round began."""
    round_s: float = 0.0
    """What the round took on the device, waiting for the host included; 0 where that says nothing of such rounds,
    because a graph was captured meanwhile."""
    draft_prefill_tokens: int = 0
    """Tokens that the draft model prefilled or caught up with."""
    draft_prefill_s: float = 0.0
    draft_behind: float = 0.0
    """Mean tokens of a row of the round that the draft model had not seen."""
    left: float = 0.0
    """Mean tokens that a row of the round may still generate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardReport:
    """The small message that goes back to the driver once a shard's part is published."""

    shard: int
    attempt: int
    worker: str
    rows: int
    failed_rows: int
    part: str
    telemetry: Mapping[str, object]
    """The flat record that also stands in the part's footer (telemetry schema, docs/telemetry.md)."""
    verified: AcceptanceCounts = field(default_factory=AcceptanceCounts)
    evidence: Evidence = field(default_factory=Evidence)
    """For the policy, which shares it with all workers."""
