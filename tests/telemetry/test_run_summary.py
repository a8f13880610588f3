import dataclasses
import json

import pytest
from support.shard_records import shard_table

from specpipe.telemetry.log_histogram import LogHistogram
from specpipe.telemetry.run_summary import RunFacts, covered_seconds, summarise
from specpipe.telemetry.shard_record import ShardRecord

FIRST = ShardRecord(
    run_id="r",
    shard=0, attempt=1, epoch=1, worker="worker-0", started_at=100.0, finished_at=110.0, rows=4, failed_rows=1,
    input_tokens=40, output_tokens=60, drafts=20, draft_tokens=60, accepted_tokens=30, recovered_tokens=15,
    bonus_tokens=5, proposed_per_position=(20, 20, 20), reached_per_position=(20, 15, 10),
    accepted_per_position=(15, 10, 5), k_histogram=(0, 0, 0, 20), busy_s=8.0, verify_s=8.0,
    ttft=LogHistogram([0.1, 0.1, 0.3]),
)  # fmt: skip
SECOND = dataclasses.replace(FIRST, shard=1, started_at=105.0, finished_at=120.0, failed_rows=0)
RESUMED = dataclasses.replace(FIRST, shard=2, epoch=2, started_at=5000.0, finished_at=5005.0, failed_rows=0)


def facts(**changes: object) -> RunFacts:
    base = RunFacts(
        total_rows=12, total_shards=3, failed_shards={}, starts=2, synthetic=False, peak_output_throughput=9.0,
        workers={"worker-0": {"device": "cpu"}}, versions={"specpipe": "0"},
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def test_duration_excludes_time_between_starts() -> None:
    summary = summarise(shard_table([FIRST, SECOND, RESUMED]), facts())
    assert summary["duration_s"] == 25.0
    assert summary["output_throughput"] == 180 / 25
    assert summary["total_token_throughput"] == 300 / 25
    assert summary["request_throughput"] == 11 / 25


def test_acceptance_follows_the_stated_formulas() -> None:
    summary = summarise(shard_table([FIRST, SECOND]), facts())
    assert summary["spec_decode_acceptance_rate"] == 0.5
    assert summary["spec_decode_acceptance_length"] == 2.5
    assert summary["spec_decode_per_position_acceptance_rates"] == [0.75, 0.5, 0.25]
    assert summary["spec_decode_per_position_conditional_rates"] == pytest.approx([0.75, 2 / 3, 0.5])
    assert summary["k_histogram"] == {"3": 40}


def test_complete_requires_all_rows_and_no_failed_shard() -> None:
    assert summarise(shard_table([FIRST, SECOND, RESUMED]), facts())["complete"]
    assert not summarise(shard_table([FIRST, SECOND]), facts())["complete"]
    assert not summarise(shard_table([FIRST, SECOND, RESUMED]), facts(failed_shards={3: "why"}))["complete"]
    assert summarise(shard_table([FIRST, SECOND, RESUMED]), facts())["failed"] == 1


def test_empty_run_has_zero_rates() -> None:
    summary = summarise(shard_table([]), facts(total_rows=0, workers={}))
    assert summary["output_throughput"] == 0.0
    assert summary["spec_decode_acceptance_length"] == 1.0
    json.dumps(summary, allow_nan=False)


def test_covered_seconds_is_length_of_union() -> None:
    assert covered_seconds([(0, 2), (1, 3), (10, 11), (10.2, 10.4)]) == pytest.approx(4)
    assert covered_seconds([]) == 0.0


def test_peak_throughput_is_at_least_the_mean() -> None:
    assert summarise(shard_table([FIRST]), facts(peak_output_throughput=1.0))["peak_output_throughput"] == 6.0
    assert summarise(shard_table([FIRST]), facts(peak_output_throughput=99.0))["peak_output_throughput"] == 99.0


def test_peak_concurrency_ignores_the_rounding_of_means() -> None:
    for mean, peak in ((3.0000000000000004, 3), (2.4, 3), (0.0, 0)):
        shard = dataclasses.replace(FIRST, slots=3, mean_occupancy=mean)
        assert summarise(shard_table([shard]), facts())["peak_concurrent_requests"] == peak


def test_expected_and_measured_speed_and_last_reason() -> None:
    later = dataclasses.replace(RESUMED, last_plan_reason="the last one", expected_tokens_per_s=20.0, busy_s=2.0)
    summary = summarise(shard_table([later, dataclasses.replace(FIRST, expected_tokens_per_s=70.0)]), facts())
    assert summary["plan_reason"] == "the last one"
    assert summary["expected_tokens_per_s"] == pytest.approx((8 * 70 + 2 * 20) / 10)
    assert summary["engine_tokens_per_s"] == pytest.approx(120 / 10)


def test_draft_with_low_acceptance_is_reported_useless() -> None:
    off = dataclasses.replace(
        RESUMED, last_plan_reason="goodput: plain at 4 rows", last_plan_k=0, accepted_per_position=(1, 0, 0)
    )

    def says(*shards: ShardRecord) -> str:
        return str(summarise(shard_table(shards), facts())["useless_draft"])

    assert "accepted 5% of its first tokens" in says(off)
    assert says(dataclasses.replace(off, last_plan_k=2)) == ""
    assert says(dataclasses.replace(off, accepted_per_position=(15, 2, 0))) == "", "off for another reason"
    assert says(dataclasses.replace(off, last_plan_reason="off")) == ""
    assert says() == ""
