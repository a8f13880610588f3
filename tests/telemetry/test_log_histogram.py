import json

import numpy as np
import pytest

from specpipe.telemetry.log_histogram import LogHistogram


@pytest.mark.parametrize("size", [1, 2, 7, 1001])
@pytest.mark.parametrize("q", [0.0, 0.01, 0.5, 0.9, 0.99, 1.0])
def test_quantiles_are_within_two_percent_of_numpy(size: int, q: float) -> None:
    values = np.random.default_rng(size).lognormal(-4, 2, size)
    got = LogHistogram(values.tolist()).quantile(q)
    assert got == pytest.approx(np.quantile(values, q, method="inverted_cdf"), rel=0.02)


def test_quantiles_stay_within_minimum_and_maximum() -> None:
    assert LogHistogram([0.3, 0.3]).quantile(0.5) == 0.3
    assert LogHistogram([0.0]).quantile(0.99) == 0.0


def test_count_and_sum_are_exact() -> None:
    values = [0.0, 1e-12, 0.25, 0.25, 3600.0]
    histogram = LogHistogram(values)
    assert (histogram.count, histogram.total, histogram.low, histogram.high) == (5, sum(values), 0.0, 3600.0)


def test_merge_equals_counting_together() -> None:
    values = np.random.default_rng(1).exponential(0.03, 400).tolist()
    merged = LogHistogram(values[:133])
    merged.merge(LogHistogram(values[133:]))
    merged.merge(LogHistogram())
    whole = LogHistogram(values)
    assert merged.buckets == whole.buckets
    assert merged.total == pytest.approx(whole.total)
    assert (merged.count, merged.low, merged.high) == (whole.count, whole.low, whole.high)


def test_json_round_trip_is_lossless() -> None:
    for values in ([], [0.5], [0.1, 0.2, 40.0]):
        histogram = LogHistogram(values)
        assert LogHistogram.from_dict(json.loads(json.dumps(histogram.to_dict()))) == histogram


def test_empty_histogram_gives_zeros() -> None:
    assert (LogHistogram().quantile(0.5), LogHistogram().mean) == (0.0, 0.0)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_negative_or_non_finite_value_raises(value: float) -> None:
    with pytest.raises(ValueError, match="finite number"):
        LogHistogram([value])
