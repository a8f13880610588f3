"""Reports of one engine step: in all, and for each shard that took part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specpipe.core.acceptance_counts import AcceptanceCounts
from specpipe.core.completion import Completion
from specpipe.core.literals import DraftSource, Phase, ProposerName


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardRound:
    """Work that one engine step did for the rows of one shard."""

    rows: int = 0
    """Rows of this shard that took part in the round."""
    plain_rows: int = 0
    """Those of them that have no drafts whatever K is (`SpeculationPlan.new_rows_limit`)."""
    prefill_tokens: int = 0
    """Tokens that the target prefilled, those of preempted rows a second time."""
    scored_tokens: int = 0
    """Tokens of continuations whose log-probabilities were read."""
    preemptions: int = 0
    """Rows that lost their slot because KV memory ran out. They are computed again later, with the same tokens."""
    uncompiled_forwards: int = 0
    """Forwards since the last report in which no compiled code fitted a layer; reported for one shard of a step."""
    verified: AcceptanceCounts = field(default_factory=AcceptanceCounts)
    """Acceptance of all draft tokens that the target verified. The policy learns from these."""
    by_source: Mapping[DraftSource, AcceptanceCounts] = field(default_factory=dict)
    """`verified` by the origin of the drafts; sources without any are absent."""
    emitted_tokens: int = 0
    """Tokens that became output."""
    emitted_accepted_tokens: int = 0
    """Accepted draft tokens among the emitted ones."""
    gaps_s: tuple[float, ...] = ()
    """Seconds since the previous emission (inter-token latency), for each row that emitted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """Work of one engine step: at most one prefill chunk, one round, and the completions read in it."""

    k: int
    running: int
    """Rows that took part in the round (occupancy)."""
    waiting: int
    """Submitted rows without a slot, preempted ones included."""
    slots: int
    seconds: float
    phases: Mapping[Phase, float] = field(default_factory=dict)
    """Seconds by phase of the work whose results the step read; `host` is the rest of `seconds`."""
    shards: Mapping[int, ShardRound] = field(default_factory=dict)
    """By shard index."""
    completions: tuple[Completion, ...] = ()
    proposer: ProposerName = "none"
    """Proposer of the round; "none" where k is 0."""
    context: float = 0.0
    """Mean KV of a row that the round's attention read, in tokens; what rows read together counts once."""
    round_s: float = 0.0
    """Seconds of the round on the device, waits for the host included; 0 where a graph was captured meanwhile, which
    makes the time useless as a measurement."""
    draft_prefill_tokens: int = 0
    """Tokens that the draft model prefilled, catch-up included."""
    draft_prefill_s: float = 0.0
    """Seconds of those prefills."""
    draft_behind: float = 0.0
    """Mean number of tokens by which the draft model's KV is behind the target's, over the rows of the round; a row
    that has no drafts whatever K is counts as 0."""

    @property
    def speculating(self) -> int:
        """Rows of the round that may have drafts, with or without one in this round."""
        return self.running - sum(part.plain_rows for part in self.shards.values())
