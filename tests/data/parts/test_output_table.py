"""Output tables: one schema for all rows, in input order."""

from array import array
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specpipe.core import Completion, Logprobs, Request, SamplingParams, Score
from specpipe.data import output_schema, output_totals, to_table, with_added_columns
from specpipe.data.columns import ADDED_COLUMNS, OUTPUT_COLUMNS


def completion(row: int, error: str = "") -> Completion:
    request = Request(
        request_id=f"r{row}",
        shard=0,
        row=row,
        prompt="hi",
        prompt_token_ids=(1, 2, 3),
        sampling=SamplingParams(),
        seed=2**63 - 1,
    )
    if error:
        return Completion(request=request, finish_reason="error", error=error)
    return Completion(
        request=request, token_ids=(7, 8), text="yo", finish_reason="stop", cached_tokens=2,
        draft_tokens=6, accepted_tokens=1, followed_tokens=1, accepted_per_round=bytes([1]),
        logprobs=Logprobs(
            own=array("f", [-0.5, -1.0]), n=2, top_ids=array("i", [7, 9, 3, -1]),
            top=array("f", [-0.5, -2.0, -0.25, float("nan")]),
        ),
    )  # fmt: skip


def test_rows_stand_in_input_order_with_their_counts() -> None:
    table = to_table([completion(2), completion(0), completion(1, "bad")], 3)
    assert table.column_names == list(OUTPUT_COLUMNS)
    assert table["request_id"].to_pylist() == ["r0", "r1", "r2"]
    assert table.slice(1, 2).to_pylist() == [
        {
            "request_id": "r1", "prompt": "hi", "generated_text": "", "generated_token_ids": [], "num_input_tokens": 3,
            "num_generated_tokens": 0, "finish_reason": "error", "error": "bad", "cached_tokens": 0, "draft_tokens": 0,
            "accepted_tokens": 0, "followed_tokens": 0, "accepted_per_round": None, "seed": 2**63 - 1, "sample": 0,
            "generated_logprobs": None, "top_token_ids": None, "top_token_logprobs": None, "scores": None,
            "score_logprobs": None,
        },
        {
            "request_id": "r2", "prompt": "hi", "generated_text": "yo", "generated_token_ids": [7, 8],
            "num_input_tokens": 3, "num_generated_tokens": 2, "finish_reason": "stop", "error": "", "cached_tokens": 2,
            "draft_tokens": 6, "accepted_tokens": 1, "followed_tokens": 1, "accepted_per_round": [1],
            "seed": 2**63 - 1, "sample": 0,
            "generated_logprobs": [-0.5, -1.0],
            "top_token_ids": [[7, 9], [3]], "top_token_logprobs": [[-0.5, -2.0], [-0.25]],
            "scores": None, "score_logprobs": None,
        },
    ]  # fmt: skip


def test_scores_have_columns_of_their_own() -> None:
    request = completion(0).request
    scores = (
        Score(logprob=-1.5, num_tokens=2, is_greedy=False, token_logprobs=array("f", [-0.5, -1.0])),
        Score(logprob=-0.25, num_tokens=1, is_greedy=True, token_logprobs=array("f", [-0.25])),
    )
    without = tuple(replace(score, token_logprobs=None) for score in scores)
    rows = [
        Completion(request=replace(request, row=i), finish_reason="scored", scores=given)
        for i, given in enumerate((scores, without))
    ]
    table = to_table([*rows, completion(2)], 3)
    cells = [
        {"logprob": -1.5, "num_tokens": 2, "is_greedy": False},
        {"logprob": -0.25, "num_tokens": 1, "is_greedy": True},
    ]
    assert table["scores"].to_pylist() == [cells, cells, None]
    assert table["score_logprobs"].to_pylist() == [[[-0.5, -1.0], [-0.25]], None, None]
    totals = output_totals(table)
    assert (totals["scored_rows"], totals["scored_tokens"], totals["output_tokens"]) == (2, 6, 2)


def test_good_bad_and_empty_shards_have_the_same_schema() -> None:
    tables = [to_table([completion(0)], 1), to_table([completion(0, "bad")], 1), to_table([], 0)]
    assert {table.schema for table in tables} == {output_schema()}
    assert pa.types.is_string(tables[2].schema.field("error").type)


def test_kept_columns_follow_with_their_types() -> None:
    kept = pa.table({"label": pa.array([None, {"a": [1]}]), "at": pa.array([1, 2], pa.timestamp("ns"))})
    table = to_table([completion(1), completion(0)], 2, kept)
    assert table.schema == output_schema(kept.schema)
    assert table["label"].to_pylist() == [None, {"a": [1]}]
    assert table.schema.field("at").type == pa.timestamp("ns")
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    assert pq.read_table(pa.BufferReader(sink.getvalue())).equals(table)


@pytest.mark.parametrize("rows", [[0], [0, 0], [0, 1, 2], [1, 2]])
def test_a_missing_or_doubled_row_is_never_written(rows: list[int]) -> None:
    with pytest.raises(ValueError, match="missing or duplicated"):
        to_table([completion(row) for row in rows], 2)


def test_a_lone_surrogate_in_an_error_can_be_written() -> None:
    assert to_table([completion(0, "bad \ud800")], 1)["error"].to_pylist() == ["bad ?"]


def test_parts_of_older_versions_get_the_columns_they_lack() -> None:
    table = to_table([completion(0)], 1)
    older = table.drop_columns(list(ADDED_COLUMNS))
    filled = with_added_columns(older)
    assert filled.schema == table.schema and filled["followed_tokens"].to_pylist() == [0]
    assert with_added_columns(table) is table
