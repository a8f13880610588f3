"""From evidence to the inputs that a policy sees. The driver, the workers and the simulator all use this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from specpipe.core import EXPECTED_OUTPUT_TOKENS, PREFILL_BUDGET, Evidence, ProposerName, SpeculationPlan
from specpipe.speculation.acceptance_estimate import AcceptanceEstimate
from specpipe.speculation.cost_table import CostTable
from specpipe.speculation.policy import PolicyInputs

DRIVER_HALF_LIFE = 4096.0
WORKER_HALF_LIFE = 16.0
"""Rounds after which acceptance counts half: a worker follows its rows, the driver averages over shards."""
ROWS = 32
"""With more of them at once, a round says more, and fewer rounds will do."""
LEAST_DRAFTS = 64.0
"""Drafts that it takes at least for the past to count half: a single row needs longer to show anything."""
STALE = 1.0
"""Half-lives after which what a proposer that does not run has shown counts half: it may be worth another try."""
OF_AGE = 1.5
"""Tokens that a row comes to, over those that it has where rows of all ages up to the longest run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Priors:
    """What is known so far: small, picklable, sent to workers with every shard."""

    acceptance: Mapping[ProposerName, AcceptanceEstimate] = field(default_factory=dict)
    costs: CostTable = field(default_factory=CostTable)
    running: int = 0
    """Rows of the latest round; 0: unknown, as below."""
    context: float = 0.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    rounds: int = 0
    """Seen so far."""
    rows: int = 0
    """That have ended so far."""
    behind: float | None = None
    """Mean tokens of a running row that the draft model has not seen; None before any row: new ones lack all."""
    left: float | None = None
    """Mean tokens that a running row may still generate; None: as many as rows do."""


class Observer:
    """Sums evidence, decayed. One owner, no lock."""

    def __init__(
        self,
        *,
        slots: int,
        proposers: Sequence[ProposerName],
        half_life: float = DRIVER_HALF_LIFE,
        output_tokens: float = EXPECTED_OUTPUT_TOKENS,
        prefill_budget: int = PREFILL_BUDGET,
        priors: Priors | None = None,
    ) -> None:
        """`proposers`: those that the worker can run, "none" aside. `half_life`: rounds after which acceptance counts
        half. `output_tokens`: expected of a row before one has ended. `priors`: what is known already."""
        self._slots, self._half_life, self._prefill_budget = slots, half_life, prefill_budget
        self._expected_output = output_tokens
        self.priors = Priors(acceptance={name: AcceptanceEstimate() for name in proposers if name != "none"})
        if priors is not None:
            self.use_priors(priors)

    def see(self, evidence: Evidence) -> None:
        """Take in what rounds and rows have shown since the last time."""
        old = self.priors
        costs = old.costs.with_points(evidence.costs) if evidence.costs else old.costs
        if evidence.draft_prefills:
            costs = costs.with_prefills(evidence.draft_prefills)
        rounds = sum(point.rounds for point in evidence.costs)
        context = sum(point.context * point.rounds for point in evidence.costs) / rounds if rounds else old.context
        self.priors = Priors(
            acceptance={name: self._seen(name, known, evidence) for name, known in old.acceptance.items()},
            costs=costs,
            running=evidence.running or old.running,
            context=context,
            input_tokens=_last(old.input_tokens, evidence.input_tokens, evidence.rows),
            output_tokens=_last(old.output_tokens, evidence.output_tokens, evidence.rows),
            rounds=old.rounds + rounds,
            rows=old.rows + evidence.rows,
            behind=evidence.draft_behind if evidence.running else old.behind,
            left=evidence.left if evidence.running else old.left,
        )

    def _seen(self, name: ProposerName, known: AcceptanceEstimate, evidence: Evidence) -> AcceptanceEstimate:
        if name not in evidence.verified:
            idle = sum(point.rounds for point in evidence.costs)
            return known.discounted(0.5 ** (idle / (STALE * self._half_life))) if idle else known
        counts = evidence.verified[name]
        halvings = max(evidence.rounds.get(name, 0) / self._half_life, counts.drafts / (ROWS * self._half_life))
        keep = 0.5 ** min(halvings, counts.drafts / LEAST_DRAFTS)
        # A row without a draft of the draft model is one that is still being caught up: that passes.
        row_rounds = counts.drafts if name == "draft" else evidence.row_rounds.get(name, 0)
        return known.with_counts(counts, row_rounds=row_rounds, keep=keep)

    def use_priors(self, priors: Priors) -> None:
        """What others know: costs and acceptance count where this one has seen little of its own."""
        own = self.priors
        acceptance = {
            name: _leaning(known, priors.acceptance[name].as_prior()) if name in priors.acceptance else known
            for name, known in own.acceptance.items()
        }
        self.priors = Priors(
            acceptance=acceptance,
            costs=own.costs or priors.costs,
            running=own.running,
            context=own.context or priors.context,
            input_tokens=own.input_tokens or priors.input_tokens,
            output_tokens=own.output_tokens or priors.output_tokens,
            rounds=own.rounds,
            rows=own.rows,
            behind=own.behind,
            left=own.left,
        )

    def admit_rows(self, *, queue_depth: float) -> float:
        """New rows are about to take the free slots: what others have shown says less of them. → their share."""
        known, now = self.priors, self.policy_inputs(queue_depth=queue_depth, plan=None)
        full = max(known.running, min(self._slots, round(queue_depth)))
        if not full:
            return 0.0
        new, prompt = 1 - known.running / full, now.input_tokens
        self.priors = replace(
            known,
            acceptance={
                name: one.discounted(1 - new) if one.row_rounds else one for name, one in known.acceptance.items()
            },
            running=full,
            context=now.context + new * (prompt + now.output_tokens / 2 - now.context),
            behind=now.behind + new * (prompt - now.behind),
            left=None if new else known.left,
        )
        return new

    def policy_inputs(self, *, queue_depth: float, plan: SpeculationPlan | None) -> PolicyInputs:
        """`plan`: the one in force."""
        known = self.priors
        output = known.output_tokens or self._expected_output
        prompt = known.input_tokens or output
        if 0 < known.rows < self._slots and known.context:  # the short rows end first; the others say how long they are
            output = max(output, OF_AGE * (known.context - prompt))
        context, behind = known.context or prompt + output / 2, prompt if known.behind is None else known.behind
        return PolicyInputs(
            slots=self._slots,
            queue_depth=queue_depth,
            acceptance=known.acceptance,
            costs=known.costs or None,
            occupancy=known.running,
            context=context,
            behind=behind,
            left=output if known.left is None else known.left,
            rounds=known.rounds,
            prefill_budget=self._prefill_budget,
            input_tokens=prompt,
            output_tokens=output,
            plan=plan,
        )


def _leaning(known: AcceptanceEstimate, on: AcceptanceEstimate) -> AcceptanceEstimate:
    return replace(known, prior=on.prior, prior_coverage=on.prior_coverage)


def _last(old: float, total: float, count: int) -> float:
    """Mean of the new, leaning half on the old."""
    if not count:
        return old
    return total / count if not old else 0.5 * (old + total / count)
