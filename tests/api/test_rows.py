"""Tests of input files made from Python rows."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specpipe.api.rows import write_input
from specpipe.errors import DataError

TURN = {"role": "user", "content": "Hello"}


def test_every_kind_of_row_is_written(tmp_path: Path) -> None:
    rows = ["one", {"prompt": "two", "id": "b"}, [TURN], (5, 6), "half \ud800 a pair"]
    lines = Path(write_input(iter(rows), str(tmp_path))).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"prompt": "one"}, {"prompt": "two", "id": "b"}, {"messages": [TURN]}, {"prompt_token_ids": [5, 6]},
        {"prompt": "half \ud800 a pair"},
    ]  # fmt: skip


def test_table_is_written_unchanged(tmp_path: Path) -> None:
    table = pa.table({"messages": [[TURN], None], "n": [1, None]})
    assert pq.read_table(write_input(table, str(tmp_path))).equals(table)


def test_same_rows_reuse_the_same_file(tmp_path: Path) -> None:
    path = Path(write_input(["a", "b"], str(tmp_path)))
    before = path.stat().st_mtime_ns
    assert write_input(("a", "b"), str(tmp_path)) == str(path)
    assert path.stat().st_mtime_ns == before
    assert write_input(["a", "c"], str(tmp_path)) != str(path)
    assert sorted(file.name[:5] for file in tmp_path.iterdir()) == ["rows-", "rows-"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("a prompt", "expected rows: a list"),
        ({"prompt": "a"}, "expected rows: a list"),
        (7, "data is int 7"),
        ([1.5], "row 0 of data is float 1.5; expected text"),
        (["a", []], "row 1 of data is list \\[\\]"),
        ([{"prompt": "a", "when": object()}], "row 0 of data cannot be written as JSON"),
        ([], "data has no rows; expected at least one"),
        (pa.table({"prompt": pa.array([], pa.string())}), "data has no rows; expected at least one"),
    ],
)
def test_data_without_rows_is_refused(tmp_path: Path, data: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        write_input(data, str(tmp_path))
    assert not list(tmp_path.iterdir())
