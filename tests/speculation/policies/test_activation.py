"""When the draft model is turned on, and where it stays on."""

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
    """Seconds a token by drafting with up to `above` rows, and with more."""
    return np.where(np.arange(SLOTS + 1) <= above, few, many)


def turn(by_token: Array, inputs: PolicyInputs, token_s: float = TOKEN_S) -> Activation:
    return plan_activation(by_token, RemainingWork.of(inputs).ahead, inputs, PrefillPrice(0.0, token_s))


def test_what_pays_everywhere_is_on_everywhere() -> None:
    assert turn(saved(1e-5, 1e-5), FULL) == Activation(1, SLOTS, 0.0)


def test_what_never_pays_is_off() -> None:
    off = turn(saved(-1e-5, -1e-5), FULL)
    assert off.most < off.fewest and off.seconds == 0.0


def test_it_is_turned_on_where_few_rows_run_and_what_they_are_behind_is_paid() -> None:
    found = turn(saved(1e-5, -1e-5), replace(TAIL, occupancy=64, queue_depth=64), token_s=1e-8)
    assert 1 <= found.most <= 32
    assert 0 < found.seconds <= found.most * FULL.context * 1e-8


def test_catching_up_that_costs_more_than_the_draft_saves_is_not_done() -> None:
    behind = replace(TAIL, behind=300.0)
    assert turn(saved(1e-6, 1e-6), behind, token_s=1e-9).most == 20
    assert turn(saved(1e-6, 1e-6), behind, token_s=1e-3).most == 0


def test_rows_that_may_generate_little_more_are_not_caught_up_though_others_generate_much() -> None:
    tail = replace(TAIL, behind=300.0)
    assert turn(saved(1e-6, 1e-6), tail, token_s=1e-7).most == 20
    assert turn(saved(1e-6, 1e-6), replace(tail, left=10.0), token_s=1e-7).most == 0
    waiting = replace(tail, left=10.0, queue_depth=1000)
    assert RemainingWork.of(waiting).ahead[:20] == pytest.approx(
        RemainingWork.of(replace(waiting, left=200.0)).ahead[:20]
    )
    assert RemainingWork.of(replace(tail, left=10.0)).ahead.sum() == pytest.approx(20 * 10, rel=0.1)


def test_a_draft_that_is_on_stays_on_where_turning_it_on_again_would_cost_more() -> None:
    ending = replace(FULL, queue_depth=SLOTS)  # no row waits: those that run are those of the tail
    slightly_worse = saved(1e-4, -1e-8)
    assert turn(slightly_worse, ending, token_s=1e-5).most == SLOTS
    assert turn(slightly_worse, replace(ending, behind=300.0), token_s=1e-5).most <= 32


def test_what_is_saved_later_than_what_was_seen_holds_for_pays_for_no_catching_up() -> None:
    behind = replace(FULL, behind=300.0)
    catching_up = SLOTS * 300 * TOKEN_S
    enough = 1.2 * PREMIUM * catching_up / (HORIZON * SLOTS)
    only_here = saved(0.0, 1.0, above=SLOTS - 1)
    assert turn(enough * only_here, behind).most == SLOTS
    assert turn(0.5 * enough * only_here, behind).most == 0


def test_where_the_fewest_rows_lose_it_is_off_again() -> None:
    by_token = saved(-1e-5, 1e-5, above=4)
    assert turn(by_token, TAIL) == Activation(5, 20, 0.0)


def test_what_is_lost_until_the_tail_comes_is_not_outweighed_by_what_is_saved_there() -> None:
    worse_now = saved(1e-5, -1e-8)
    assert turn(worse_now, replace(FULL, queue_depth=SLOTS + 20), token_s=1e-6).most == SLOTS
    assert turn(worse_now, replace(FULL, queue_depth=10_000), token_s=1e-6).most <= 32
