import dataclasses

import pytest

from specpipe.core import AcceptanceCounts, Completion, Request, SamplingParams, ShardRound, SpeculationPlan, StepReport
from specpipe.telemetry.shard_meter import ShardMeter
from specpipe.telemetry.step_shares import step_shares


def step(**shards: ShardRound) -> StepReport:
    parts = {int(name[1:]): part for name, part in shards.items()}
    return StepReport(
        k=3,
        running=sum(part.rows for part in parts.values()),
        waiting=0,
        slots=8,
        seconds=1.0,
        phases={"prefill": 0.4, "verify": 0.5, "host": 0.1},
        shards=parts,
    )


def test_rounds_split_by_rows_prefill_by_tokens() -> None:
    split = step_shares(step(s1=ShardRound(rows=1, prefill_tokens=30), s2=ShardRound(rows=3, prefill_tokens=10)))
    assert split[1] == (0.25, 0.75)
    assert split[2] == (0.75, 0.25)


def test_prefill_only_step_is_charged_to_prefilled_shards() -> None:
    assert step_shares(step(s4=ShardRound(prefill_tokens=5), s5=ShardRound(prefill_tokens=15)))[5] == (0.75, 0.75)


def test_completion_only_step_is_charged_to_completed_shards() -> None:
    request = Request(request_id="a", shard=9, row=0, prompt="", prompt_token_ids=(), sampling=SamplingParams(), seed=0)
    refused = Completion(request=request, finish_reason="error", error="too long")
    report = StepReport(k=0, running=0, waiting=0, slots=1, seconds=0.1, completions=(refused,))
    assert step_shares(report) == {9: (1.0, 1.0)}
    assert step_shares(StepReport(k=0, running=0, waiting=0, slots=1, seconds=0.1)) == {}


def test_shard_seconds_sum_to_engine_seconds() -> None:
    reports = [
        step(s1=ShardRound(rows=1, prefill_tokens=7), s2=ShardRound(rows=2), s3=ShardRound(prefill_tokens=4)),
        step(s1=ShardRound(rows=5), s3=ShardRound(rows=2, prefill_tokens=1)),
    ]
    meters = {shard: ShardMeter() for shard in (1, 2, 3)}
    for report in reports:
        for shard, share in step_shares(report).items():
            meters[shard].add_step(report, share)
            meters[shard].add_round(report, report.shards[shard])
    plan = SpeculationPlan(ks=(3,), proposer="draft", queue_depth=4.5, reason="fixed: K=3")
    records = [
        meter.record(
            run_id="r",
            shard=shard,
            attempt=1,
            epoch=1,
            worker="w",
            plan=plan,
            synthetic=False,
            started_at=0.0,
            finished_at=1.0,
            load_s=0.0,
        )
        for shard, meter in meters.items()
    ]
    assert sum(record.busy_s for record in records) == pytest.approx(sum(report.seconds for report in reports))
    assert records[0].k_histogram == (0, 0, 0, 6)
    assert records[0].mean_occupancy == pytest.approx((3 + 7) / 2)
    assert records[2].rounds == 1
    assert records[2].queue_depth == 4.5


def test_rows_without_drafts_count_as_k_0() -> None:
    meter = ShardMeter()
    report = dataclasses.replace(step(s1=ShardRound(rows=5, plain_rows=3)), proposer="ngram")
    meter.add_round(report, report.shards[1])
    plan = SpeculationPlan(ks=(3,), proposer="ngram", queue_depth=0, reason="", new_rows_limit=2)
    times = {"started_at": 0, "finished_at": 1, "load_s": 0.5}
    record = meter.record(run_id="r", shard=1, attempt=1, epoch=1, worker="w", plan=plan, synthetic=False, **times)
    assert (record.k_histogram, record.ngram_row_rounds) == ((3, 0, 0, 2), 2)


def test_acceptance_counts_add_by_position() -> None:
    counts = AcceptanceCounts(
        drafts=1, draft_tokens=2, accepted_tokens=1, recovered_tokens=1,
        proposed_per_position=(1, 1), reached_per_position=(1, 1), accepted_per_position=(1, 0),
    )  # fmt: skip
    meter = ShardMeter()
    part = ShardRound(rows=1, verified=counts, by_source={"draft": counts}, emitted_accepted_tokens=1)
    report = step(s1=part)
    for _ in range(3):
        meter.add_round(report, report.shards[1])
    plan = SpeculationPlan(ks=(2,), proposer="ngram", queue_depth=0, reason="")
    record = meter.record(
        run_id="r",
        shard=1,
        attempt=2,
        epoch=3,
        worker="w",
        plan=plan,
        synthetic=True,
        started_at=0,
        finished_at=1,
        load_s=0.5,
    )
    assert record.verified == counts + counts + counts
    assert (record.emitted_accepted_tokens, record.load_s, record.synthetic) == (3, 0.5, True)
