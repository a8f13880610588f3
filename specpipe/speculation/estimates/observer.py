"""Observer: turns evidence into the inputs of a policy, in driver, workers and simulator alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from specpipe.core import EXPECTED_OUTPUT_TOKENS, Evidence, ProposerName
from specpipe.speculation.estimates.acceptance import MIN_WEIGHT, Acceptance
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.estimates.round_costs import RoundCosts

WORKER_HALF_LIFE = 16.0
"""Rounds of 8 rows or more after which a worker's acceptance counts have half their weight: it follows its rows. Fewer
rows take more rounds: from 23 drafts K cannot be chosen."""
FOLLOWED_HALF_LIFE = 2.0
"""The same for proposers that follow earlier answers: a round shows which rows still follow theirs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Priors:
    """Estimates of a run. Small and picklable: the driver sends them with every shard, and workers start from them."""

    acceptance: Mapping[ProposerName, Acceptance] = field(default_factory=dict)
    costs: RoundCosts = field(default_factory=RoundCosts)
    rows: int = 0
    """Rows that have ended."""
    input_tokens: int = 0
    """Prompt tokens of those rows."""
    output_tokens: int = 0
    """Tokens generated meanwhile by all rows. The rows that end first are the short ones: only with the tokens of
    those that still run is the mean length right."""
    prefill_tokens: int = 0
    prefill_s: float = 0.0
    """Seconds in which the draft model prefilled those tokens."""


class Observer:
    """Estimates from evidence, and the state of the running rows. One owner, no lock."""

    def __init__(
        self,
        *,
        slots: int,
        proposers: Sequence[ProposerName],
        half_life: float = math.inf,
        output_tokens: float = EXPECTED_OUTPUT_TOKENS,
    ) -> None:
        """proposers: those of the worker. half_life: of acceptance counts, in rounds; by default they count for the
        whole run. output_tokens: longest expected output of a row."""
        self._half_life, self._expected_output = half_life, output_tokens
        self.priors = Priors(acceptance={name: Acceptance.prior(name) for name in proposers if name != "none"})
        self._slots = slots
        self._occupancy = 0
        """Rows of the latest round, or that are about to run; 0 before any."""
        self._context = self._behind = 0.0
        """`PolicyInputs.context` and `behind` of the latest round."""
        self._tokens = self._ended = 0.0
        """Tokens generated and rows ended lately."""

    def add(self, evidence: Evidence) -> None:
        """Adds evidence of rounds and rows."""
        old, rounds = self.priors, sum(point.rounds for point in evidence.costs)
        self.priors = Priors(
            acceptance={name: self._updated(name, known, evidence, rounds) for name, known in old.acceptance.items()},
            costs=old.costs.with_points(evidence.costs),
            rows=old.rows + evidence.rows,
            input_tokens=old.input_tokens + evidence.input_tokens,
            output_tokens=old.output_tokens + evidence.output_tokens,
            prefill_tokens=old.prefill_tokens + evidence.draft_prefill_tokens,
            prefill_s=old.prefill_s + evidence.draft_prefill_s,
        )
        keep = 0.5 ** (rounds / self._half_life)
        self._tokens = keep * self._tokens + evidence.output_tokens
        self._ended = keep * self._ended + evidence.rows
        if evidence.running and rounds:
            self._occupancy, self._behind = evidence.running, evidence.draft_behind
            self._context = sum(point.context * point.rounds for point in evidence.costs) / rounds

    def _updated(self, name: ProposerName, known: Acceptance, evidence: Evidence, rounds: int) -> Acceptance:
        """Returns a proposer's acceptance with this evidence. An idle one's fades, so that it gets a trial again."""
        counts = evidence.verified.get(name)
        if counts is None:
            return known.faded(0.5 ** (rounds / self._half_life))
        short = name in ("replay", "joined") and self._half_life < math.inf
        half_life = FOLLOWED_HALF_LIFE if short else self._half_life
        # With the draft model, a row lacks a draft only while it is being caught up, which is no lack of coverage.
        row_rounds = counts.drafts if name == "draft" else evidence.row_rounds.get(name, 0)
        row_rounds = max(row_rounds, counts.drafts)
        faded = min(evidence.rounds.get(name, 0), row_rounds / MIN_WEIGHT)
        return known.with_counts(counts, row_rounds=row_rounds, keep=0.5 ** (faded / half_life))

    def use_priors(self, priors: Priors) -> None:
        """Starts from these estimates where this observer has none of its own."""
        own = self.priors
        lengths, prefills = own if own.rows else priors, own if own.prefill_tokens else priors
        self.priors = Priors(
            acceptance={
                name: priors.acceptance.get(name, known).faded(0.0) if known == Acceptance.prior(name) else known
                for name, known in own.acceptance.items()
            },
            costs=own.costs or priors.costs,
            rows=lengths.rows,
            input_tokens=lengths.input_tokens,
            output_tokens=lengths.output_tokens,
            prefill_tokens=prefills.prefill_tokens,
            prefill_s=prefills.prefill_s,
        )

    def admit_rows(self, *, queue_depth: float) -> None:
        """Takes in the rows that are about to take the free slots."""
        before, admitted = self._occupancy, max(self._occupancy, min(self._slots, round(queue_depth)))
        if before in (0, admitted):
            return
        if 2 * before < admitted:  # another job, perhaps: each proposer is soon tried again
            self.priors = replace(self.priors, costs=replace(self.priors.costs, timed={}))
        now, new = self.policy_inputs(queue_depth=queue_depth), 1 - before / admitted
        self._occupancy = admitted
        self._context += new * (now.input_tokens + now.output_tokens / 2 - self._context)
        self._behind += new * (now.input_tokens - self._behind)

    def policy_inputs(self, *, queue_depth: float) -> PolicyInputs:
        """Returns the inputs for a plan."""
        known = self.priors
        output, prompt = self._expected_output, self._expected_output
        if known.rows:
            output, prompt = min(output, known.output_tokens / known.rows), known.input_tokens / known.rows
        return PolicyInputs(
            slots=self._slots,
            queue_depth=queue_depth,
            acceptance=known.acceptance,
            costs=known.costs,
            occupancy=self._occupancy,
            context=self._context if self._occupancy else prompt + output / 2,
            input_tokens=prompt,
            output_tokens=output,
            left_tokens=min(output, (MIN_WEIGHT * output + self._tokens) / (MIN_WEIGHT + self._ended)) / 2,
            prefill_s=known.prefill_s / known.prefill_tokens if known.prefill_tokens else 0.0,
            behind=self._behind if self._occupancy else prompt,
        )
