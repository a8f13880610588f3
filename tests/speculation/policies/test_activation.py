"""Activation of the draft model by occupancy."""

from dataclasses import replace

import numpy as np
import pytest

from specpipe.arrays import Array
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.estimates.prefill_cost import PrefillPrice
from specpipe.speculation.policies.activation import HORIZON, PREMIUM, Activation, plan_activation
from specpipe.speculation.policies.throughput import RemainingWork

SLOTS = 64
TOKEN_S = 1e-6
FULL = PolicyInputs(slots=SLOTS, queue_depth=1000, context=300, output_tokens=200)
TAIL = replace(FULL, queue_depth=20, occupancy=20)


def saved(few: float, many: float, *, above: int = 32) -> Array:
    """Returns seconds saved per token: `few` with up to `above` rows, `many` with more."""
    return np.where(np.arange(SLOTS + 1) <= above, few, many)


def activation(by_token: Array, inputs: PolicyInputs, token_s: float = TOKEN_S) -> Activation:
    return plan_activation(by_token, RemainingWork.of(inputs).ahead, inputs, PrefillPrice(0.0, token_s))


def test_draft_that_always_saves_is_on_at_every_occupancy() -> None:
    assert activation(saved(1e-5, 1e-5), FULL) == Activation(1, SLOTS, 0.0)


def test_draft_that_never_saves_stays_off() -> None:
    off = activation(saved(-1e-5, -1e-5), FULL)
    assert off.most < off.fewest and off.seconds == 0.0


def test_activation_at_few_rows_includes_the_catch_up_cost() -> None:
    found = activation(saved(1e-5, -1e-5), replace(TAIL, occupancy=64, queue_depth=64), token_s=1e-8)
    assert 1 <= found.most <= 32
    assert 0 < found.seconds <= found.most * FULL.context * 1e-8


def test_catch_up_that_costs_more_than_savings_is_skipped() -> None:
    behind = replace(TAIL, behind=300.0)
    assert activation(saved(1e-6, 1e-6), behind, token_s=1e-9).most == 20
    assert activation(saved(1e-6, 1e-6), behind, token_s=1e-3).most == 0


def test_rows_with_few_tokens_left_are_not_caught_up() -> None:
    tail = replace(TAIL, behind=300.0)
    assert activation(saved(1e-6, 1e-6), tail, token_s=1e-7).most == 20
    assert activation(saved(1e-6, 1e-6), replace(tail, left=10.0), token_s=1e-7).most == 0
    waiting = replace(tail, left=10.0, queue_depth=1000)
    assert RemainingWork.of(waiting).ahead[:20] == pytest.approx(
        RemainingWork.of(replace(waiting, left=200.0)).ahead[:20]
    )
    assert RemainingWork.of(replace(tail, left=10.0)).ahead.sum() == pytest.approx(20 * 10, rel=0.1)


def test_active_draft_stays_on_if_reactivation_costs_more() -> None:
    ending = replace(FULL, queue_depth=SLOTS)  # no row waits: those that run are those of the tail
    slightly_worse = saved(1e-4, -1e-8)
    assert activation(slightly_worse, ending, token_s=1e-5).most == SLOTS
    assert activation(slightly_worse, replace(ending, behind=300.0), token_s=1e-5).most <= 32


def test_savings_beyond_the_horizon_do_not_pay_for_catch_up() -> None:
    behind = replace(FULL, behind=300.0)
    catching_up = SLOTS * 300 * TOKEN_S
    enough = 1.2 * PREMIUM * catching_up / (HORIZON * SLOTS)
    only_here = saved(0.0, 1.0, above=SLOTS - 1)
    assert activation(enough * only_here, behind).most == SLOTS
    assert activation(0.5 * enough * only_here, behind).most == 0


def test_draft_is_off_below_the_fewest_profitable_rows() -> None:
    by_token = saved(-1e-5, 1e-5, above=4)
    assert activation(by_token, TAIL) == Activation(5, 20, 0.0)


def test_long_losses_outweigh_savings_in_the_tail() -> None:
    worse_now = saved(1e-5, -1e-8)
    assert activation(worse_now, replace(FULL, queue_depth=SLOTS + 20), token_s=1e-6).most == SLOTS
    assert activation(worse_now, replace(FULL, queue_depth=10_000), token_s=1e-6).most <= 32
