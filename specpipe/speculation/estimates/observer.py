"""Observer: turns evidence into the inputs of a policy, in driver, workers and simulator alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from specpipe.core import EXPECTED_OUTPUT_TOKENS, PREFILL_BUDGET, Evidence, ProposerName
from specpipe.speculation.estimates.acceptance import Acceptance
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.estimates.round_costs import RoundCosts

WORKER_HALF_LIFE = 16.0
"""Rounds after which a worker's acceptance counts have half their weight: it follows its rows."""
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


class Observer:
    """Estimates from evidence, and the state of the running rows. One owner, no lock."""

    def __init__(
        self,
        *,
        slots: int,
        proposers: Sequence[ProposerName],
        half_life: float = math.inf,
        output_tokens: float = EXPECTED_OUTPUT_TOKENS,
        prefill_budget: int = PREFILL_BUDGET,
    ) -> None:
        """proposers: those of the worker. half_life: of acceptance counts, in rounds; by default they count for the
        whole run. output_tokens: longest expected output of a row."""
        self._half_life, self._expected_output = half_life, output_tokens
        self.priors = Priors(acceptance={name: Acceptance.prior(name) for name in proposers if name != "none"})
        self._rows = PolicyInputs(slots=slots, queue_depth=0.0, prefill_budget=prefill_budget)
        """State of the running rows; its estimates are not used."""
        self._measured = False
        """True once `_rows` holds measurements."""

    def add(self, evidence: Evidence) -> None:
        """Adds evidence of rounds and rows."""
        old, rounds = self.priors, sum(point.rounds for point in evidence.costs)
        self.priors = Priors(
            acceptance={name: self._updated(name, known, evidence, rounds) for name, known in old.acceptance.items()},
            costs=old.costs.with_points(evidence.costs),
            rows=old.rows + evidence.rows,
            input_tokens=old.input_tokens + evidence.input_tokens,
            output_tokens=old.output_tokens + evidence.output_tokens,
        )
        total = self._rows.rounds + rounds
        timed = {**self._rows.timed, **{point.proposer: float(total) for point in evidence.costs}}
        self._rows = replace(self._rows, rounds=total, timed=timed)
        if evidence.running and rounds:
            self._measured = True
            self._rows = replace(
                self._rows,
                occupancy=evidence.running,
                context=sum(point.context * point.rounds for point in evidence.costs) / rounds,
                behind=evidence.draft_behind,
                left=evidence.left,
            )

    def _updated(self, name: ProposerName, known: Acceptance, evidence: Evidence, rounds: int) -> Acceptance:
        """Returns a proposer's acceptance with this evidence. An idle one's fades, so that it gets a trial again."""
        counts = evidence.verified.get(name)
        if counts is None:
            return known.faded(0.5 ** (rounds / self._half_life))
        short = name in ("replay", "joined") and self._half_life < math.inf
        half_life = FOLLOWED_HALF_LIFE if short else self._half_life
        # With the draft model, a row lacks a draft only while it is being caught up, which is no lack of coverage.
        row_rounds = counts.drafts if name == "draft" else evidence.row_rounds.get(name, 0)
        return known.with_counts(
            counts,
            row_rounds=max(row_rounds, counts.drafts),
            keep=0.5 ** (evidence.rounds.get(name, 0) / half_life),
        )

    def use_priors(self, priors: Priors) -> None:
        """Starts from these estimates where this observer has none of its own."""
        own, lengths = self.priors, self.priors if self.priors.rows else priors
        first = {name: known.faded(0.0) for name, known in priors.acceptance.items() if name not in self._rows.timed}
        self.priors = Priors(
            acceptance={name: first.get(name, known) for name, known in own.acceptance.items()},
            costs=own.costs or priors.costs,
            rows=lengths.rows,
            input_tokens=lengths.input_tokens,
            output_tokens=lengths.output_tokens,
        )

    def admit_rows(self, *, queue_depth: float) -> None:
        """Fades the acceptance by the share of rows that are about to take the free slots."""
        now = self.policy_inputs(queue_depth=queue_depth)
        admitted = max(self._rows.occupancy, min(now.slots, round(queue_depth)))
        if not self._measured or admitted == self._rows.occupancy:
            return
        new = 1 - self._rows.occupancy / admitted
        known = {name: one.faded(1 - new) for name, one in self.priors.acceptance.items()}
        self.priors = replace(self.priors, acceptance=known)
        timed = {name: rounds * (1 - new if name in known else 1) for name, rounds in self._rows.timed.items()}
        self._rows = replace(
            self._rows,
            timed=timed,
            occupancy=admitted,
            context=now.context + new * (now.input_tokens + now.output_tokens / 2 - now.context),
            behind=now.behind + new * (now.input_tokens - now.behind),
            left=self._rows.left + new * (self._expected_output - self._rows.left),
        )

    def policy_inputs(self, *, queue_depth: float) -> PolicyInputs:
        """Returns the inputs for a plan."""
        known, rows = self.priors, self._rows
        output, prompt = self._expected_output, self._expected_output
        if known.rows:
            output, prompt = min(output, known.output_tokens / known.rows), known.input_tokens / known.rows
        if not self._measured:
            rows = replace(rows, context=prompt + output / 2, behind=prompt, left=self._expected_output)
        return replace(
            rows,
            queue_depth=queue_depth,
            left=rows.left * output / self._expected_output,
            acceptance=known.acceptance,
            costs=known.costs,
            input_tokens=prompt,
            output_tokens=output,
        )
