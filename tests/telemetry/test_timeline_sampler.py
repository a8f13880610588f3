import pytest

from specpipe.core import AcceptanceCounts, ShardRound, SpeculationPlan, StepReport
from specpipe.telemetry.timeline_interval import peak, timeline_batch
from specpipe.telemetry.timeline_sampler import TimelineSampler


def step(k: int, running: int, tokens: int, seconds: float = 0.1, plain_rows: int = 0) -> StepReport:
    counts = AcceptanceCounts(drafts=running, draft_tokens=k * running, accepted_tokens=tokens - running) if k else None
    part = ShardRound(rows=running, plain_rows=plain_rows, emitted_tokens=tokens, verified=counts or AcceptanceCounts())
    return StepReport(
        k=k,
        proposer="draft" if k else "none",
        running=running,
        waiting=5,
        slots=8,
        seconds=seconds,
        shards={0: part},
    )


def test_steps_count_in_their_second() -> None:
    sampler = TimelineSampler(worker="w", epoch=2)
    sampler.add(step(4, 2, 8), queue_depth=9.0, now=100.2)
    sampler.add(step(0, 6, 6, seconds=0.3), queue_depth=7.0, now=100.9)
    sampler.add(step(0, 1, 1), queue_depth=7.0, now=103.0)
    (sample,) = sampler.since(0, now=103.5)
    assert (sample.second, sample.epoch, sample.output_tokens, sample.rounds) == (100, 2, 14, 2)
    assert sample.k == pytest.approx(4 * 2 / 8)
    assert sample.occupancy == pytest.approx((0.1 * 2 + 0.3 * 6) / 0.4)
    assert sample.acceptance_length == pytest.approx(1 + 6 / 2)
    assert (sample.queue_depth, sample.waiting) == (7.0, 5)


def test_rows_without_drafts_count_as_k_0() -> None:
    sampler = TimelineSampler(worker="w", epoch=1)
    sampler.add(step(4, 3, 6, plain_rows=2), queue_depth=9.0, now=100.2)
    (sample,) = sampler.since(0, now=101.5)
    assert sample.k == pytest.approx(4 / 3)


def test_interval_holds_proposer_reason_and_expected_speed() -> None:
    sampler = TimelineSampler(worker="w", epoch=1)
    rates = (0.0, 10.0, 20.0, 30.0)
    plans = [
        SpeculationPlan(ks=(k,), proposer="draft", queue_depth=1.0, reason=f"K={k}", tokens_per_s=rates) for k in (2, 0)
    ]
    sampler.add(step(2, 3, 4, seconds=0.3), plan=plans[0], queue_depth=1, now=7.1)
    sampler.add(step(0, 1, 1, seconds=0.1), plan=plans[1], queue_depth=1, now=7.2)
    sampler.add(step(0, 9, 9), queue_depth=1, now=8.0)
    drafted, plain = sampler.since(0, now=99)
    assert (drafted.proposer, drafted.plan_reason) == ("draft", "K=0")
    assert drafted.expected_tokens_per_s == pytest.approx((0.3 * 30 + 0.1 * 10) / 0.4)
    assert (plain.proposer, plain.plan_reason, plain.expected_tokens_per_s) == ("none", "", 0.0)


def test_since_returns_new_finished_intervals_only() -> None:
    sampler = TimelineSampler(worker="w", epoch=1, interval_s=5)
    sampler.add(step(1, 1, 2), queue_depth=0, now=12.0)
    assert sampler.since(0, now=14.9) == []
    assert [sample.second for sample in sampler.since(0, now=15.0)] == [10]
    assert sampler.since(10, now=99.0) == []


def test_peak_sums_over_workers() -> None:
    import pyarrow as pa

    samples = []
    for worker in ("a", "b"):
        sampler = TimelineSampler(worker=worker, epoch=1)
        sampler.add(step(0, 4, 30), queue_depth=0, now=50.5)
        sampler.add(step(0, 4, 40 if worker == "a" else 0), queue_depth=0, now=51.5)
        samples += sampler.since(0, now=60)
    table = pa.Table.from_batches([timeline_batch(samples)])
    assert peak([table], "tokens_per_s") == 60.0
    assert peak([table.slice(0, 0)], "tokens_per_s") == 0.0
