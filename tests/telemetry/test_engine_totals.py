"""Sums of an engine's steps."""

import pytest

from specpipe.core import AcceptanceCounts, Completion, Request, SamplingParams, ShardRound, StepReport
from specpipe.telemetry.engine_totals import EngineTotals
from specpipe.telemetry.metrics import ROUND_SECONDS

COUNTS = AcceptanceCounts(
    drafts=2, draft_tokens=3, accepted_tokens=2, recovered_tokens=1, bonus_tokens=1,
    proposed_per_position=(2, 1), reached_per_position=(2, 1), accepted_per_position=(1, 1),
)  # fmt: skip


def completion(reason: str) -> Completion:
    request = Request(
        request_id="a", shard=0, row=0, prompt="p", prompt_token_ids=(1, 2, 3), sampling=SamplingParams(), seed=1
    )
    return Completion(request=request, finish_reason=reason)


def step(seconds: float, *ended: str, running: int = 2) -> StepReport:
    shards = {
        0: ShardRound(rows=1, verified=COUNTS, by_source={"draft": COUNTS}, emitted_tokens=4),
        1: ShardRound(rows=1, emitted_tokens=1, preemptions=1),
    }
    return StepReport(
        k=2, running=running, waiting=0, slots=4, seconds=seconds, phases={"prefill": 0.5, "verify": 0.25},
        shards=shards, completions=tuple(map(completion, ended)),
    )  # fmt: skip


def test_steps_are_summed() -> None:
    totals = EngineTotals()
    totals.add(step(0.505, "stop", "error"))
    totals.add(step(0.75, "stop"))
    totals.add(step(0.5, running=0))  # a prefill alone is no round
    assert (totals.rows, dict(totals.finished), totals.input_tokens) == (3, {"stop": 2, "error": 1}, 9)
    assert (totals.rounds, totals.k, totals.output_tokens, totals.preemptions) == (2, 2, 15, 3)
    assert totals.verified == COUNTS + COUNTS + COUNTS
    assert dict(totals.phases) == {"prefill": 1.5, "verify": 0.75}


@pytest.mark.parametrize(("seconds", "bucket"), [(0.0005, 0), (0.001, 0), (0.0011, 1), (3.9, 14), (4.1, 15)])
def test_round_counts_in_its_time_bucket(seconds: float, bucket: int) -> None:
    totals = EngineTotals()
    totals.add(StepReport(k=0, running=1, waiting=0, slots=1, seconds=seconds))
    assert totals.round_buckets == [int(i == bucket) for i in range(len(ROUND_SECONDS) + 1)]


def test_copy_is_independent() -> None:
    totals = EngineTotals()
    totals.add(step(0.505, "stop"))
    before = totals.copy()
    totals.add(step(0.505, "length"))
    assert (before.rows, before.rounds, sum(before.round_buckets), before.phases["verify"]) == (1, 1, 1, 0.25)
