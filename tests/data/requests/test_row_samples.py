"""Samples of a row: consecutive, with independent seeds."""

import pyarrow as pa
import pytest

from specpipe.core import Completion, Request, SamplingParams, Shard
from specpipe.data import InputFile, expand_samples, plan_shards, repeat_rows, row_seed


def request(row: int, seed: int = 5) -> Request:
    return Request(
        request_id="a", shard=0, row=row, prompt="x", prompt_token_ids=(1,), sampling=SamplingParams(), seed=seed
    )


def test_samples_of_a_row_stand_side_by_side() -> None:
    rows = [one for row in (0, 1) for one in expand_samples(request(row), 3)]
    assert [(one.row, one.sample) for one in rows] == [(0, 0), (1, 1), (2, 2), (3, 0), (4, 1), (5, 2)]
    assert {one.request_id for one in rows} == {"a"}


def test_sample_seeds_differ_and_sample_zero_keeps_the_rows_seed() -> None:
    seeds = [one.seed for row in range(200) for one in expand_samples(request(row, row_seed(0, row)), 20)]
    assert len(set(seeds)) == 200 * 20 and all(0 <= seed < 2**63 for seed in seeds)
    assert [one.seed for one in expand_samples(request(0), 2)] == [one.seed for one in expand_samples(request(0), 5)][
        :2
    ]
    assert next(expand_samples(request(0), 1)).seed == 5


def test_a_bad_row_is_bad_each_time() -> None:
    bad = Completion(request=request(4), finish_reason="error", error="no prompt")
    copies = list(expand_samples(bad, 2))
    assert all(isinstance(copy, Completion) and copy.error == "no prompt" for copy in copies)
    assert [copy.request.row for copy in copies] == [8, 9]


@pytest.mark.parametrize("samples", [1, 3])
def test_kept_columns_are_repeated(samples: int) -> None:
    table = repeat_rows(pa.table({"tag": pa.array(["a", None], pa.string())}), samples)
    assert table["tag"].to_pylist() == ["a"] * samples + [None] * samples


def test_shards_count_output_rows_and_cost() -> None:
    file = InputFile(path="a.jsonl", kind="jsonl", size=1, mtime_ns=0, rows=60, prompt_bytes=400)
    one = plan_shards([file], shard_tokens=1000, max_new_tokens=100, workers=1)
    four = plan_shards([file], shard_tokens=1000, max_new_tokens=100, workers=1, samples=4)
    assert sum(shard.rows for shard in four) == 240 and sum(shard.rows for shard in one) == 60
    assert four[0].rows <= one[0].rows, "a shard stays as much work as it was"
    assert Shard(index=0, file="a", start=3, stop=5, first_row=3, samples=4).rows == 8
