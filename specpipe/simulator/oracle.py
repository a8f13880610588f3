"""Oracle of the simulator: a policy that plans from the true costs and acceptance probabilities.

Shapes: D kinds of rows, n running rows, N slots.
"""

from __future__ import annotations

import numpy as np

from specpipe.arrays import Array
from specpipe.core import ProposerName, SpeculationPlan
from specpipe.simulator.engine import SimulatedEngine
from specpipe.simulator.scenarios import Scenario
from specpipe.speculation.estimates.policy_inputs import PolicyInputs


class Oracle:
    """Plans the fastest K for every number of running rows, and the best time to catch up.

    One oracle activates the draft model once its savings exceed the cost of catching up, another (`charge_catch_up`
    False) ignores that cost: the better of the two counts.
    """

    def __init__(self, scenario: Scenario, engine: SimulatedEngine, *, charge_catch_up: bool) -> None:
        self._scenario, self._engine, self._charge = scenario, engine, charge_catch_up
        self.catch_up_mattered = False
        """True once the cost of catching up changed a plan."""
        self._tokens = {who: tokens_by_k(scenario, who) for who in scenario.proposers}
        machine, ks, slots = scenario.machine, range(scenario.max_k + 1), scenario.slots
        self._rows = np.maximum(1, np.arange(slots + 1))
        self._bare = {who: np.array([machine.forwards(who, k, slots) for k in ks]) / self._rows for who in self._tokens}
        """[max K + 1, N + 1] seconds of a row in a round, without attention."""
        self._attention = {who: np.array([machine.token_s(who, k) for k in ks])[:, None] for who in self._tokens}
        """[max K + 1, 1] seconds for each token of a row."""
        self._input, self._output = float(scenario.input.mean()), float(scenario.output.mean())

    @property
    def max_k(self) -> int:
        """Largest K of any plan."""
        return self._scenario.max_k

    def plan(self, inputs: PolicyInputs) -> SpeculationPlan:
        """Returns the plan for the state of the engine; the inputs are not read."""
        engine, scenario = self._engine, self._scenario
        rows, context = engine.rows, engine.context or float(scenario.input.mean())
        kinds = scenario.kind[rows] if len(rows) else scenario.kind[: scenario.slots]
        shares = np.bincount(kinds, minlength=len(scenario.coverage["draft"])) / len(kinds)
        depth = len(scenario.output) - engine.ended
        waiting = max(0, depth - len(rows))
        left, behind = engine.left + waiting * self._output, engine.behind + waiting * self._input
        catch_up = scenario.machine.prefill_s(behind, 1.0) / max(1.0, left) if behind else 0.0
        free, charged = (
            min(self._best(who, shares, context, cost) for who in self._tokens) for cost in (0.0, catch_up)
        )
        self.catch_up_mattered |= free[1:] != charged[1:]
        _, who, ks = charged if self._charge else free
        return SpeculationPlan(ks=ks, proposer=who, queue_depth=float(depth), reason="oracle")

    def _best(
        self, who: ProposerName, shares: Array, context: float, catch_up: float
    ) -> tuple[float, ProposerName, tuple[int, ...]]:
        """Returns the seconds of a token with the present rows, the proposer, and K for each number of rows.

        catch_up: seconds of catching up, by token that is left.
        """
        tokens = (shares @ self._tokens[who])[:, None]
        seconds = (self._bare[who] + self._attention[who] * context) / tokens
        if who == "draft":
            seconds[1:] += catch_up
        best = seconds.argmin(axis=0)
        now = min(len(self._engine.rows) or len(best) - 1, len(best) - 1)
        return float(seconds[best[now], now]), who, tuple(best.tolist())


def tokens_by_k(scenario: Scenario, who: ProposerName) -> Array:
    """Returns [D, max K + 1]: the expected tokens of a row in a round with a draft, by kind and K."""
    accepted = np.cumsum(np.cumprod(scenario.accepts[who], axis=1), axis=1)
    drafted = 1 + scenario.coverage[who][:, None] * accepted
    return np.concatenate([np.ones((len(drafted), 1)), drafted], axis=1)
