"""Evidence of engine steps: sums of a bounded size, each returned once."""

import dataclasses

import pytest

from specpipe.core import AcceptanceCounts, Completion, Request, SamplingParams, ShardRound, StepReport
from specpipe.speculation.estimates.evidence_log import EvidenceLog

COUNTS = AcceptanceCounts(
    drafts=2, draft_tokens=4, accepted_tokens=1, reached_per_position=(2, 1), accepted_per_position=(1, 0)
)


def step(k: int = 2, running: int = 3, **changes: object) -> StepReport:
    known = StepReport(
        k=k,
        proposer="draft" if k else "none",
        running=running,
        waiting=0,
        slots=8,
        seconds=1.0,
        context=100.0,
        round_s=0.01,
        shards={0: ShardRound(rows=running, verified=COUNTS if k else AcceptanceCounts())},
    )
    return dataclasses.replace(known, **changes)


def test_rounds_of_each_shape_are_summed() -> None:
    log = EvidenceLog()
    for running in (2, 3):
        log.add(step(running=running, round_s=0.02))
    log.add(step(k=0, context=50.0))
    points = {(p.proposer, p.k, p.running): p for p in log.take().costs}
    assert points.keys() == {("draft", 2, 2), ("none", 0, 3)}
    assert points["draft", 2, 2].rounds == 2
    assert points["draft", 2, 2].seconds == pytest.approx(0.04)
    assert points["none", 0, 3].context == 50.0


def test_rounds_without_seconds_add_no_costs() -> None:
    log = EvidenceLog()
    for _ in range(5):
        log.add(step(round_s=0.0))
        log.add(step(running=0, round_s=0.0))
    found = log.take()
    assert found.costs == ()
    assert found.verified["draft"].drafts == 10


def test_acceptance_is_summed_by_proposer() -> None:
    log = EvidenceLog()
    log.add(step())
    log.add(step(proposer="ngram", running=7))
    log.add(step(k=0))
    found = log.take()
    assert found.verified == {"draft": COUNTS, "ngram": dataclasses.replace(COUNTS, reached_per_position=(7, 1))}


def test_rows_that_never_draft_are_no_lack_of_coverage() -> None:
    log = EvidenceLog()
    log.add(step(proposer="ngram", running=5, shards={0: ShardRound(rows=5, plain_rows=3, verified=COUNTS)}))
    assert log.take().verified["ngram"].reached_per_position == (2, 1)


def test_tokens_that_a_looked_up_draft_lacks_count_as_rejected() -> None:
    log = EvidenceLog()
    log.add(step(k=4, proposer="joined", running=2))
    found = log.take().verified["joined"]
    assert (found.reached_per_position, found.accepted_per_position) == ((2, 1, 0, 0), (1, 0, 0, 0))


def test_ended_rows_are_summed() -> None:
    sampling = SamplingParams()
    request = Request(request_id="0", shard=0, row=0, prompt="", prompt_token_ids=(1, 2, 3), sampling=sampling, seed=0)
    ended = Completion(request=request, token_ids=(7, 8), finish_reason="stop")
    failed = Completion(request=request, finish_reason="error", error="bad")
    log = EvidenceLog()
    log.add(step(completions=(ended, failed), shards={0: ShardRound(rows=3, emitted_tokens=5)}))
    found = log.take()
    assert (found.rows, found.input_tokens, found.output_tokens) == (1, 3, 5), "running rows emit tokens too"


def test_few_slow_rounds_count_little() -> None:
    log = EvidenceLog()
    for seconds in (1.0, *[0.02] * 15, 0.2):
        log.add(step(round_s=seconds))
    (point,) = log.take().costs
    assert 0.02 < point.seconds / point.rounds < 0.023


def test_take_clears_the_sums() -> None:
    log = EvidenceLog()
    for _ in range(3):
        log.add(step())
    assert [point.rounds for point in log.take().costs] == [3]
    again = log.take()
    assert (again.costs, again.verified, again.rows) == ((), {}, 0)


def test_number_of_points_is_bounded_for_many_shapes() -> None:
    log = EvidenceLog()
    for i in range(1000):
        log.add(step(running=1 + i % 300))
    assert len(log.take().costs) < 10
