"""Shared beginnings of neighbouring prompts, and shards that are cut between groups of them."""

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specpipe.data import InputFile, list_files, plan_shards, shared_blocks, shared_prompts
from specpipe.data.shared_prompts import BLOCK_BYTES, MAX_BLOCKS

SHOTS = [letter * (5 * BLOCK_BYTES + 17) for letter in "abc"]


def write_jsonl(folder: Path, rows: list[dict[str, object]]) -> list[InputFile]:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list_files(str(path))


@pytest.mark.parametrize("kind", ["text", "tokens", "chat", "batch"])
def test_blocks_in_common_with_the_row_before_are_counted(tmp_path: Path, kind: str) -> None:
    prompts = [SHOTS[0] + "x", SHOTS[0] + "y" * 300, SHOTS[1], "short", SHOTS[1], SHOTS[1]]
    rows: list[dict[str, object]] = []
    for text in prompts:
        turns = [{"role": "user", "content": text}]
        ids = list(np.frombuffer(text.encode(), np.uint8).astype(int))
        column = {"text": "prompt", "tokens": "prompt_token_ids", "chat": "messages", "batch": "body"}[kind]
        value = {"text": text, "tokens": [int(i) for i in ids], "chat": turns, "batch": {"messages": turns}}[kind]
        rows.append({column: value})
    blocks = shared_blocks(write_jsonl(tmp_path, rows), None)
    per_token = 4 if kind == "tokens" else 1
    shared = (5 * BLOCK_BYTES + 17) * per_token // BLOCK_BYTES
    assert blocks is not None
    assert blocks.tolist() == [0, shared, 0, 0, 0, shared]


def test_parquet_rows_are_compared_within_each_file(tmp_path: Path) -> None:
    for name in "ab":
        pq.write_table(pa.table({"question": [SHOTS[0]] * 3, "prompt": ["x", "y", "z"]}), tmp_path / f"{name}.parquet")
    files = list_files(str(tmp_path), prompt="question")
    blocks = shared_blocks(files, "question")
    assert blocks is not None
    assert blocks.tolist() == [0, 5, 5, 0, 5, 5]
    limited = shared_blocks(files, "question", limit=4)
    assert limited is not None
    assert limited.tolist() == [0, 5, 5, 0]


def test_rows_that_share_nothing_and_large_datasets_give_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shared_blocks(write_jsonl(tmp_path, [{"prompt": shot} for shot in SHOTS]), None) is None
    files = write_jsonl(tmp_path, [{"prompt": SHOTS[0]}] * 4)
    assert shared_blocks(files, None) is not None
    monkeypatch.setattr(shared_prompts, "SCAN_BYTES", 100)
    assert shared_blocks(files, None) is None


def test_broken_rows_share_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    good = json.dumps({"prompt": "s" * (MAX_BLOCKS + 50) * BLOCK_BYTES})
    path.write_text("\n".join([good, good, "{broken", good, '{"prompt": 7}', '{"prompt": []}']))
    blocks = shared_blocks(list_files(str(path)), None)
    assert blocks is not None
    assert blocks.tolist() == [0, MAX_BLOCKS, 0, 0, 0, 0]


def planned(shared: np.ndarray, shard_tokens: int, rows: int = 1000, workers: int = 1) -> list[int]:
    file = InputFile(path="a", kind="jsonl", size=1, mtime_ns=0, rows=rows, prompt_bytes=400)
    shards = plan_shards(
        [file], shard_tokens=shard_tokens, max_new_tokens=100, workers=workers, shared=shared.astype(np.uint8)
    )
    assert [shard.start for shard in shards[1:]] == [shard.stop for shard in shards[:-1]]
    assert shards[0].start == 0
    assert shards[-1].stop == rows
    assert [shard.continues for shard in shards] == [bool(s.start and shared[s.start]) for s in shards]
    return [shard.start for shard in shards]


def test_shards_end_where_a_group_of_prompts_ends() -> None:
    groups = np.arange(4000) % 45 != 0  # groups of 45 rows
    starts = planned(groups * 1, 20_000, 4000)
    ends = [stop for start, stop in itertools.pairwise(starts) if stop - start >= 100]
    assert len(ends) > 10
    assert all(end % 45 == 0 for end in ends)


def test_shared_tokens_make_a_shard_hold_more_rows() -> None:
    alike = np.ones(100_000)
    alike[0] = 0
    few, many = planned(alike * 0, 20_000, 100_000), planned(alike, 20_000, 100_000)
    assert few[1] == 20_000 // 200
    assert many[1] == 1 + (20_000 - 200) // (200 - 64)
