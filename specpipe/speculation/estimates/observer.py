"""Observer: turns evidence into the inputs of a policy, in driver, workers and simulator alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from specpipe.core import EXPECTED_OUTPUT_TOKENS, PREFILL_BUDGET, Evidence, ProposerName, SpeculationPlan
from specpipe.speculation.estimates.acceptance_estimate import AcceptanceEstimate
from specpipe.speculation.estimates.cost_table import CostTable
from specpipe.speculation.estimates.policy_inputs import PolicyInputs

DRIVER_HALF_LIFE = 4096.0
WORKER_HALF_LIFE = 16.0
"""Half-lives of acceptance counts, in rounds: a worker follows its rows, the driver averages over shards."""
WIDE_ROWS = 32
"""Rows of a round above which the half-life shrinks in proportion: such rounds carry more evidence."""
MIN_HALF_LIFE_DRAFTS = 64.0
"""Smallest half-life in drafts: a single row adds evidence slowly."""
IDLE_HALF_LIVES = 1.0
"""Half-lives after which the evidence of an idle proposer has half its weight: it becomes worth another trial."""
FINAL_LENGTH_RATIO = 1.5
"""Ratio of final to current mean length when row ages are uniform."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Priors:
    """Estimates so far. Small and picklable: the driver sends them with every shard, and workers use them as priors."""

    acceptance: Mapping[ProposerName, AcceptanceEstimate] = field(default_factory=dict)
    costs: CostTable = field(default_factory=CostTable)
    running: int = 0
    """Rows of the latest round; 0 if unknown, as for the fields below."""
    context: float = 0.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    rounds: int = 0
    """Rounds so far."""
    rows: int = 0
    """Rows that ended so far."""
    behind: float | None = None
    """Mean tokens of a running row that are missing in the draft model's KV; None before any row."""
    left: float | None = None
    """Mean tokens that a running row may still generate; None if unknown: the mean output of a row is used."""


class Observer:
    """Decayed sums of evidence. One owner, no lock."""

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
        """proposers: those of the worker, without "none". half_life: of acceptance counts, in rounds. output_tokens:
        expected length of a row before any has ended. priors: estimates to start from."""
        self._slots, self._half_life, self._prefill_budget = slots, half_life, prefill_budget
        self._expected_output = output_tokens
        self.priors = Priors(acceptance={name: AcceptanceEstimate() for name in proposers if name != "none"})
        if priors is not None:
            self.use_priors(priors)

    def add(self, evidence: Evidence) -> None:
        """Adds evidence of rounds and rows."""
        old = self.priors
        costs = old.costs.with_points(evidence.costs) if evidence.costs else old.costs
        if evidence.draft_prefills:
            costs = costs.with_prefills(evidence.draft_prefills)
        rounds = sum(point.rounds for point in evidence.costs)
        context = sum(point.context * point.rounds for point in evidence.costs) / rounds if rounds else old.context
        self.priors = Priors(
            acceptance={name: self._updated(name, known, evidence) for name, known in old.acceptance.items()},
            costs=costs,
            running=evidence.running or old.running,
            context=context,
            input_tokens=_mean_with_new(old.input_tokens, evidence.input_tokens, evidence.rows),
            output_tokens=_mean_with_new(old.output_tokens, evidence.output_tokens, evidence.rows),
            rounds=old.rounds + rounds,
            rows=old.rows + evidence.rows,
            behind=evidence.draft_behind if evidence.running else old.behind,
            left=evidence.left if evidence.running else old.left,
        )

    def _updated(self, name: ProposerName, known: AcceptanceEstimate, evidence: Evidence) -> AcceptanceEstimate:
        """Returns a proposer's acceptance with this evidence: its counts, or decay while it was idle."""
        if name not in evidence.verified:
            idle = sum(point.rounds for point in evidence.costs)
            return known.discounted(0.5 ** (idle / (IDLE_HALF_LIVES * self._half_life))) if idle else known
        counts = evidence.verified[name]
        halvings = max(evidence.rounds.get(name, 0) / self._half_life, counts.drafts / (WIDE_ROWS * self._half_life))
        keep = 0.5 ** min(halvings, counts.drafts / MIN_HALF_LIFE_DRAFTS)
        # With the draft model, a row lacks a draft only while it is being caught up, which is no lack of coverage.
        row_rounds = counts.drafts if name == "draft" else evidence.row_rounds.get(name, 0)
        return known.with_counts(counts, row_rounds=row_rounds, keep=keep)

    def use_priors(self, priors: Priors) -> None:
        """Uses these estimates as priors: they count where this observer has little evidence of its own."""
        own = self.priors
        acceptance = {
            name: _with_prior(known, priors.acceptance[name].as_prior()) if name in priors.acceptance else known
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
        """Discounts the evidence for rows that are about to take the free slots. Returns their share of all rows."""
        known, now = self.priors, self.policy_inputs(queue_depth=queue_depth, plan=None)
        admitted = max(known.running, min(self._slots, round(queue_depth)))
        if not admitted:
            return 0.0
        new, prompt = 1 - known.running / admitted, now.input_tokens
        self.priors = replace(
            known,
            acceptance={
                name: one.discounted(1 - new) if one.row_rounds else one for name, one in known.acceptance.items()
            },
            running=admitted,
            context=now.context + new * (prompt + now.output_tokens / 2 - now.context),
            behind=now.behind + new * (prompt - now.behind),
            left=None if new else known.left,
        )
        return new

    def policy_inputs(self, *, queue_depth: float, plan: SpeculationPlan | None) -> PolicyInputs:
        """Returns the inputs for a plan. plan: the one in force."""
        known = self.priors
        output = known.output_tokens or self._expected_output
        prompt = known.input_tokens or output
        if 0 < known.rows < self._slots and known.context:  # short rows end first, so running rows correct the mean
            output = max(output, FINAL_LENGTH_RATIO * (known.context - prompt))
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


def _with_prior(known: AcceptanceEstimate, source: AcceptanceEstimate) -> AcceptanceEstimate:
    """Returns the estimate with the prior of `source`."""
    return replace(known, prior=source.prior, prior_coverage=source.prior_coverage)


def _mean_with_new(old: float, total: float, count: int) -> float:
    """Returns the mean of the old value and of total / count; the old value if count is 0."""
    if not count:
        return old
    return total / count if not old else 0.5 * (old + total / count)
