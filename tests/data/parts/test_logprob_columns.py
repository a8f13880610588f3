"""Log-probability columns of rows with different numbers of log-probabilities."""

from __future__ import annotations

from array import array

import pytest

from specpipe.core import Logprobs
from specpipe.data.columns import LOGPROB_COLUMNS
from specpipe.data.parts.logprob_columns import logprob_columns
from specpipe.data.parts.output_table import output_schema


def told(own: list[float], n: int, ids: list[int]) -> Logprobs:
    top = [-0.25 * i if i >= 0 else float("nan") for i in ids]
    return Logprobs(own=array("f", own), n=n, top_ids=array("i", ids), top=array("f", top))


def test_rows_may_ask_for_different_numbers_or_for_nothing() -> None:
    rows = [
        None,
        told([-1.0, -2.0], 3, [4, 2, 1, 7, -1, -1]),
        told([-0.5], 0, []),
        told([], 3, []),
        None,
        told([float("-inf")], 1, [9]),
    ]
    columns = logprob_columns(rows)
    own, ids, top = (columns[name].to_pylist() for name in LOGPROB_COLUMNS)
    assert own == [None, [-1.0, -2.0], [-0.5], [], None, [float("-inf")]]
    assert ids == [None, [[4, 2, 1], [7]], [[]], [], None, [[9]]]
    assert top == [None, [[-1.0, -0.5, -0.25], [-1.75]], [[]], [], None, [[-2.25]]]
    for column in columns.values():
        column.validate(full=True)


@pytest.mark.parametrize("rows", [[], [None, None]])
def test_rows_without_any_have_the_types_of_the_schema(rows: list[None]) -> None:
    columns = logprob_columns(rows)
    assert {name: column.type for name, column in columns.items()} == {
        name: output_schema().field(name).type for name in LOGPROB_COLUMNS
    }
    assert all(column.null_count == len(rows) for column in columns.values())
