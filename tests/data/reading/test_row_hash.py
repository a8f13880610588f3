"""The hash of a shard's rows: equal for equal rows in any format, different otherwise."""

from hypothesis import given, settings
from hypothesis import strategies as st

from specpipe.data import Row, hash_rows

_cells = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
_values = st.dictionaries(st.text(max_size=3), _cells, max_size=3)


def digest(*rows: dict[str, object] | None, error: str = "broken") -> str:
    return hash_rows(
        iter([Row(index_in_file=i, values=v, error="" if v is not None else error) for i, v in enumerate(rows)])
    )


def present(values: dict[str, object]) -> dict[str, tuple[str, object]]:
    return {key: (type(value).__name__, value) for key, value in values.items() if value is not None}


@settings(deadline=None)
@given(left=_values, right=_values)
def test_two_rows_hash_alike_only_if_they_are_alike(left: dict[str, object], right: dict[str, object]) -> None:
    same = repr(sorted(present(left).items())) == repr(sorted(present(right).items()))
    assert (digest(left) == digest(right)) is same


def test_the_hash_ignores_key_order_and_nulls_only() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1, "c": None})
    assert digest({"a": 1}, {"a": 2}) != digest({"a": 2}, {"a": 1})


def test_where_one_row_ends_counts() -> None:
    assert digest({"a": 1}, {}) != digest({}, {"a": 1}) != digest({"a": 1})


def test_a_row_error_differs_in_hash_from_its_text() -> None:
    assert digest(None, error="{}") != digest({})
    assert digest(None, error="a") != digest(None, error="b")


def test_half_surrogates_and_bytes_can_be_hashed() -> None:
    assert digest({"a": "\ud800"}) != digest({"a": "?"})
    assert digest({"a": b"x"}) != digest({"a": b"y"})
