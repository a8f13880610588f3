"""Binned timelines: sums, means and gaps are those of the samples."""

import numpy as np
import pyarrow as pa
import pytest
from support.report_pages import timeline

from specpipe.report.binned_timeline import MAX_BINS, bin_timelines


@pytest.mark.parametrize("seconds", [1, 7, 240, 241, 1_000, 36_000])
def test_binning_keeps_the_sum_of_tokens(seconds: int) -> None:
    binned = bin_timelines([timeline(seconds)])
    assert binned is not None
    assert binned.bins <= MAX_BINS
    widths = np.diff(np.minimum(np.arange(binned.bins + 1) * binned.width_s, seconds))
    assert float((binned.tokens_per_s * widths).sum()) == pytest.approx(100 * seconds)
    assert binned.tokens_per_s == pytest.approx(np.full(binned.bins, 100.0))


def test_throughput_adds_up_over_workers_other_values_average() -> None:
    both = pa.concat_tables([timeline(50), timeline(50, worker="worker-1", k=1.0)])
    binned = bin_timelines([both])
    assert binned is not None
    assert set(binned.tokens_per_s) == {200.0}
    assert set(binned.occupancy) == {8.0}
    assert set(binned.k) == {2.0}
    assert set(binned.acceptance_length) == {2.5}


def test_pauses_between_starts_are_left_out() -> None:
    binned = bin_timelines([timeline(30, began=1_000), timeline(20, began=90_000, epoch=2)])
    assert binned is not None
    assert binned.bins == 50
    assert binned.starts == (30.0,)
    assert not np.isnan(binned.k).any()


def test_idle_seconds_are_nan() -> None:
    table = timeline(30)
    binned = bin_timelines([pa.concat_tables([table.slice(0, 10), table.slice(20)])])
    assert binned is not None
    assert np.isnan(binned.occupancy).sum() == 10
    assert binned.tokens_per_s[15] == 0.0


def test_empty_timelines_give_none() -> None:
    assert bin_timelines([]) is None
    assert bin_timelines([timeline(0)]) is None
