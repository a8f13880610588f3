"""JSON lines: a malformed line makes one bad row."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specpipe.data import Row, list_files, read_rows
from specpipe.data.locations import locate
from specpipe.data.reading import jsonl

GOOD = b'{"prompt": "fine"}'


def rows_of(path: Path, data: bytes) -> list[Row]:
    path.write_bytes(data)
    (file,) = list_files(str(path))
    return list(read_rows(file, 0, file.rows))


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'{"prompt": ', "not JSON"),
        (b'{"prompt": "a\x01b"}', "not JSON: Invalid control character"),
        (b'{"prompt": "\xff"}', "not UTF-8 (byte 12)"),
        (b"[1, 2]", "an array; expected a JSON object"),
        (b'"text"', "a string"),
        (b"null", "null"),
        (b"true", "true or false"),
        (b"12", "a number"),
        (b"1" * 5000, "the line has a number of more than 4,300 digits; expected a shorter one"),
        (b"[" * 100_000, "nested too deeply"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_bad_line_is_one_error_between_good_rows(tmp_path: Path, line: bytes, error: str) -> None:
    before, bad, after = rows_of(tmp_path / "a.jsonl", GOOD + b"\n" + line + b"\n" + GOOD)
    assert before.values == after.values == {"prompt": "fine"}
    assert bad.values is None and error in bad.error and bad.index_in_file == 1


def test_mixed_types_late_fields_and_long_rows_are_read(tmp_path: Path) -> None:
    values: list[dict[str, object]] = [{"prompt": "a", "x": 1}, {"prompt": "b", "x": "one"}, {"prompt": "c", "x": [1]}]
    values += [{"prompt": "d"}] * 2000 + [{"prompt": "y" * 3_000_000}, {"prompt": "e", "late": True}]
    rows = rows_of(tmp_path / "a.jsonl", "\n".join(map(json.dumps, values)).encode())
    assert [row.values for row in rows] == values


def test_a_too_long_line_is_an_error_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 1 << 20)
    long = b'{"prompt": "' + b"y" * (5 << 20) + b'"}'
    rows = rows_of(tmp_path / "a.jsonl", b"\n".join([GOOD, long, GOOD, long]))
    assert [row.values is None for row in rows] == [False, True, False, True]
    assert rows[1].error == "the line is longer than 1 MiB; expected a shorter one"


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    assert rows_of(tmp_path / "a.jsonl", b"\xef\xbb\xbf" + GOOD)[0].values == {"prompt": "fine"}


_values = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=20), max_size=3)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(_values, max_size=12),
    gaps=st.lists(st.sampled_from(["", "\n", " \r\n"]), min_size=12, max_size=12),
    cut=st.integers(0, 12),
)
def test_rows_are_found_wherever_blank_lines_stand(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]], gaps: list[str], cut: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    text = "".join(gap + json.dumps(row) + "\n" for row, gap in zip(rows, gaps, strict=False))
    path.write_bytes(text.encode())
    count, offsets = jsonl.scan(locate(str(path)))
    start = min(cut, count)
    assert count == len(rows)
    assert [jsonl.parse(line) for line in jsonl.read(locate(str(path)), offsets, start, count)] == rows[start:]
