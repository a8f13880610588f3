"""Policy inputs from evidence."""

from dataclasses import replace

import pytest

from specpipe.core import AcceptanceCounts, CostPoint, Evidence
from specpipe.speculation.estimates.acceptance import MIN_WEIGHT
from specpipe.speculation.estimates.observer import WORKER_HALF_LIFE, Observer
from specpipe.speculation.estimates.policy_inputs import PolicyInputs


def rounds_of(rows: int, rounds: int) -> CostPoint:
    return CostPoint(proposer="none", k=0, running=rows, context=300.0, rounds=rounds, seconds=0.1)


ROUNDS = Evidence(costs=(rounds_of(6, 16),), running=2, draft_behind=40.0)


def observer(slots: int = 8) -> Observer:
    return Observer(slots=slots, proposers=("draft",), half_life=WORKER_HALF_LIFE, output_tokens=100.0)


def seen(*evidence: Evidence) -> PolicyInputs:
    known = observer()
    for one in evidence:
        known.add(one)
    return replace(known.inputs, queue_depth=50)


def test_draft_lacks_whole_prompts_before_any_round() -> None:
    found = seen(Evidence(rows=1, input_tokens=70, output_tokens=10))
    assert (found.behind, found.running) == (70.0, 8)


def test_latest_round_determines_running_rows_and_backlog() -> None:
    found = seen(ROUNDS, Evidence())
    assert (found.running, found.behind, found.context) == (2, 40.0, 300.0)


def test_draft_prefills_give_their_seconds_by_token() -> None:
    assert seen().prefill_s == 0
    twice = seen(*[replace(ROUNDS, draft_prefill_tokens=500, draft_prefill_s=0.002)] * 2)
    assert twice.prefill_s == pytest.approx(4e-6)


def test_new_rows_fill_the_slots_and_lack_their_prompts() -> None:
    known = observer()
    known.add(replace(ROUNDS, rows=8, input_tokens=8 * 60, output_tokens=8 * 80))
    found = known.with_new_rows(queue_depth=50)
    assert (found.running, found.queue_depth) == (8, 50)
    assert found.behind == pytest.approx((2 * 40 + 6 * 60) / 8)
    assert found.context == pytest.approx((2 * 300 + 6 * (60 + 40)) / 8)
    assert known.with_new_rows(queue_depth=3).running == 3
    assert known.inputs.behind == 40, "later plans read the rounds"


def test_rows_of_a_draining_queue_are_near_their_end() -> None:
    ended = replace(ROUNDS, rows=8, input_tokens=8 * 60, output_tokens=8 * 80)
    assert seen(ended).left_tokens == pytest.approx(80 / 2)
    drained = replace(ended, running=4, rows=40, output_tokens=40 * 10)
    assert seen(*[ended] * 8, *[drained] * 4).left_tokens < 80 / 4
    assert seen(replace(ROUNDS, output_tokens=10_000)).left_tokens == 100 / 2, "the limit of a row"


def test_rows_that_end_first_are_no_measure_of_the_others() -> None:
    early = replace(ROUNDS, rows=2, input_tokens=120, output_tokens=8 * 20)
    assert seen(early).output_tokens == pytest.approx(80.0)


def test_worker_starts_with_the_estimates_of_the_run_until_rows_ran() -> None:
    counts = AcceptanceCounts(drafts=800, reached_per_position=(800,), accepted_per_position=(80,))
    run, worker = observer(), observer(slots=4)
    run.add(Evidence(verified={"draft": counts}, rows=4, input_tokens=40, output_tokens=80))
    worker.start(run.inputs)
    assert (worker.inputs.slots, worker.inputs.output_tokens, worker.inputs.behind) == (4, 20.0, 10.0)
    rates, weights = worker.inputs.acceptance["draft"].rates, worker.inputs.acceptance["draft"].weights
    assert rates == run.inputs.acceptance["draft"].rates and weights == (MIN_WEIGHT,)
    worker.add(Evidence(output_tokens=4))
    worker.start(observer().inputs)
    assert worker.inputs.acceptance["draft"].rates == rates


def test_idle_proposer_keeps_its_rates_and_loses_weight() -> None:
    counts = AcceptanceCounts(drafts=800, reached_per_position=(800,), accepted_per_position=(80,))
    known = observer()
    known.add(replace(ROUNDS, verified={"draft": counts}))
    before = known.inputs.acceptance["draft"]
    known.add(replace(ROUNDS, costs=(rounds_of(8, 16),)))
    after = known.inputs.acceptance["draft"]
    assert after.weights[0] == pytest.approx(before.weights[0] / 2), "after 16 rounds"
    assert after.rates == before.rates


@pytest.mark.parametrize(("rows", "rounds"), [(1, 128), (4, 32), (32, 16)])
def test_acceptance_halves_after_half_life_rounds(rows: int, rounds: int) -> None:
    drafts = rows * rounds
    none = AcceptanceCounts(drafts=drafts, reached_per_position=(drafts,), accepted_per_position=(0,))
    known = observer()
    for _ in range(2):
        known.add(Evidence(verified={"draft": none}, costs=(rounds_of(rows, rounds),)))
    assert known.inputs.acceptance["draft"].weights[0] == pytest.approx(1.5 * drafts, rel=0.1)
