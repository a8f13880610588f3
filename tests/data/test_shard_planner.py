"""Shards cover every row once, are deterministic, and shrink towards the end."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specpipe.core import Shard
from specpipe.data import InputFile, plan_shards


def file(rows: int, prompt_bytes: int = 400, name: str = "a.jsonl") -> InputFile:
    return InputFile(path=name, kind="jsonl", size=rows, mtime_ns=0, rows=rows, prompt_bytes=prompt_bytes)


def rows_in(shards: tuple[Shard, ...]) -> list[tuple[str, int]]:
    return [(shard.file, row) for shard in shards for row in range(shard.start, shard.stop)]


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 100_000)), max_size=5),
    shard_tokens=st.integers(1, 50_000),
    workers=st.integers(1, 40),
    limit=st.none() | st.integers(1, 500),
)
def test_every_row_is_in_exactly_one_shard(
    sizes: list[tuple[int, int]], shard_tokens: int, workers: int, limit: int | None
) -> None:
    files = [file(rows, size, f"{i}.jsonl") for i, (rows, size) in enumerate(sizes)]
    shards = plan_shards(files, shard_tokens=shard_tokens, max_new_tokens=64, workers=workers, limit=limit)
    assert rows_in(shards) == [(f.path, row) for f in files for row in range(f.rows)][:limit]
    assert [shard.index for shard in shards] == list(range(len(shards)))
    assert all(shard.rows > 0 for shard in shards)
    position = 0
    for shard in shards:
        assert shard.first_row == position
        position += shard.rows
    assert shards == plan_shards(files, shard_tokens=shard_tokens, max_new_tokens=64, workers=workers, limit=limit)


def test_shards_hold_their_tokens_and_shrink_to_a_sixteenth() -> None:
    shards = plan_shards([file(10_000)], shard_tokens=40_000, max_new_tokens=300, workers=4)
    rows = [shard.rows for shard in shards]
    assert rows[0] == 40_000 // (300 + 400 // 4)
    assert rows == sorted(rows, reverse=True)
    assert max(rows[-9:-1]) == min(rows[-9:-1]) == 2500 // 400


def test_shards_have_at_most_a_quarter_of_the_remaining_share() -> None:
    workers = 8
    shards = plan_shards([file(5_000)], shard_tokens=10**9, max_new_tokens=100, workers=workers)
    assert shards[0].rows == 5_000 // (4 * workers)


def test_shards_hold_as_many_rows_as_there_are_slots() -> None:
    def rows(count: int, workers: int) -> list[int]:
        kwargs = {"shard_tokens": 32_768, "max_new_tokens": 256, "least_rows": 16, "workers": workers}
        return [shard.rows for shard in plan_shards([file(count)], **kwargs)]

    assert rows(24, 1) == [12, 12]
    assert rows(67, 1) == [16, 16, 16, 16, 3]
    assert rows(67, 4) == [8] * 8 + [3]
    assert min(rows(10_000, 4)[:-1]) == 16


def test_long_prompts_count_as_what_the_model_takes() -> None:
    long = file(1000, prompt_bytes=4_000_000)
    capped = plan_shards([long], shard_tokens=10_000, max_new_tokens=100, workers=1, max_prompt_tokens=900)
    assert capped[0].rows == 10
    assert plan_shards([long], shard_tokens=10_000, max_new_tokens=100, workers=1)[0].rows == 1


def test_no_rows_are_no_shards() -> None:
    assert plan_shards([file(0)], shard_tokens=1, max_new_tokens=1, workers=1) == ()


@pytest.mark.slow
def test_ten_million_rows_are_planned_in_seconds() -> None:
    start = time.perf_counter()
    shards = plan_shards([file(10_000_000)], shard_tokens=40_000, max_new_tokens=300, workers=1000)
    assert len(shards) > 100_000
    assert time.perf_counter() - start < 10
